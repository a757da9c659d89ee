"""Whose log it is: `node.id` beside the log and `log/log.id` in it name one another.

`node.id` is never made beside data that is already there, and no log is made beside a `node.id`: a node whose
log is gone would vote with no memory. Every start is counted in `log.id` and then in `node.id`, so the older
copy of one of them is noticed, and a crash between the two is not taken for one. At the first start `node.id`
comes last: until then the directory is not made yet.
"""

from collections.abc import Callable

import msgspec
import xxhash

from nodeagent.log.check import check
from nodeagent.log.log import Log, NoSpace
from nodeagent.log.replay import list_segments
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged, Refused

ID_FILE, LOG_DIR = "node.id", "log"
NONCES_KEPT = 16
LOG_ID_FILE = f"{LOG_DIR}/log.id"


class NodeFile(msgspec.Struct, frozen=True):
    """`node.id` as JSON. `check` is XXH3-64 of node and incarnation, which is all that the first release
    wrote and reads; `seal` is that of all fields before it."""

    node: str
    incarnation: str
    check: str
    log: str = ""
    """Id of the log; "" in a directory of the first release."""

    start: int = 0
    """Starts of the agent in this directory, this one included."""

    nonces: tuple[str, ...] = ()
    """Random names of the last starts, this one's last: two copies of a directory count alike."""

    damaged: str = ""
    """Why the directory is of no more use, when a peer found it to be an older copy."""

    seal: str = ""


class LogFile(msgspec.Struct, frozen=True):
    """`log/log.id` as JSON; `seal` is XXH3-64 of the other fields."""

    node: str
    incarnation: str
    log: str
    start: int
    seal: str = ""


def replace_step(node: str) -> str:
    """The next command for a directory that lost a part of itself."""
    return (
        f"restore the missing part as it was when the node stopped, or: "
        f"iotctl cluster replace-node {node} NEW --dead"
    )


def known_identity(disk: Disk, node: str, groups: str) -> NodeFile | None:
    """What the directory says it is; None before the end of a first start. Changes nothing.

    Args:
        groups: the directory that holds one of each group's data.

    Raises:
        Damaged: `node.id`, the log or its `log.id` is missing, unreadable, another's or older than the other.
        Refused: the directory belongs to another node.
    """
    found = _read_node(disk, node)
    if found is None:
        _check_unmade(disk, node, groups)
        return None
    if found.node != node:
        raise Refused(
            f"this directory belongs to node {found.node}, node.yaml says {node}",
            next_step="correct `node` in node.yaml or use another directory",
        )
    fault = _log_fault(disk, found)
    if fault:
        what = f"{fault}; {node} would vote with no memory, so it does not start and deletes nothing"
        raise Damaged(what, next_step=replace_step(node))
    return found


def count_start(disk: Disk, node: str, known: NodeFile | None, draw: Callable[[], str]) -> NodeFile:
    """Make or renew the identity of a directory whose log is there; durable when it returns. `draw` gives a
    random name."""
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
    """`count_start`, on a full disk into the room that `log` laid by.

    Where that is used up too, a later start goes on as the last one that was counted: its peers take it for
    that one, which it is a restart of, and an older copy of the directory still says an older number.

    Raises:
        NoSpace: for a first start, whose identity must be there before anything is promised.
    """
    try:
        return log.with_room(lambda: count_start(disk, node, known, draw))
    except NoSpace:
        if known is None:
            raise
        return known


def mark_damaged(disk: Disk, file: NodeFile, why: str) -> NodeFile:
    """Say in `node.id` that the directory is of no more use; durable when it returns."""
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
    # The first release writes no seal, and drops nothing else when it reads a newer file.
    whole = found.check == _check(found.node, found.incarnation)
    is_later = bool(found.log or found.start or found.nonces or found.seal)
    if not whole or (is_later and found.seal != _seal(found)):
        raise Damaged(f"{ID_FILE} does not match its checksum", next_step=replace_step(node))
    return found


def _check_unmade(disk: Disk, node: str, groups: str) -> None:
    """A first start that was cut short left a log without a group, and no data."""
    held = []
    if disk.exists(LOG_DIR) and disk.listdir(LOG_DIR):
        report = check(disk, LOG_DIR)
        held += [LOG_DIR] if report.groups or report.damaged else []
    held += [groups] if disk.exists(groups) and disk.listdir(groups) else []
    if held:
        what = f"{ID_FILE} is missing but {held[0]}/ holds data; nothing was deleted"
        raise Damaged(what, next_step=replace_step(node))


def _log_fault(disk: Disk, found: NodeFile) -> str:
    """Why the log that is there is not the one that `found` names; "" when it is."""
    if not list_segments(disk, LOG_DIR):
        return f"{LOG_DIR}/ is missing or empty and {ID_FILE} says there is a log"
    if not disk.exists(LOG_ID_FILE):
        return f"{LOG_ID_FILE} is missing" if found.log else ""  # of the first release
    try:
        log = msgspec.json.decode(disk.read(LOG_ID_FILE), type=LogFile)
    except UNDECODABLE as error:
        return f"{LOG_ID_FILE} is unreadable: {error}"
    if log.seal != _seal(log):
        return f"{LOG_ID_FILE} does not match its checksum"
    if (log.node, log.incarnation) != (found.node, found.incarnation):
        return f"{LOG_DIR}/ is the log of {log.node} {log.incarnation}, {ID_FILE} says {found.incarnation}"
    if found.log and log.log != found.log:
        return f"{LOG_DIR}/ is log {log.log}, {ID_FILE} names {found.log}"
    if log.start < found.start:
        return f"{LOG_DIR}/ is an older copy: it is of start {log.start}, {ID_FILE} of {found.start}"
    if found.log and log.start > found.start + 1:
        return f"{ID_FILE} is an older copy: it is of start {found.start}, {LOG_DIR}/ of {log.start}"
    return ""


def _seal(file: NodeFile | LogFile) -> str:
    fields = [str(getattr(file, name)) for name in file.__struct_fields__ if name != "seal"]
    return xxhash.xxh3_64_hexdigest("\0".join(fields).encode())


def _check(node: str, incarnation: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{node}\0{incarnation}".encode())
