"""The sources of a scan, over the bytes of a file in any format.

`storage.tsfile_source` has the sources that read large TsFiles in place.
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
        """The file's rows; its bytes are verified before they are parsed.

        Raises (at the latest when rows are read):
            FileCorrupt: the bytes do not match `meta`, or cannot be decoded.
            FileNotFoundError, OSError: the file cannot be opened, or the disk cannot read it (EIO).
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
