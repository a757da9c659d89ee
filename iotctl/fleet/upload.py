"""Uploads files to a machine, each completely or not at all, verified by hash before they get their names."""

import hashlib
import io
import tarfile
from collections.abc import Sequence

import msgspec

from iotctl.errors import Unreachable
from iotctl.fleet.host import Host

UPLOAD_TIMEOUT_S = 900.0

SCRIPT = r"""
set -eu
umask 077
base=$1
want=$2
tmp=$(mktemp -d "$base/.incoming.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/tar"
set -- $(sha256sum "$tmp/tar")
if [ "$1" != "$want" ]; then echo "the archive was damaged on the way" >&2; exit 75; fi
mkdir "$tmp/files"
tar -xmpf "$tmp/tar" -C "$tmp/files"
cd "$tmp/files"
tar -tf "$tmp/tar" >"$tmp/names"
while read -r name; do sync "$name" 2>/dev/null || sync; done <"$tmp/names"
while read -r name; do
    mkdir -p "$base/$(dirname "$name")"
    mv -f "$name" "$base/$name"
done <"$tmp/names"
"""
"""Files get their names in the order of the archive, each by a rename."""


class File(msgspec.Struct, frozen=True):
    """One file below a directory; its content is never shown."""

    name: str
    content: bytes
    mode: int = 0o644

    def __repr__(self) -> str:
        return f"File({self.name!r}, {len(self.content)} bytes)"


def put(host: Host, base: str, files: Sequence[File]) -> None:
    """Write `files` below `base`, in this order.

    Raises:
        Unreachable: the connection was lost, or the machine could not write; no file is half-written.
    """
    put_archive(host, base, _archive(files))


def put_archive(host: Host, base: str, archive: bytes) -> None:
    """As `put`, for a tar of plain files."""
    digest = hashlib.sha256(archive).hexdigest()
    words = ["sh", "-c", SCRIPT, "put", base, digest]
    ran = host.run(words, stdin=archive, timeout_s=UPLOAD_TIMEOUT_S)
    if ran.code:
        raise Unreachable(
            f"{host.name}: files could not be written to {base}",
            why=ran.err.decode(errors="replace").strip() or f"the command exited with {ran.code}",
            next="iotctl cluster check",
            where=host.name,
        )


def _archive(files: Sequence[File]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            entry.size, entry.mode = len(file.content), file.mode
            tar.addfile(entry, io.BytesIO(file.content))
    return out.getvalue()
