"""Releases of the agent, as far as the other nodes of a cluster notice which one a node runs."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from nodeagent.model.features import FIRST, SPOKEN, Levels
from nodeagent.model.files import CloseSpec
from nodeagent.storage.arrow_format import ArrowFormat

LIBRARY = "library"
"""Name of the property that makes the bytes of two libraries differ."""


@dataclass(frozen=True, slots=True)
class Build:
    """`writer` is what it says of its library in entries, "" for a release that says and heeds nothing.
    `maker` is the library that makes its files."""

    levels: Levels = SPOKEN
    writer: str = ""
    maker: str = ""


PLAIN = Build()
"""Of a cluster in which all nodes are alike."""

PREVIOUS = Build(Levels(FIRST, FIRST))
"""The release before this one."""

THIS = Build(writer="lib 1")
NEXT = Build(writer="lib 2", maker="lib 2")
"""One that has another library: equal rows become other bytes."""


class LibraryFormat(ArrowFormat):
    """Arrow files, with the library in their bytes."""

    def __init__(self, library: str) -> None:
        self._library = {LIBRARY: library.encode()} if library else {}

    def encode(self, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        return super().encode(table, spec, {**properties, **self._library})
