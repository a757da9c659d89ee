"""Files that a command writes as a whole or not at all."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from iotctl.errors import InputProblem


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; after the block it is synced and renamed to `path`. If the block
    raises, `path` is unchanged.

    A symbolic link is followed: its target is replaced, and retains its mode. A pipe or another special file
    is written directly.

    Raises:
        InputProblem: the file cannot be written, by `open` or in the block.
    """
    temporary: Path | None = None
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        path = path.resolve()
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except (OSError, RuntimeError, ValueError) as error:  # a cycle of links; an empty name
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise InputProblem(
            "the file cannot be written", why=why, next="name another file", where=str(path)
        ) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
