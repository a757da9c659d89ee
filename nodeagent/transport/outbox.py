"""The frames of one connection that are not written yet."""

import asyncio

from nodeagent.transport.secure import Secure
from nodeagent.transport.sockets import joined


class Outbox:
    """Writes all frames of one turn of the loop at once. Holds them while the transport is paused."""

    def __init__(self, loop: asyncio.AbstractEventLoop, secure: Secure | None) -> None:
        self._loop = loop
        self._secure = secure
        self._transport: asyncio.Transport | None = None
        self._queue: list[bytes | bytearray] = []
        self._flushing = False
        self._closed = False
        self.bytes = 0
        """Bytes of the queued frames."""

        self.paused = False

    def attach(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from now on."""
        self._transport = transport

    def send(self, frame: bytes | bytearray) -> None:
        """Queue a frame."""
        self._queue.append(frame)
        self.bytes += len(frame)
        if not self._flushing and not self.paused:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def finish(self, last: bytes | bytearray | None) -> None:
        """Write all queued frames and `last`, even if the transport is paused."""
        if last is not None:
            self._queue.append(last)
        self.paused = False
        self.flush()

    def flush(self) -> None:
        """Write all queued frames: small frames joined, large frames on their own."""
        self._flushing = False
        if self._transport is None or self._closed or not self._queue or self.paused:
            return
        queue, self._queue = self._queue, []
        self.bytes = 0
        parts = joined(queue)
        if self._secure is None:
            for part in parts:
                self._transport.write(part)
        else:
            for records in self._secure.seal(parts):
                self._transport.write(records)

    def close(self) -> None:
        """Drop the queued frames; nothing more is written."""
        self._closed = True
        self._queue.clear()
