"""The worker process: requests on stdin, replies on stdout, until stdin ends.

Started as `python -m nodeagent.storage.child <root> <timeout_s> <kind of work> <parent's pid>`. Native code
may print, so replies use a copy of descriptor 1, and descriptor 1 itself is redirected to stderr. A request
that exceeds the timeout ends the process even if the parent is dead; the watchdog is a native thread, because
a hanging native call may hold the interpreter lock.
"""

import faulthandler
import os
import select
import signal
import sys

import msgspec

from nodeagent.storage import layout, packets, pipes
from nodeagent.storage.handler import Handler, Opening
from nodeagent.storage.pandas_free import forbid_pandas
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.storage.tsfile_source import TsFileSources

IDLE_S = 10.0


class _RootPlace:
    """`handler.Place` with system calls: the parent holds the directory's lock."""

    def __init__(self, root: str, parent: int) -> None:
        self._root = root
        self._parent = parent
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
        if os.getppid() != self._parent:
            # The next agent may have emptied the directory already, so nobody would remove this file.
            os.unlink(os.path.join(self._root, path))
            raise SystemExit("the agent that started this worker has ended")
        return path


class _Announcer:
    """Sends the parent the path of the next file, so that it knows which file ended this process."""

    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._last = ""

    def __call__(self, path: str) -> None:
        if path != self._last:
            self._last = path
            pipes.send(self._replies, msgspec.msgpack.encode(Opening(path)))

    def forget(self) -> None:
        """Forget the last announced file: a new request begins."""
        self._last = ""


def main(root: str, timeout_s: float, work: str, parent: int) -> None:
    """Serve until stdin ends."""
    forbid_pandas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the parent to handle
    requests, replies = 0, os.dup(1)
    os.dup2(2, 1)
    label = f"{work}-{os.getpid()}"
    file_format = TsFileFormat(os.path.join(root, layout.TMP), label)
    opening = _Announcer(replies)
    sources = TsFileSources(root, file_format, opening)
    handler = Handler(file_format, _RootPlace(root, parent), label, sources)
    while (body := _next_request(requests, sources)) is not None:
        faulthandler.dump_traceback_later(timeout_s, exit=True)
        opening.forget()
        reply = handler.handle(packets.decode(body))
        faulthandler.cancel_dump_traceback_later()
        pipes.send(replies, msgspec.msgpack.encode(reply))
        sources.trim()


def _next_request(requests: int, sources: TsFileSources) -> bytes | None:
    """Wait for a request. When idle, close all files, because a deleted file takes space while it is open."""
    while not select.select([requests], [], [], IDLE_S)[0]:
        sources.close_all()
    return pipes.receive(requests)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
