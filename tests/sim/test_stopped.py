"""A member cannot apply an entry that a newer release wrote."""

import msgspec
import pytest

from nodeagent.data import commands
from nodeagent.host.data_machine import DataMachine
from nodeagent.host.replica import Replica
from nodeagent.meta import commands as meta_commands
from nodeagent.model.entries import Entry
from nodeagent.model.ids import META
from nodeagent.model.requests import Reply
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.test_cases import formed

UNKNOWN = msgspec.msgpack.encode([99, "what the next release says"])
"""A command of a data group with a tag that no release knows."""


class Releases:
    """Nodes in `newer` know the command: it does nothing there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newer: set[str] = set()
        applying = ""
        plain, apply = commands.decode, DataMachine.apply_entries

        def decode(data: bytes) -> commands.Command:
            return commands.Opaque(data) if data == UNKNOWN and applying in self.newer else plain(data)

        def apply_entries(machine: DataMachine, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
            nonlocal applying
            applying = machine._context.effects.owner.node
            return apply(machine, first, entries)

        monkeypatch.setattr(commands, "decode", decode)
        monkeypatch.setattr(DataMachine, "apply_entries", apply_entries)

    def upgrade(self, node: SimNode) -> None:
        self.newer.add(node.node)
        node.stop(power=True)
        node.start()


def replicas(scenario: Scenario, group: str) -> dict[str, Replica]:
    found = ((n.node, n.host.replicas.of(group)) for n in scenario.sim.nodes.values() if n.alive)
    return {node: replica for node, replica in found if replica is not None}


def log_unknown(scenario: Scenario, group: str, command: bytes) -> int:
    """Let the group's leader log the command; return its index."""
    scenario.sim.may_stop = True
    leading = [n for n, r in replicas(scenario, group).items() if r.leads]
    index = replicas(scenario, group)[leading[0]].propose([command])
    scenario.sim.nodes[leading[0]].wake()
    assert index is not None
    return index


def stopped(scenario: Scenario, group: str) -> dict[str, str]:
    return {n: r.stopped for n, r in replicas(scenario, group).items() if r.stopped}


def a_group(scenario: Scenario) -> str:
    return next(
        g for n in scenario.sim.nodes.values() if n.alive for g, r in n.host.replicas.data.items() if r.leads
    )


def test_a_group_stops_at_an_unknown_command_and_continues_with_the_next_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All members are old: the group stops at the same entry after every restart, other groups and all
    processes continue, and with the release that knows the entry no acknowledged row is missing."""
    releases, scenario = Releases(monkeypatch), formed(41)
    group = a_group(scenario)
    members = set(replicas(scenario, group))
    index = log_unknown(scenario, group, UNKNOWN)
    scenario.until(lambda: set(stopped(scenario, group)) == members, "every member has stopped")
    others = {g for n in scenario.sim.nodes.values() if n.alive for g in n.host.replicas.data} - {group}
    before = {g: max(r.applied_index for r in replicas(scenario, g).values()) for g in others}
    for name in sorted(members):
        node = scenario.sim.nodes[name]
        node.stop(power=True)
        node.start()
        scenario.sim.pause(3_000)
    scenario.until(lambda: set(stopped(scenario, group)) == members, "they stopped again")
    assert all(f"entry {index}," in why for why in stopped(scenario, group).values())
    assert not any(r.leads for r in replicas(scenario, group).values())
    assert any(max(r.applied_index for r in replicas(scenario, g).values()) > before[g] for g in others)
    status = [
        g for g in scenario.sim.nodes[min(members)].host.status.of_node(0, 0).groups if g.group == group
    ]
    assert status[0].state == "stopped" and "upgrade" in status[0].hint and str(index) in status[0].error
    for name in sorted(members):
        releases.upgrade(scenario.sim.nodes[name])
    scenario.quiet()
    scenario.read_everything()


def test_members_of_the_next_release_continue_with_old_members_as_followers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One member of three is new. The old members store its entries and vote for it, so rows are acknowledged
    and survive its restart; once upgraded, the old members catch up from their own logs."""
    releases, scenario = Releases(monkeypatch), formed(42)
    group = a_group(scenario)
    newer = next(n for n, r in replicas(scenario, group).items() if r.leads)
    old = set(replicas(scenario, group)) - {newer}
    releases.newer.add(newer)
    index = log_unknown(scenario, group, UNKNOWN)
    scenario.until(lambda: set(stopped(scenario, group)) == old, "the old members have stopped")
    node = scenario.sim.nodes[newer]
    node.stop(power=True)
    node.start()
    replica = node.host.replicas.data[group]
    scenario.until(
        lambda: replica.leads and replica.applied_index > index + 20, "rows are acknowledged again"
    )
    assert set(stopped(scenario, group)) == old
    for name in sorted(old):
        releases.upgrade(scenario.sim.nodes[name])
    scenario.quiet()
    scenario.read_everything()


def test_the_meta_group_stops_at_an_unknown_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data groups continue with the known partition table; no process ends, before or after a restart."""
    scenario = formed(43)
    unknown = msgspec.msgpack.encode({"type": "NextRelease", "now": 1})
    index = log_unknown(scenario, META, unknown)
    everybody = {n.node for n in scenario.sim.nodes.values() if n.alive}
    scenario.until(lambda: set(stopped(scenario, META)) == everybody, "every member has stopped")
    group = a_group(scenario)
    before = max(r.applied_index for r in replicas(scenario, group).values())
    scenario.until(
        lambda: max(r.applied_index for r in replicas(scenario, group).values()) > before, "rows are applied"
    )
    plain = meta_commands.decode
    for name in sorted(everybody):
        scenario.sim.nodes[name].stop(power=True)
        scenario.sim.nodes[name].start()
    scenario.until(lambda: set(stopped(scenario, META)) == everybody, "they stopped again")
    assert all(f"entry {index}," in why for why in stopped(scenario, META).values())
    nothing = meta_commands.RecoveryCompleted(1, "nobody.1", "op-0")
    monkeypatch.setattr(meta_commands, "decode", lambda d: nothing if d == unknown else plain(d))
    for name in sorted(everybody):
        scenario.sim.nodes[name].stop(power=True)
        scenario.sim.nodes[name].start()
    scenario.quiet()
    scenario.read_everything()
