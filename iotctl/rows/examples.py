"""Example files packaged with iotctl, so that a first import needs no download: `example:NAME`."""

from importlib import resources
from pathlib import Path

from iotctl.errors import InputProblem

PREFIX = "example:"
FILES = {"weather": "weather.parquet"}
"""Name -> file in `iotctl/data`; `examples/data/README.md` names the source of the rows."""


def named_file(word: str, cwd: Path) -> Path:
    """The file that the user names: `example:NAME`, or a path relative to `cwd`.

    Raises `InputProblem` for an unknown example; does not check whether a path exists.
    """
    if not word.startswith(PREFIX):
        return cwd / word
    name = FILES.get(word.removeprefix(PREFIX))
    if name is None:
        known = ", ".join(PREFIX + n for n in FILES)
        raise InputProblem("there is no such example", next=f"use one of: {known}", where=word)
    return Path(str(resources.files("iotctl") / "data" / name))
