"""The worker process: requests on stdin, replies on stdout, until stdin ends.

Started as `python -m nodeagent.storage.child <root> <timeout_s> <kind of work>`. Native code may
print: descriptor 1 is kept for replies under another number and points to stderr for everybody else. A
request that takes longer than the timeout ends the process even if nobody is left to kill it; the watchdog
is a native thread, since a hanging native call may hold the interpreter lock.
"""

import faulthandler
import os
import signal
import sys

import msgspec

from nodeagent.storage import layout, pipes
from nodeagent.storage.handler import Handler, Request
from nodeagent.storage.tsfile_format import TsFileFormat


class _RootPlace:
    """`handler.Place` with system calls: the parent holds the directory's lock."""

    def __init__(self, root: str) -> None:
        self._root = root
        os.makedirs(os.path.join(root, layout.TMP), exist_ok=True)

    def read(self, path: str) -> bytes:
        with open(os.path.join(self._root, path), "rb", buffering=0) as file:
            return file.readall()

    def put(self, name: str, content: bytes) -> str:
        path = layout.tmp_path(name)
        with open(os.path.join(self._root, path), "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            os.fdatasync(file.fileno())
        return path


def main(root: str, timeout_s: float, work: str) -> None:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the parent to handle
    requests, replies = 0, os.dup(1)
    os.dup2(2, 1)
    label = f"{work}-{os.getpid()}"
    handler = Handler(TsFileFormat(os.path.join(root, layout.TMP), label), _RootPlace(root), label)
    decoder = msgspec.msgpack.Decoder(Request)
    while (body := pipes.receive(requests)) is not None:
        faulthandler.dump_traceback_later(timeout_s, exit=True)
        reply = handler.handle(decoder.decode(body))
        faulthandler.cancel_dump_traceback_later()
        pipes.send(replies, msgspec.msgpack.encode(reply))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
