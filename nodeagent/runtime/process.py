"""Runs an agent as a process."""

import contextlib
import resource
from collections.abc import Sequence
from pathlib import Path

from nodeagent.runtime.agent import Agent

OPEN_FILES = 65_536


def run(directory: Path, failpoints: Sequence[str] | None = None) -> int:
    """Run the agent of `directory` on uvloop; return the exit code of the process."""
    import uvloop

    _allow_open_files()

    async def serve() -> int:
        return await Agent(directory, failpoints=failpoints).run()

    return uvloop.run(serve())


def _allow_open_files() -> None:
    """Raise the limit of open files: each connection counts, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
