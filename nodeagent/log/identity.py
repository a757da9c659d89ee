"""Identity of a data directory: `node.id` beside the log and `log/log.id` in the log name each other.

`node.id` is never created beside existing data, and a log is never created beside an existing `node.id`: a
node that lost its log would vote without remembering its earlier votes. Every start is counted in `log.id`
and then in `node.id`, so that an older copy of either file is detected, and is not confused with a crash
between the two writes. The first start writes `node.id` last: without it the directory does not count as
initialised.
"""

from collections.abc import Callable

import msgspec
import xxhash

from nodeagent.log.check import check
from nodeagent.log.log import Log
from nodeagent.log.replay import list_segments
from nodeagent.log.space import NoSpace
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged, Refused

ID_FILE, LOG_DIR = "node.id", "log"
NONCES_KEPT = 16
LOG_ID_FILE = f"{LOG_DIR}/log.id"


class NodeFile(msgspec.Struct, frozen=True):
    """`node.id` as JSON. `check` is XXH3-64 of node and incarnation, the only other fields of the first
    release; `seal` is XXH3-64 of all fields before it."""

    node: str
    incarnation: str
    check: str
    log: str = ""
    """Id of the log; "" until a release after the first has started in the directory."""

    start: int = 0
    """Number of agent starts in this directory, including the current start."""

    nonces: tuple[str, ...] = ()
    """Random names of the last starts, oldest first: two copies of a directory that are both started can have
    equal start counts, but have different names."""

    damaged: str = ""
    """Why the directory must no longer be used, if a peer detected that it is an older copy."""

    seal: str = ""


class LogFile(msgspec.Struct, frozen=True):
    """`log/log.id` as JSON; `seal` is XXH3-64 of the other fields."""

    node: str
    incarnation: str
    log: str
    start: int
    seal: str = ""


def replace_step(node: str) -> str:
    """The next step for a directory with a missing part."""
    return (
        f"restore the missing part as of the node's last stop, or replace the node: "
        f"iotctl cluster replace-node {node} NEW --dead"
    )


def known_identity(disk: Disk, node: str, groups: str) -> NodeFile | None:
    """The identity stored in the directory; None if a first start has not completed. Changes nothing.

    Args:
        groups: the directory with a subdirectory for each group's data.

    Raises:
        Damaged: `node.id`, the log or `log.id` is missing, unreadable, of another directory or an older copy.
        Refused: the directory belongs to another node.
    """
    found = _read_node(disk, node)
    if found is None:
        _check_unmade(disk, node, groups)
        return None
    if found.node != node:
        raise Refused(
            f"the data directory belongs to node {found.node}, but node.yaml says {node}",
            next_step="correct `node` in node.yaml, or use another directory",
        )
    fault = _log_fault(disk, found)
    if fault:
        what = f"{fault}; {node} could vote twice, so it did not start; nothing was deleted"
        raise Damaged(what, next_step=replace_step(node))
    return found


def count_start(disk: Disk, node: str, known: NodeFile | None, draw: Callable[[], str]) -> NodeFile:
    """Count a start in the identity of a directory that has a log, or create the identity; durable on return.
    `draw` returns a random name."""
    if known is None:
        known = NodeFile(node, draw(), "")
    start, log = known.start + 1, known.log or draw()
    of_log = LogFile(node, known.incarnation, log, start)
    of_log = msgspec.structs.replace(of_log, seal=_seal(of_log))
    disk.write_atomic(LOG_ID_FILE, msgspec.json.encode(of_log))
    check = _check(node, known.incarnation)
    nonces = (*known.nonces, draw())[-NONCES_KEPT:]
    return _write_node(disk, NodeFile(node, known.incarnation, check, log, start, nonces, known.damaged))


