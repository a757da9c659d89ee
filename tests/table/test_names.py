"""There is one rule for names and schemas, and one for values."""

import msgspec
import pyarrow as pa
import pytest

from nodeagent.host.handlers.leading import check_schema as check_request
from nodeagent.meta.state import MetaState
from nodeagent.model import names
from nodeagent.model.errors import InvalidInput, InvalidName
from nodeagent.model.limits import COLUMNS_MAX, NAME_BYTES_MAX, TAG_BYTES_MAX, TIME_MS_MAX, TIME_MS_MIN
from nodeagent.model.requests import ErrorReply, PutSchema
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.arrow import infer_schema, normalise
from nodeagent.table.values import check_values

TAG, FIELD = Column("dev", "STRING", True), Column("v", "DOUBLE", False)
SCHEMA = TableSchema("root.a", "m", 1, (TAG, FIELD))


@pytest.mark.parametrize("name", ["root.plant", "sg", "таблица", "a-b_c.2026", "日本", "x" * NAME_BYTES_MAX])
def test_paths_of_words_are_accepted(name: str) -> None:
    """Words of any script that are joined by single dots name a storage group or a table."""
    assert names.check_storage_group(name) == name == names.check_table(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../../etc", "root..z", ".a", "a.", "a b", "a/b", "a\0b", "a\n", "Root", "É", "é" * 128]
    + ["x" * 70_000, "\ud800"],
)
def test_other_paths_are_refused(name: str) -> None:
    """The error contains the problem or the rule, whatever the name is."""
    for check in (names.check_storage_group, names.check_table):
        with pytest.raises(InvalidName) as refused:
            check(name)
        assert refused.value.next_step and len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["v", "temp (°c)", "a.b", "50%", "темп", "😀", "i̇", "x" * NAME_BYTES_MAX])
def test_printable_columns_are_accepted(name: str) -> None:
    """Headers of real files are accepted as they are, in lower case."""
    assert names.check_column(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " a",
        "a ",
        "a\0b",
        "a\tb",
        "a\nb",
        "\x7f",
        "\u200b",
        "\ue000",
        "$day",
        ".",
        "[0]",
        "time",
        "V",
        "x" * 256,
    ],
)
def test_other_columns_are_refused(name: str) -> None:
    """Unnamed, blank, invisible and reserved names are errors, not columns."""
    with pytest.raises(InvalidName):
        names.check_column(name)


@pytest.mark.parametrize(("one", "other"), [("ı", "i"), ("σ", "ς"), ("ſ", "s"), ("straße", "strasse")])
def test_columns_that_differ_in_case_alone_are_refused(one: str, other: str) -> None:
    """Spark considers them one column, so no table has both, not even if one is added later."""
    both = (Column(one, "DOUBLE", False), Column(other, "DOUBLE", False))
    with pytest.raises(InvalidName, match="are equal if case is ignored"):
        names.check_schema(TableSchema("sg", "t", 1, both))
    with pytest.raises(InvalidName, match="are equal if case is ignored"):
        names.check_schema(TableSchema("sg", "t", 2, both[1:]), TableSchema("sg", "t", 1, both[:1]))
    with pytest.raises(InvalidName, match="are equal if case is ignored"):
        names.check_columns([one, other])


@pytest.mark.parametrize(
    "columns",
    [
        (),
        (Column("v", "DECIMAL", False),),
        (Column("v", "INT64", True),),
        (FIELD, FIELD),
        tuple(Column(f"c{i}", "DOUBLE", False) for i in range(COLUMNS_MAX + 1)),
    ],
)
def test_tables_that_no_file_can_hold_are_refused(columns: tuple[Column, ...]) -> None:
    """The schema has no column, too many columns, one column twice, an unknown type, or a tag that is not
    text."""
    with pytest.raises(InvalidInput):
        names.check_schema(TableSchema("sg", "t", 1, columns))


def test_names_of_an_earlier_release_stay_but_no_further_one_is_accepted() -> None:
    """A table with a name that is refused now can still be extended, but only by valid names."""
    old = TableSchema("Old Group", "t", 1, (Column("a\tb", "DOUBLE", False),))
    names.check_schema(msgspec.structs.replace(old, columns=(*old.columns, FIELD)), old)
    with pytest.raises(InvalidName):
        names.check_schema(
            msgspec.structs.replace(old, columns=(*old.columns, Column("c\td", "DOUBLE", False))), old
        )


