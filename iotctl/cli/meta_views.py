"""Tables of the commands about the cluster's metadata, built from their JSON bodies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from iotctl.change.restore_meta import INCOMPLETE, MISSING, PRESENT
from iotctl.humanize import bytes_text, or_dash, span_text
from iotctl.output.table import Table

if TYPE_CHECKING:
    from iotctl.change.recover_meta import MetaRecovery
    from iotctl.change.restore_meta import MetaRestore, TableState
    from iotctl.observe.backup import MetaBackup
    from iotctl.observe.meta import MetaGroupView


SHOWN_MAX = 20


def status_tables(m: MetaGroupView) -> list[Table | str]:
    rows = [
        (
            *(n.node, n.role or "no answer", span_text(_seconds(n.since_ms)), or_dash(n.first)),
            *(or_dash(n.last), or_dash(n.applied), span_text(_seconds(n.age_ms)), or_dash(n.image)),
            *(or_dash(n.fallback), n.pinned_by or "-", n.error or n.why),
        )
        for n in m.nodes
    ]
    quorum = "quorum" if m.quorum else "QUORUM LOST"
    head = f"meta leader {m.leader or 'none'} (term {or_dash(m.term)}), {quorum}\n"
    head += f"voters {' '.join(m.voters)}"
    columns = ("node", "role", "since", "first", "last", "applied", "age", "image")
    return [head, Table((*columns, "older image", "pinned by", "why"), rows, wide=3)]


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def recovery_tables(r: MetaRecovery) -> list[Table | str]:
    rows = [
        (
            *(s.node, "yes" if s.node in r.voters else "no", s.last_term, s.last, s.behind),
            "yes" if s.node == r.leader else "",
        )
        for s in r.survivors
    ]
    columns = ("node", "voter", "last term", "last entry", "behind", "will lead" if not r.done else "leads")
    head = f"permanently lost: {', '.join(r.nodes)}\nvoters so far: {', '.join(r.voters)}"
    parts: list[Table | str] = [head, Table(columns, rows, title="recovered" if r.done else "living nodes")]
    parts.append(f"lost: journal entries after {r.last} that only these nodes had; the amount is unknown")
    if r.operation:
        parts.append(f"open: {r.operation}, which continues without the lost nodes")
    if r.lost_groups:
        parts.append(f"data groups without a majority: {', '.join(r.lost_groups)}")
    return parts


def backup_lines(b: MetaBackup) -> list[Table | str]:
    return [
        f"{b.file}: {bytes_text(b.bytes)}, {b.tables} tables, journal entry {b.index} of term {b.term}, "
        f"from {b.node}"
    ]


def changes(r: MetaRestore) -> list[str]:
    """What a restore would do, one line for each table that it would change."""
    found = [
        f"create table {_name(t)} ({t.columns} columns, {_ttl(t.ttl_ms)})"
        if t.state == MISSING
        else f"add the missing columns of table {_name(t)}"
        for t in r.tables
        if t.state != PRESENT
    ]
    return found + ([f"move {r.slots} slots to the groups that have them in the backup"] if r.slots else [])


def unchanged(r: MetaRestore) -> list[str]:
    """What a restore leaves as it is, although the backup has it otherwise."""
    return [
        f"table {_name(t)} retains its TTL: {_ttl(t.ttl_here_ms)}; in the backup: {_ttl(t.ttl_ms)}"
        for t in r.tables
        if t.ttl_here_ms is not None and t.ttl_here_ms != t.ttl_ms
    ]


def first_of(lines: list[str]) -> list[str]:
    """The lines, or the first ones and how many others there are."""
    more = len(lines) - SHOWN_MAX
    return lines if more <= 1 else [*lines[:SHOWN_MAX], f"and {more} more (all of them: --dry-run)"]


def restored(r: MetaRestore) -> list[Table | str]:
    counts = Counter(t.state for t in r.tables)
    return [
        f"tables: {counts[MISSING]} created, {counts[INCOMPLETE]} extended, {counts[PRESENT]} unchanged; "
        f"slots moved: {r.slots}",
        *unchanged(r),
    ]


def _name(t: TableState) -> str:
    return f"{t.storage_group}.{t.table}"


def _ttl(ttl_ms: int) -> str:
    return f"TTL {span_text(ttl_ms / 1000)}" if ttl_ms else "no TTL"
