"""The node's certificate: loaded at the start, and again when an operator has renewed it."""

import ssl
from pathlib import Path

from nodeagent.client.identity import certificate_facts
from nodeagent.model.errors import InvalidInput, NodeAgentError
from nodeagent.runtime.directory import identity_of
from nodeagent.runtime.notes import EventLog
from nodeagent.transport.tls import client_context, reload, server_context


class Certificates:
    """The TLS contexts of one node; both are None until `load`."""

    def __init__(self, directory: Path, notes: EventLog) -> None:
        self._directory = directory
        self._notes = notes
        self.server: ssl.SSLContext | None = None
        self.client: ssl.SSLContext | None = None
        self.expires_ms = 0

    def load(self) -> None:
        """Use the certificate that is on disk now. Raises `InvalidInput` if it is missing or unreadable."""
        identity = identity_of(self._directory)
        try:
            self.expires_ms = certificate_facts(Path(identity.cert).read_text()).expires_ms
        except OSError as error:
            raise InvalidInput(
                f"{identity.cert}: cannot be read: {error.strerror}",
                next_step="put the node's certificate there; or, if the node's host is a loopback address, "
                "set `tls: false` in node.yaml",
            ) from error
        if self.server is None or self.client is None:
            self.server = server_context(identity)
            self.client = client_context(identity)
        else:
            reload(self.server, identity)
            reload(self.client, identity)

    def renew(self) -> None:
        """SIGHUP: new connections use the certificate that is on disk now."""
        try:
            self.load()
        except NodeAgentError as error:
            self._notes.write("certificate_not_loaded", {"what": error.what})
        else:
            self._notes.write("certificate_loaded", {"expires_ms": self.expires_ms})
