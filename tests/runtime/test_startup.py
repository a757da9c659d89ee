"""A start removes files that no manifest names, unless a manifest that could name them is missing."""

from pathlib import Path
from typing import Any, cast

import msgspec

from nodeagent.host.found import is_blank
from nodeagent.host.saved import Saved
from nodeagent.log import Damage, GroupLog, NoSpace
from nodeagent.log.identity import mark_damaged
from nodeagent.model.entries import HardState, LogOp, Rebase
from nodeagent.model.ids import META, GroupId
from nodeagent.runtime.startup import GroupState, _sweep, open_directory
from nodeagent.storage import layout
from nodeagent.testing.batches import append
from tests.host.opened import opened
from tests.host.test_host import CONFIG, ME, found, used


class Room:
    """The log and the files of a start; records their calls in order."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.is_full = is_full
        self.calls: list[object] = []

    def write(self, ops: list[LogOp]) -> None:
        if self.is_full:
            raise NoSpace
        self.calls.append(ops)

    def sync(self) -> None:
        self.calls.append("sync")

    def sweep(self, known: dict[GroupId, Any]) -> list[str]:
        self.calls.append(set(known))
        return []


def swept(groups: dict[GroupId, GroupState], *damaged: Damage, is_full: bool = False) -> list[object]:
    room = cast(Any, Room(is_full=is_full))
    _sweep(room, room, groups, list(damaged), ME)
    return cast(list[object], room.calls)


def counted(number: int) -> bytes:
    """A checkpoint with this number."""
    saved = msgspec.msgpack.decode(used(), type=Saved)
    base = msgspec.structs.replace(saved.base, checkpoint=number)
    return msgspec.msgpack.encode(msgspec.structs.replace(saved, base=base))


def test_files_are_swept_only_of_groups_whose_log_and_checkpoint_fit() -> None:
    """A group that is not in the log, or whose checkpoint is missing, older or unreadable, keeps every file;
    if damage may belong to any group, all groups do."""
    needs = GroupLog(msgspec.structs.replace(found(1).base, checkpoint=7), HardState(1), [])
    groups: dict[GroupId, GroupState] = {
        META: (found(1), used()),
        "a.1": (found(1), used()),
        "b.1": (found(0), used()),
        "c.1": (found(1), None),
        "d.1": (needs, counted(6)),
        "e.1": (found(1), used()),
    }
    groups |= {g: (log, _named(g, payload)) for g, (log, payload) in groups.items()}
    broken = Damage(0, 0, "e.1", 0, 0, "bad")
    assert swept(groups, broken)[-1] == {"a.1"}
    assert swept(groups, broken, Damage(0, 0, "", 0, 0, "bad")) == []


def test_a_checkpoint_of_another_release_keeps_its_files_and_stops_no_other() -> None:
    """This holds even if the group is not in the log."""
    saved = msgspec.msgpack.decode(used(), type=Saved)
    foreign = msgspec.structs.replace(saved, state=msgspec.msgpack.encode({"applied": "x"}), group="b.1")
    payload = msgspec.msgpack.encode(foreign)
    groups: dict[GroupId, GroupState] = {"a.1": (found(1), used()), "b.1": (found(1), payload)}
    assert swept(groups)[-1] == {"a.1"}
    assert not is_blank(payload)
    for log in (found(1), found(0)):
        host = opened(CONFIG, groups | {"b.1": (log, payload)})
        assert set(host.replicas.data) == {"a.1"} and "b.1" in host.replicas.damaged


def _named(group: GroupId, payload: bytes | None) -> bytes | None:
    if payload is None:
        return None
    saved = msgspec.msgpack.decode(payload, type=Saved)
    return msgspec.msgpack.encode(msgspec.structs.replace(saved, group=group))


def test_damage_outside_the_log_is_reported_without_a_log_position(tmp_path: Path) -> None:
    """This is an unreadable checkpoint, a missing meta group, or a directory that its node recorded as an
    older copy: the node must not vote after a restart either."""
    mine = tmp_path / "node.yaml"
    mine.write_text(
        "node: a\nhost: 127.0.0.1\nport: 9101\nhttp_port: 9201\ncluster:\n  name: plant\n"
        "seeds:\n  - {node: a, host: 127.0.0.1, port: 9101}\n"
    )
    opened = open_directory(tmp_path)
    assert opened.damaged == []
    opened.data.mkdirs(layout.group_dir("b.1"))
    opened.data.write_atomic(layout.checkpoint_path("b.1"), b"rot")
    mark_damaged(opened.home, opened.identity, "an older copy")
    opened.log.write([append("c.1", 1, 1)])
    opened.log.close()
    opened.home.unlock()
    again = open_directory(tmp_path)
    assert [d.group for d in again.damaged] == ["b.1", META, ""]
    _, lost, older = again.damaged
    assert older.message == "an older copy" and "data/groups holds c.1" in lost.message
    assert all(d == Damage(0, 0, d.group, 0, 0, d.message) and d.text for d in again.damaged)
    again.log.close()
    again.home.unlock()


def test_the_needed_checkpoint_is_logged_before_files_are_swept() -> None:
    """Durably: otherwise the next start would accept the previous checkpoint, which names removed files."""
    ops, synced, known = swept({"a.1": (found(1), counted(3))})
    assert [op.base.checkpoint for op in cast(list[Rebase], ops)] == [3]
    assert synced == "sync" and known == {"a.1"}
    assert swept({"a.1": (found(1), counted(3))}, is_full=True) == []
