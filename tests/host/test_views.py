"""What a client gets that holds the schemas of an earlier view."""

import msgspec

from nodeagent.host.handlers.views import schemas_since
from nodeagent.meta import commands as meta
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.features import Feature
from nodeagent.model.schema import Column, TableSchema


def table(name: str, *fields: str) -> TableSchema:
    return TableSchema("g", name, 1, tuple(Column(f, "INT64", False) for f in ("v", *fields)))


def test_a_view_names_what_changed_and_what_was_dropped() -> None:
    """Also the TTL, which leaves the version unchanged, and a table that was dropped and created again."""
    state = MetaState(Image(level=Feature.TTL_IF_NEW))

    def do(*commands: meta.Command) -> str:
        entries = [Entry(1, int(EntryKind.COMMAND), meta.encode(c)) for c in commands]
        state.apply(state.applied + 1, entries)
        return state.tables.changes.digest

    first = do(*(meta.PutSchema(1, table(name)) for name in "abcd"))
    whole = tuple(table(name) for name in "abcd")
    assert schemas_since(state.tables, "") == (whole, "", ())
    assert schemas_since(state.tables, first) == ((), first, ())
    do(
        meta.PutSchema(2, table("a", "w")),
        meta.PutSchema(2, table("b"), ttl_ms=7),
        meta.DropTable(2, "g", "c", 1),
    )
    changed = (
        msgspec.structs.replace(table("a", "w"), version=2),
        msgspec.structs.replace(table("b"), ttl_ms=7),
    )
    assert schemas_since(state.tables, first) == (changed, first, (("g", "c"),))
    now = do(meta.PutSchema(3, table("c")))
    again = msgspec.structs.replace(table("c"), version=2)
    assert schemas_since(state.tables, first) == ((*changed, again), first, ())
    assert schemas_since(state.tables, now) == ((), now, ())
    restarted = MetaState.decode(state.encode())
    assert schemas_since(restarted.tables, now) == ((), now, ())
    assert schemas_since(restarted.tables, first) == ((*changed, again, table("d")), "", ())
