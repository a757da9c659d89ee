"""Mutual TLS 1.3 with the cluster's own authority.

Only the certificate identifies a peer: the common name is the node or operator, the organisational unit is
the role. Host names are not compared: a node is dialled by address but accepted by name, so the certificate
of another node at the right address is refused (`hello.check_hello`).
"""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

import msgspec

from nodeagent.model.errors import Forbidden, InvalidInput

ROLES = ("node", "admin", "reader")
_ALERT_PREFIXES = ("sslv3", "tlsv1", "tlsv13", "ssl/tls")


class Identity(msgspec.Struct, frozen=True):
    """Certificate, private key and authority; each is PEM text or the path of a PEM file."""

    cert: str
    key: str
    ca: str

    def __repr__(self) -> str:
        """Never shows a key."""
        return f"Identity(cert={_label(self.cert)}, ca={_label(self.ca)})"


class PeerName(msgspec.Struct, frozen=True):
    """The subject of a verified certificate."""

    name: str
    role: str


def server_context(identity: Identity) -> ssl.SSLContext:
    """Raises `InvalidInput` if the identity cannot be loaded."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity)
    context.num_tickets = 0
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    """Raises `InvalidInput` if the identity cannot be loaded."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity)


def reload(context: ssl.SSLContext, identity: Identity) -> None:
    """Use a renewed certificate and key for connections made from now on; the authority is not read again.

    Raises `InvalidInput` if they cannot be loaded.
    """
    with _as_file(identity.cert) as cert, _as_file(identity.key) as key:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"certificate {_label(identity.cert)} cannot be loaded: {error}",
                next_step="certificate and key must belong together; issue them again",
            ) from error


def peer_name(certificate: object) -> PeerName:
    """Name and role of a peer from `getpeercert()`.

    Raises:
        Forbidden: there is no certificate or no name, or the role is unknown.
    """
    if not isinstance(certificate, dict):
        raise Forbidden("the peer sent no certificate")
    subject = {str(key): str(value) for part in certificate.get("subject", ()) for key, value in part}
    name = subject.get("commonName", "")
    role = subject.get("organizationalUnitName", "")
    if not name:
        raise Forbidden(
            "the certificate of the peer names no node or user", next_step="issue it again with a common name"
        )
    if role not in ROLES:
        raise Forbidden(
            f"the certificate of {name} has role {role!r}; roles are {', '.join(ROLES)}",
            next_step="issue it again with a known role as its organizational unit",
        )
    return PeerName(name, role)


def explain(error: ssl.SSLError, where: str) -> Forbidden:
    """The error for a failed TLS handshake with the peer at `where`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Forbidden(
            f"the certificate of {where} is refused: {error.verify_message}",
            next_step="check that both sides use certificates of the same cluster: compare their ca.pem",
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    before, alert, text = reason.partition(" alert ")
    if alert and before in _ALERT_PREFIXES:
        return Forbidden(
            f"{where} refuses our certificate: {text}",
            next_step="inspect the certificate that this program uses: "
            "`openssl x509 -noout -subject -issuer -enddate -in FILE`",
        )
    return Forbidden(f"the TLS handshake with {where} failed: {reason}")


def _context(protocol: int, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        if _is_pem(identity.ca):
            context.load_verify_locations(cadata=identity.ca)
        else:
            context.load_verify_locations(cafile=identity.ca)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"authority {_label(identity.ca)} cannot be loaded: {error}") from error
    reload(context, identity)
    return context


def _is_pem(text: str) -> bool:
    return "-----BEGIN" in text


def _label(text: str) -> str:
    return "(PEM text)" if _is_pem(text) else text


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """`ssl` loads key pairs only from files: PEM text is written to a private file, removed after use."""
    if not _is_pem(text):
        yield text
        return
    handle, path = tempfile.mkstemp(prefix="identity-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