def begin_start(disk: Disk, log: Log, node: str, known: NodeFile | None, draw: Callable[[], str]) -> NodeFile:
    """Call `count_start`; on a full disk, use the reserve of `log`.

    If the reserve is used up too, any start but the first continues under the number of the last counted
    start. That is safe: peers see a restart, and an older copy of the directory still has a lower number.

    Raises:
        NoSpace: at a first start, because the identity must be durable before the node promises anything.
    """
    try:
        return log.with_reserve(lambda: count_start(disk, node, known, draw))
    except NoSpace:
        if known is None:
            raise
        return known


def mark_damaged(disk: Disk, file: NodeFile, why: str) -> NodeFile:
    """Record in `node.id` why the directory must no longer be used; durable on return."""
    return _write_node(disk, msgspec.structs.replace(file, damaged=why))


def _write_node(disk: Disk, file: NodeFile) -> NodeFile:
    sealed = msgspec.structs.replace(file, seal=_seal(file))
    disk.write_atomic(ID_FILE, msgspec.json.encode(sealed))
    return sealed


def _read_node(disk: Disk, node: str) -> NodeFile | None:
    if not disk.exists(ID_FILE):
        return None
    try:
        found = msgspec.json.decode(disk.read(ID_FILE), type=NodeFile)
    except UNDECODABLE as error:
        raise Damaged(f"{ID_FILE} is unreadable: {error}", next_step=replace_step(node)) from error
    # The first release writes no seal; it rewrites the file only with its own fields.
    whole = found.check == _check(found.node, found.incarnation)
    is_later = bool(found.log or found.start or found.nonces or found.seal)
    if not whole or (is_later and found.seal != _seal(found)):
        raise Damaged(f"{ID_FILE} does not match its checksum", next_step=replace_step(node))
    return found


def _check_unmade(disk: Disk, node: str, groups: str) -> None:
    """Check that there is no data: an interrupted first start leaves at most a log without groups."""
    held = []
    if disk.exists(LOG_DIR) and disk.listdir(LOG_DIR):
        report = check(disk, LOG_DIR)
        held += [LOG_DIR] if report.groups or report.damaged else []
    held += [groups] if disk.exists(groups) and disk.listdir(groups) else []
    if held:
        what = f"{ID_FILE} is missing, but {held[0]}/ holds data; nothing was deleted"
        raise Damaged(what, next_step=replace_step(node))


def _log_fault(disk: Disk, found: NodeFile) -> str:
    """Why the log in the directory is not the log that `found` names; "" if it is."""
    if not list_segments(disk, LOG_DIR):
        return f"{LOG_DIR}/ is missing or empty, but {ID_FILE} says there is a log"
    if not disk.exists(LOG_ID_FILE):
        return f"{LOG_ID_FILE} is missing" if found.log else ""  # written by the first release
    try:
        log = msgspec.json.decode(disk.read(LOG_ID_FILE), type=LogFile)
    except UNDECODABLE as error:
        return f"{LOG_ID_FILE} is unreadable: {error}"
    if log.seal != _seal(log):
        return f"{LOG_ID_FILE} does not match its checksum"
    if (log.node, log.incarnation) != (found.node, found.incarnation):
        return f"{LOG_DIR}/ belongs to {log.node} {log.incarnation}, but {ID_FILE} says {found.incarnation}"
    if found.log and log.log != found.log:
        return f"{LOG_DIR}/ is log {log.log}, but {ID_FILE} names log {found.log}"
    if log.start < found.start:
        return f"{LOG_DIR}/ is an older copy: it counts {log.start} starts, {ID_FILE} {found.start}"
    if found.log and log.start > found.start + 1:
        return f"{ID_FILE} is an older copy: it counts {found.start} starts, {LOG_DIR}/ {log.start}"
    return ""


def _seal(file: NodeFile | LogFile) -> str:
    fields = [str(getattr(file, name)) for name in file.__struct_fields__ if name != "seal"]
    return xxhash.xxh3_64_hexdigest("\0".join(fields).encode())


def _check(node: str, incarnation: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{node}\0{incarnation}".encode())
