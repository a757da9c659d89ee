"""`/health`, `/ready` and `/metrics` over plain HTTP/1.1: small, bounded, read-only.

It exposes no secrets and changes nothing. One request per connection.
"""

import asyncio
from collections.abc import Callable

from nodeagent.model.requests import NodeStatus

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 2.0
CONNECTIONS_MAX = 64
"""Beyond this, the connection that has been open longest without a complete request is aborted."""

METRICS_MS = 1_000
"""`/metrics` is rendered at most this often, because rendering visits every group."""

_TEXT = "text/plain; charset=utf-8"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}

Status = Callable[[], NodeStatus]
Counters = Callable[[], dict[str, float]]
Answer = tuple[int, str, bytes]


class HttpServer:
    """Serves the probes and metrics; calls `status` and `counters` at most once per request."""

    def __init__(self, status: Status, counters: Counters) -> None:
        self._status = status
        self._counters = counters
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        """Connections without a complete request, oldest first."""

        self._metrics = b""
        self._metrics_at = -METRICS_MS / 1000

    async def start(self, host: str, port: int) -> None:
        """Raises `OSError` if the address cannot be bound."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._waiting[writer] = None
        if len(self._waiting) > CONNECTIONS_MAX:
            slowest = next(iter(self._waiting))
            del self._waiting[slowest]
            slowest.transport.abort()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                self._waiting.pop(writer, None)
                writer.write(_response(head, self._answer))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            self._waiting.pop(writer, None)
            writer.close()

    def _answer(self, path: str) -> Answer:
        if path == "/health":
            return 200, _TEXT, b"ok\n"
        if path == "/ready":
            status = self._status()
            ready = status.state == "active"
            return (200 if ready else 503), _TEXT, f"{status.state}\n".encode()
        if path == "/metrics":
            return self._render()
        return 404, _TEXT, b"known: /health /ready /metrics\n"

    def _render(self) -> Answer:
        from nodeagent.runtime.metrics import CONTENT_TYPE, render

        now = asyncio.get_running_loop().time()
        if now - self._metrics_at >= METRICS_MS / 1000:
            self._metrics = render(self._status(), self._counters())
            self._metrics_at = now
        return 200, CONTENT_TYPE, self._metrics


def _response(head: bytes, answer: Callable[[str], Answer]) -> bytes:
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        code, kind, body = 400, _TEXT, b"bad request\n"
    elif words[0] not in (b"GET", b"HEAD"):
        code, kind, body = 405, _TEXT, b"only GET and HEAD\n"
    else:
        code, kind, body = answer(words[1].decode("latin-1").partition("?")[0])
    lines = (
        f"HTTP/1.1 {code} {_REASONS[code]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + (b"" if words[0] == b"HEAD" else body)
