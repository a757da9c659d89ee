"""After a table is dropped, writes to it are refused; deletes, which remove its rows, are accepted."""

from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.host.handlers import writes
from nodeagent.host.handlers.leading import check_schema, report_at
from nodeagent.meta import commands as c
from nodeagent.meta.state import MetaState
from nodeagent.model import requests as q
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.features import Feature
from nodeagent.model.ids import PartitionKey
from nodeagent.model.schema import Column, TableSchema

SCHEMA = TableSchema("root.a", "m", 1, (Column("v", "DOUBLE", False),))
KEY = PartitionKey("root.a", 0, 0)


@pytest.fixture
def cluster() -> Any:
    state = MetaState()
    put, drop = c.PutSchema(1, SCHEMA), c.DropTable(1, "root.a", "m", 1)
    state.apply(1, [Entry(1, EntryKind.COMMAND, c.encode(x)) for x in (put, drop)])
    return SimpleNamespace(meta=state)


def test_writes_are_refused_and_deletes_are_not(cluster: Any) -> None:
    """The leader refuses a write before it logs it. Rows that arrived in the meantime can still be
    deleted."""
    write = q.Write("a.1", 1, KEY, "m", 1, "s", 1, 0, 1, b"")
    refused = writes._schema(cluster, write)
    assert isinstance(refused, q.ErrorReply) and refused.code == "invalid_input" and "dropped" in refused.what
    newer = writes._schema(cluster, q.Write("a.1", 1, KEY, "m", 2, "s", 1, 0, 1, b""))
    assert isinstance(newer, q.ErrorReply) and newer.code == "overloaded", (
        "the table was created again: retry"
    )
    delete = q.DeleteRows("a.1", 1, KEY, "m", "s", 1, 0, (), 0, 1, 1)
    assert isinstance(writes._schema(cluster, delete), TableSchema)


def test_only_operators_can_have_it_logged(cluster: Any) -> None:
    """The command is not a progress report, so nodes may not forward it."""
    assert report_at(1, c.encode(c.DropTable(1, "root.a", "m", 1))) is None


def test_a_table_of_that_name_is_made_under_the_rule_for_known_ones(cluster: Any) -> None:
    """The table does not count again against the limit of tables, and its former names remain valid."""
    assert check_schema(cluster.meta, q.PutSchema(SCHEMA)) is None


def test_a_ttl_for_new_tables_needs_its_feature_level(cluster: Any) -> None:
    """A node of the previous release would set the TTL of a table that exists."""
    refused = check_schema(cluster.meta, q.PutSchema(SCHEMA, 5, if_new=True))
    assert isinstance(refused, q.ErrorReply) and refused.code == "refused" and "level" in refused.what
    cluster.meta.image.level = Feature.TTL_IF_NEW
    assert check_schema(cluster.meta, q.PutSchema(SCHEMA, 5, if_new=True)) is None
