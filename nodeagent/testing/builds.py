"""Releases of the agent, reduced to what the other nodes of a cluster notice."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from nodeagent.model.features import FIRST, SPOKEN, Levels
from nodeagent.model.files import CloseSpec
from nodeagent.storage.arrow_format import ArrowFormat

LIBRARY = "library"
"""Name of the file property that makes the bytes of two TsFile libraries differ."""


@dataclass(frozen=True, slots=True)
class Build:
    """A release of the agent.

    `writer` is the library version that it writes in entries, "" for a release that ignores library versions.
    `maker` is the library that writes its files.
    """

    levels: Levels = SPOKEN
    writer: str = ""
    maker: str = ""


PLAIN = Build()
"""The release of all nodes, unless a run upgrades them."""

PREVIOUS = Build(Levels(FIRST, FIRST))
"""The release before this one."""

THIS = Build(writer="lib 1")
NEXT = Build(writer="lib 2", maker="lib 2")
"""A release with another TsFile library: equal rows become different bytes."""


class LibraryFormat(ArrowFormat):
    """Arrow files whose bytes contain the name of the library."""

    def __init__(self, library: str) -> None:
        self._library = {LIBRARY: library.encode()} if library else {}

    def encode(self, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        return super().encode(table, spec, {**properties, **self._library})
