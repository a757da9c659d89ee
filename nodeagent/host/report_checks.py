"""Which progress reports of a member the meta leader logs. Every member applies logged reports, so a report
that names an unknown group or node, or has values out of range, is refused before it is logged.
"""

from collections.abc import Collection

from nodeagent.data.sessions import tables
from nodeagent.meta import commands as c
from nodeagent.meta.changes import affected
from nodeagent.meta.state import MetaState
from nodeagent.model.bounds import COUNT_MAX
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import NAME_BYTES_MAX, SLOTS_MAX, TEXT_CHARS_MAX
from nodeagent.model.operation import CopyRecord, Operation, SealResult


def why_invalid(state: MetaState, e: c.Command) -> str:
    """Why the report `e` of a member is not logged, "" if it is.

    A report for an unknown or ended operation is logged, because it has no effect.
    """
    if isinstance(e, c.RecoveryCompleted):
        return "" if e.group in state.image.groups else f"no group {e.group!r}"
    op = state.operations.find(getattr(e, "operation", ""))
    if op is None or op.ended:
        return ""
    nodes = set(state.image.nodes)
    match e:
        case c.SealedBy():
            return _group(op, e.result.group) or _sealed(e.result)
        case c.FormedBy():
            gone = set(e.members) - nodes
            return _group(op, e.group) or _index(e.index) or (f"no nodes {sorted(gone)}" if gone else "")
        case c.OpenedBy() | c.AdoptedBy() | c.ReleasedBy():
            return _group(op, e.group) or _index(e.index)
        case c.GroupReady() | c.UnsealedBy():
            return _group(op, e.group)
        case c.SourceReady() | c.JoinReady():
            return _group(op, e.group) or _node(nodes, e.node)
        case c.Copied():
            return _group(op, e.record.target) or _node(nodes, e.record.node) or _copy(e.record)
        case c.ReportError():
            return "" if len(e.what) <= TEXT_CHARS_MAX else f"{len(e.what)} characters of text"
        case _:
            return ""


def _group(op: Operation, group: GroupId) -> str:
    known = affected(op) | {*op.gaining, op.created_group, op.dissolved_group}
    return "" if group in known else f"{group!r} has no part in {op.id}"


def _node(nodes: Collection[NodeId], node: NodeId) -> str:
    return "" if node in nodes else f"no node {node!r}"


def _index(index: int) -> str:
    return "" if 0 <= index <= COUNT_MAX else f"no log has index {index}"


def _sealed(result: SealResult) -> str:
    try:
        if not result.parts:  # else each part is fetched separately, with its hash
            tables([result.sessions], set())
    except Exception as error:
        return f"the sessions do not decode: {error}"
    return _index(result.index)


def _copy(record: CopyRecord) -> str:
    slots_fit = all(0 <= a < b <= SLOTS_MAX for a, b in record.slots)
    numbers = (record.files, record.bytes_received, record.refetched)
    texts_fit = max(len(record.incarnation), len(record.digest)) <= NAME_BYTES_MAX
    fits = slots_fit and texts_fit and all(0 <= n <= COUNT_MAX for n in numbers)
    return "" if fits else "a copy's slots, sizes or names are out of range"
