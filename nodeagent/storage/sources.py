"""The sources a scan reads from, over the bytes of a file. Which kind of file it is, its format decides.

`storage.tsfile_source` has the ones that read large TsFiles in place.
"""

from collections.abc import Callable
from typing import Protocol

from nodeagent.model.files import FileMeta, ScanSpec
from nodeagent.storage.files import check_content
from nodeagent.storage.format import FileFormat, format_of
from nodeagent.table.memory_source import TableSource
from nodeagent.table.paging import Source


class Sources(Protocol):
    def of(self, path: str, meta: FileMeta, spec: ScanSpec) -> Source:
        """The file's rows; its bytes are checked before any of them is parsed.

        Raises (at the latest when rows are read):
            FileCorrupt: the bytes are not those of `meta`, or cannot be read.
            FileNotFoundError, OSError: there are none.
        """
        ...


class ContentSources:
    """Reads each file as a whole."""

    def __init__(self, read: Callable[[str], bytes], file_format: FileFormat) -> None:
        self._read = read
        self._format = file_format

    def of(self, path: str, meta: FileMeta, spec: ScanSpec) -> Source:
        content = check_content(self._read(path), meta, path)
        return TableSource([(meta.order, format_of(meta.name, self._format).decode(content, spec))], spec)
