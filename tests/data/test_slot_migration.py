"""Sessions of sealed slots reach the gaining group in parts, and its `Open` waits for all of them."""

from collections.abc import Iterator

import pytest

from nodeagent.data import commands as c
from nodeagent.data import slot_migration
from nodeagent.data.slot_migration import part_of, seal_result
from nodeagent.data.state import initial
from nodeagent.model.operation import SealResult
from nodeagent.model.requests import Written
from tests.data.test_state import Group, P, schema

SLOTS = ((3, 4),)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_migration, "SESSIONS_PART_BYTES", 8)


def sealed() -> tuple[Group, SealResult, list[c.OpenSessions]]:
    """A group that sealed slot 3 after one write, its report to the meta group, and the parts."""
    group = Group()
    group.open_session()
    group.write(sequence=1)
    group.do(c.Seal("op", 1, SLOTS))
    table = group.state.slots.sealed["op"].sessions
    result = seal_result("g.1", group.state.slots.sealed["op"].index, table)
    parts = [c.OpenSessions("op", "g.1", i, part_of(table, i)) for i in range(len(result.parts))]
    assert len(parts) > 3 and b"".join(p.data for p in parts) == table and not part_of(table, len(parts))
    return group, result, parts


def gaining() -> Group:
    target = Group(initial("h.1", ()))
    target.do(c.UseSchema(schema(P)))
    return target


def test_the_meta_group_gets_only_digests() -> None:
    _, result, parts = sealed()
    assert not result.sessions and result.parts == tuple(slot_migration.digest(p.data) for p in parts)


def test_an_open_has_no_effect_before_every_part_is_in_the_log() -> None:
    """This holds for every missing part, any order, repeats, and a restart of the gaining group."""
    source, result, parts = sealed()
    for lacking in range(len(parts)):
        target = gaining()
        for part in reversed(parts[:lacking] + parts[lacking + 1 :]):
            target.do(part)
        target.do(c.Open("op", 1, SLOTS, (result,)))
        assert not target.state.slots.open
        target = target.restart()
        assert [n for _, n, _ in target.state.slot_migration.staged.missing("op", (result,))] == [lacking]
        target.do(parts[lacking])
        target.do(parts[lacking])
        target.do(c.Open("op", 1, SLOTS, (result,)))
        assert target.state.slots.open == {3}
        assert target.write(sequence=1, session=source.session) == Written(0, duplicate=True)
        assert isinstance(target.write(sequence=2, session=source.session), Written)


def test_a_part_with_another_digest_does_not_count_and_is_replaced() -> None:
    _, result, parts = sealed()
    target = gaining()
    for part in (*parts, c.OpenSessions("op", "g.1", 1, b"x")):
        target.do(part)
    target.do(c.Open("op", 1, SLOTS, (result,)))
    assert not target.state.slots.open
    target.do(parts[1])
    target.do(c.Open("op", 1, SLOTS, (result,)))
    assert target.state.slots.open == {3}


def ends() -> Iterator[tuple[str, list[c.Command]]]:
    _, result, parts = sealed()
    yield "opened", [*parts, c.Open("op", 1, SLOTS, (result,))]
    yield "adopted", [*parts, c.Open("op", 1, SLOTS, (result,)), c.Adopt("op", SLOTS, (), ())]
    yield "cancelled", [parts[0], c.Unseal("op", 1)]


@pytest.mark.parametrize("how", ["opened", "adopted", "cancelled"])
def test_nothing_stays_staged_once_the_slots_are_open_or_the_change_ended(how: str) -> None:
    """The same holds for parts that an old leader logs late."""
    target = gaining()
    for command in dict(ends())[how]:
        target.do(command)
        target.finish()
    assert not target.state.slot_migration.staged.parts
    _, _, parts = sealed()
    target.do(parts[0])
    assert not target.state.slot_migration.staged.parts