@pytest.mark.parametrize(
    "schema",
    [
        TableSchema("sg", "a\0b", 1, (FIELD,)),
        TableSchema("sg", "t", 1, ()),
        TableSchema("sg", "t", 1, (TAG, Column("", "DOUBLE", False))),
        TableSchema("sg", "t", 1, (Column("a\0b", "STRING", True), FIELD)),
        TableSchema("sg", "t", 1, (Column("v" * 1500, "DOUBLE", False),)),
    ],
)
def test_old_tables_that_no_file_can_hold_are_refused_too(schema: TableSchema) -> None:
    """Such a table accepts no row, whichever release created it; other tables of that release do."""
    with pytest.raises(InvalidName):
        names.check_fileable(schema)
    names.check_fileable(TableSchema("Old Group", "a b", 1, (Column("a\tb", "DOUBLE", False),)))


def test_the_meta_leader_applies_the_same_rule() -> None:
    """`PutSchema` of any client is refused with the text of the rule."""
    state = MetaState()
    nameless = TableSchema("root.a", "m", 1, (TAG, Column("", "DOUBLE", False)))
    refused = check_request(state, PutSchema(nameless))
    assert isinstance(refused, ErrorReply) and refused.code == InvalidName.code, refused
    assert check_request(state, PutSchema(SCHEMA)) is None


def test_a_schema_with_an_unnamed_column_is_refused() -> None:
    """The index that pandas writes with `to_csv()` would become a column without a name."""
    source = pa.schema([("", pa.int64()), ("time", pa.int64()), ("dev", pa.string())])
    with pytest.raises(InvalidName, match="without a name"):
        infer_schema(source, storage_group="sg", table="t", tags=["dev"])


def rows(times: list[int], devs: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {"time": pa.array(times, pa.int64()), "dev": pa.array(devs, pa.string()), "v": [1.0] * len(times)}
    )


@pytest.mark.parametrize(
    ("times", "devs", "row"),
    [
        ([0, TIME_MS_MAX + 1], ["a", "b"], 1),
        ([TIME_MS_MIN - 1, 0], ["a", "b"], 0),
        ([0, 1, 2], [None, "a", "a\0b"], 2),
        ([0, 1], ["\0", ""], 0),
        ([0, 1], ["a", "é" * (TAG_BYTES_MAX // 2) + "x"], 1),
    ],
)
def test_values_that_no_file_returns_are_refused(times: list[int], devs: list[str | None], row: int) -> None:
    """The error names the row, even in a slice, with columns in another order or as dictionaries."""
    batch = rows(times, devs)
    around = pa.Table.from_batches([rows([9], ["z\0"]), batch, rows([9], ["z\0"])]).combine_chunks()
    slanted = batch.select(["v", "dev", "time"]).set_column(1, "dev", batch.column(1).dictionary_encode())
    for form in (batch, around.slice(1, len(times)), slanted):
        with pytest.raises(InvalidInput) as refused:
            normalise(form, SCHEMA)
        assert refused.value.details["row"] == row, refused.value


def test_extreme_values_are_accepted() -> None:
    """All values up to the limits are accepted, and values outside a slice are not checked."""
    times, devs = [TIME_MS_MIN, TIME_MS_MAX, 0, 0], ["", "x" * TAG_BYTES_MAX, None, "\U0010fffd"]
    around = pa.Table.from_batches([rows([1 << 62], ["z\0"]), rows(times, devs)]).combine_chunks()
    assert normalise(around.slice(1), SCHEMA).column(1).to_pylist() == devs
    assert normalise(rows([], []), SCHEMA).num_rows == 0
    assert normalise(rows([1], [None]), SCHEMA).num_rows == 1


def test_the_bytes_of_a_null_are_not_checked() -> None:
    """A null slot may contain any bytes; they are not read as a tag."""
    text = pa.array(["a\0b", "c"])
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *text.buffers()[1:]])
    batch = pa.record_batch(
        [pa.array([1, 2], pa.int64()), hidden, pa.array([1.0, 2.0])], ["time", "dev", "v"]
    )
    check_values(batch, SCHEMA)
