"""Name and version of the TsFile library, without loading it."""

from importlib.metadata import version

LIBRARY = "tsfile"


def tsfile_library() -> str:
    """Name and version; another version may write other bytes for the same rows."""
    return f"{LIBRARY} {version(LIBRARY)}"
