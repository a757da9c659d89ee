"""TLS of one connection over memory buffers.

asyncio's own TLS closes a failed handshake without sending the alert, so the other side could not learn the
reason. Here the alert is sent like any other bytes.
"""

import ssl
from collections.abc import Iterable, Iterator

_RECORD_BYTES = 16 * 1024
"""A TLS record holds no more plain text than this."""

_SEAL_BYTES = 256 * 1024
"""Plain text per encryption call, a multiple of a record. Encrypting a whole chunk at once is 25 % slower."""


class Secure:
    """Plain bytes on one side, TLS records on the other. Every method may raise `ssl.SSLError`; then
    send the bytes of `outgoing` (the alert) before closing."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.is_ready = False
        """Whether our side of the handshake is done and the peer's certificate verified."""

    def start(self) -> None:
        """Begin the handshake on the dialling side."""
        self._handshake()

    def receive(self, records: bytes) -> list[bytes]:
        """The plain text of the received records, in pieces."""
        self._incoming.write(records)
        if not self.is_ready:
            self._handshake()
            if not self.is_ready:
                return []
        pieces: list[bytes] = []
        while self._incoming.pending or self._object.pending():
            try:
                piece = self._object.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                break
            if not piece:
                break
            pieces.append(piece)
        return pieces

    def seal(self, parts: Iterable[bytes | bytearray]) -> Iterator[bytes]:
        """The records of the parts, in pieces small enough to stay in the processor's cache."""
        for part in parts:
            with memoryview(part) as view:
                for at in range(0, len(part), _SEAL_BYTES):
                    self._object.write(view[at : at + _SEAL_BYTES])
                    yield self._outgoing.read()

    def outgoing(self) -> bytes:
        """The records to send now."""
        return self._outgoing.read()

    def certificate(self) -> object:
        return self._object.getpeercert()

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_ready = True
