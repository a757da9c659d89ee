"""The library that makes TsFiles, without loading it."""

from importlib.metadata import version

LIBRARY = "tsfile"


def tsfile_library() -> str:
    """Its name and version: with another one the same rows may become other bytes."""
    return f"{LIBRARY} {version(LIBRARY)}"
