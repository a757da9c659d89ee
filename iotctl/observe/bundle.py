"""The support bundle: an archive of the cluster's status, events and logs, without keys or rows.

It can be written with any number of nodes down: its manifest lists what could not be collected.
"""

import gzip
import io
import platform
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from iotctl import __version__
from iotctl.errors import InputProblem, IotctlError
from iotctl.fleet.local import LocalFleet
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import collect
from iotctl.observe.events import Silent, events_of
from iotctl.observe.operations import Operations, describe_operation, received_bytes
from iotctl.observe.status import build_status
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.errors import NodeAgentError

LOG_TAIL_BYTES = 1 << 20
EVENTS_MAX = 2_000
EVENTS_SINCE_MS = 7 * 86_400_000
REDACTED = "REDACTED"

_SECRET_WORD = r"[\w.-]*(?:password|passwd|passphrase|secret|token|credential|key)[\w.-]*"
_SECRET = re.compile(rf"""(?i)(['"]?{_SECRET_WORD}['"]?\s*[:=]\s*)("[^"]*"|'[^']*'|[^,}}\]\s#][^,}}\]#]*)""")
_BLOCK = re.compile(rf"""(?i)^(\s*(?:-\s+)?)['"]?{_SECRET_WORD}['"]?\s*:\s*([|>][-+\d]*)?\s*(?:#.*)?$""")
_PEM = re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.DOTALL)
_URL = re.compile(r"(?<=://)[^/\s@]+@")


Encode = Callable[[str, object], bytes]
"""Encodes a kind and a body as the document that iotctl prints."""


class BundleFile(msgspec.Struct, frozen=True):
    name: str
    bytes: int


class Missing(msgspec.Struct, frozen=True):
    what: str
    why: str


class Bundle(msgspec.Struct, frozen=True):
    """`bytes` is the size of the archive; `unreachable` nodes did not answer."""

    path: str
    bytes: int
    files: list[BundleFile]
    unreachable: list[Silent]
    missing: list[Missing]


class Manifest(msgspec.Struct, frozen=True):
    """The archive's table of contents."""

    cluster: str
    created_ms: int
    files: list[BundleFile]
    unreachable: list[Silent]
    missing: list[Missing]


class Versions(msgspec.Struct, frozen=True):
    iotctl: str
    python: str
    platform: str
    packages: dict[str, str]


def write_bundle(
    cluster: Cluster,
    source: ClusterSource,
    fleet: LocalFleet | None,
    out: Path,
    *,
    encode: Encode,
    now_ms: int,
) -> Bundle:
    """Collect and write the archive. An existing file is replaced once the new one is complete.

    Raises:
        InputProblem: `out` cannot be written.
    """
    files, unreachable, missing = _collect(cluster, source, fleet, encode, now_ms)
    listed = [BundleFile(n, len(c)) for n, c in files.items()]
    manifest = Manifest(source.name, now_ms, listed, unreachable, missing)
    files = {"manifest.json": encode("support-manifest", manifest), **files}
    packed = _pack(files, root=out.name.removesuffix(".tar.gz"), now_ms=now_ms)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        temporary.write_bytes(packed)
        temporary.replace(out)
    except OSError as error:
        raise InputProblem(
            f"the support bundle cannot be written to {out}", why=str(error), next="give another --out"
        ) from None
    return Bundle(
        str(out), len(packed), [BundleFile(n, len(c)) for n, c in files.items()], unreachable, missing
    )


def default_name(source: ClusterSource, now_ms: int) -> str:
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ms / 1000))
    return f"support-{re.sub(r'[^A-Za-z0-9_-]', '_', source.name)}-{at}.tar.gz"


def redact(text: str) -> str:
    """`cluster.yaml` without possible secrets: values of keys named like secrets, PEM blocks, users
    in URLs."""
    text = _URL.sub(f"{REDACTED}@", _PEM.sub(REDACTED, text))
    lines: list[str] = []
    inside: int | None = None
    """Indentation of the redacted key whose value continues on the following lines."""

    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if inside is not None and (not line.strip() or indent > inside):
            continue
        inside = None
        block = _BLOCK.match(line)
        if block is not None:
            inside = len(block[1])
            lines.append(f"{line.split(':', 1)[0]}: {REDACTED}")
        else:
            lines.append(_SECRET.sub(rf"\1{REDACTED}", line))
    return "\n".join(lines) + "\n"


def _collect(
    cluster: Cluster, source: ClusterSource, fleet: LocalFleet | None, encode: Encode, now_ms: int
) -> tuple[dict[str, bytes], list[Silent], list[Missing]]:
    facts = collect(cluster)
    status = build_status(facts, source, now_ms=now_ms)
    missing: list[Missing] = []
    files = {
        "cluster.yaml": redact(source.text).encode(),
        "versions.json": encode("support-versions", _versions()),
        "status.json": encode("cluster-status", status),
    }
    if facts.view is not None:
        rows = [
            describe_operation(o, now_ms=now_ms, received=received_bytes(facts.heard, o.id))
            for o in facts.view.operations
        ]
        files["operations.json"] = encode("operations", Operations(rows))
    else:
        missing.append(Missing("operations.json", "no agent returned the meta group's state"))
    try:
        recent = events_of(cluster, since_ms=now_ms - EVENTS_SINCE_MS, limit=EVENTS_MAX, now_ms=now_ms)
        files["events.json"] = encode("cluster-events", recent)
    except (IotctlError, NodeAgentError) as error:
        missing.append(Missing("events.json", error.what))
    for node, report in sorted(facts.statuses.items()):
        files[f"nodes/{_file_name(node)}/status.json"] = encode("node-status", report)
    for name, content in _logs(fleet, missing):
        files[name] = content
    unreachable = [Silent(n, why) for n, why in sorted(facts.errors.items())]
    return files, unreachable, missing


def _logs(fleet: LocalFleet | None, missing: list[Missing]) -> Iterator[tuple[str, bytes]]:
    """The end of each local agent's log. Logs of other fleets are not collected."""
    if fleet is None:
        missing.append(Missing("nodes/*/agent.log", "logs are collected from local fleets only"))
        return
    for node in fleet.nodes():
        name = f"nodes/{_file_name(node.name)}/agent.log"
        try:
            yield name, _tail(Path(node.directory) / "agent.log")
        except OSError as error:
            missing.append(Missing(name, error.strerror or str(error)))


def _tail(path: Path) -> bytes:
    """Whole lines of the last `LOG_TAIL_BYTES`, without PEM blocks and users in URLs."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        content = file.read(LOG_TAIL_BYTES)
    if size > LOG_TAIL_BYTES:
        content = content.partition(b"\n")[2]
    text = content.decode(errors="replace")
    return _URL.sub(f"{REDACTED}@", _PEM.sub(REDACTED, text)).encode()


def _versions() -> Versions:
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            packages[name] = distribution.version
    return Versions(
        __version__, platform.python_version(), platform.platform(), dict(sorted(packages.items()))
    )


def _file_name(node: str) -> str:
    """The node's name as a file name; a node that never reported its name is called `host:port`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", node).lstrip(".") or "_"


def _pack(files: dict[str, bytes], *, root: str, now_ms: int) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=now_ms // 1000) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), now_ms // 1000, 0o600
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
