"""What changed in the tables since an earlier view."""

import random

from msgspec.structs import replace

from nodeagent.meta.schema_changes import CHANGES_KEPT, SchemaChanges
from nodeagent.model.schema import Column, TableSchema


def table(name: str, version: int = 1) -> TableSchema:
    return TableSchema("g", name, version, (Column("v", "INT64", False),))


def test_the_digest_depends_on_the_schemas_alone() -> None:
    """Not on the order of changes, nor on tables that were dropped."""
    one, other = SchemaChanges(()), SchemaChanges([table("b", 2)])
    empty = one.digest
    one.changed(None, table("b"))
    one.changed(None, table("a"))
    one.changed(table("b"), table("b", 2))
    other.changed(None, table("a"))
    assert one.digest == other.digest != empty
    assert one.digest == SchemaChanges([table("a"), table("b", 2), replace(table("c"), dropped=True)]).digest
    one.changed(table("a"), replace(table("a"), dropped=True))
    assert one.digest == SchemaChanges([table("b", 2)]).digest
    assert SchemaChanges([replace(table("a"), ttl_ms=1)]).digest != SchemaChanges([table("a")]).digest


def test_changes_since_any_digest_that_is_remembered_lead_to_the_schemas() -> None:
    """Random changes, some of them back to earlier schemas: what a client holds and the changed tables are
    the whole."""
    rng = random.Random(1)
    schemas: dict[str, TableSchema] = {}
    changes, seen = SchemaChanges(()), [(SchemaChanges(()).digest, dict(schemas))]
    for _ in range(3 * CHANGES_KEPT):
        name = f"t{rng.randrange(6)}"
        new = replace(table(name), ttl_ms=rng.randrange(3), dropped=rng.random() < 0.2)
        changes.changed(schemas.get(name), new)
        schemas[name] = new
        seen.append((changes.digest, dict(schemas)))
        digest, held = seen[rng.randrange(max(0, len(seen) - 2 * CHANGES_KEPT), len(seen))]
        keys = changes.since(digest)
        assert keys is not None or len(seen) > CHANGES_KEPT
        if keys is not None:
            changed = {k: s for k, s in schemas.items() if ("g", k) in keys}
            visible = {k: s for k, s in {**held, **changed}.items() if not s.dropped}
            assert visible == {k: s for k, s in schemas.items() if not s.dropped}
    assert changes.since(changes.digest) == set()
    assert changes.since("") is None and changes.since("0" * 31 + "1") is None


def test_a_client_that_missed_many_changes_gets_all_schemas() -> None:
    changes = SchemaChanges(())
    before = []
    for number in range(CHANGES_KEPT + 1):
        before.append(changes.digest)
        changes.changed(None, table(f"t{number}"))
    assert changes.since(before[0]) is None
    found = changes.since(before[1])
    assert found is not None and len(found) == CHANGES_KEPT
