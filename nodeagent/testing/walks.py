"""Random walks through the small worlds, far beyond the scopes of `exhaustive`.

A walk begins with a drawn group or operation, or with the start of a scope, and continues with some hundred
events, each drawn among all that may happen then. At the end of a walk through a Raft group all nodes hear
each other, and the group must come to rest (L1). A walk through a slot migration continues until nothing can
happen any more (L2).

`python -m nodeagent.testing.walks FIRST [COUNT]` prints one line per seed.
"""

import random
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from nodeagent.model.entries import Config
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import GroupChange, Ranges, SlotMove
from nodeagent.raft import Raft
from nodeagent.testing.exhaustive.explore import Broken
from nodeagent.testing.exhaustive.migration import MigrationBounds
from nodeagent.testing.exhaustive.migration_world import MigrationWorld
from nodeagent.testing.exhaustive.raft_group import RaftBounds
from nodeagent.testing.exhaustive.raft_member import Member
from nodeagent.testing.exhaustive.raft_world import RaftWorld, plenty
from nodeagent.testing.exhaustive.scopes import RAFT
from nodeagent.testing.nemesis import bounded
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import timed

WALKS = 25
"""Number of walks of each kind."""

NET_MAX = 16
"""Number of messages in transit beyond which one is dropped."""

STEPS = (40, 120, 250)
"""Lengths of a walk through a Raft group."""

SLOW = 0.1
"""How often a slow disk completes a write, relative to the others."""

HEAL_ROUNDS = 60

HANDOVER_EVENTS_MAX = 2_000
"""A walk with this many events counts as endless; the longest of a thousand walks had 432."""

Event = str


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    groups: int
    """Walks through a Raft group."""

    operations: int
    """Walks through a slot migration."""


# --- a Raft group ------------------------------------------------------------------------------------

VERBS = {
    "deliver": (12, 20),
    "repeat": (0, 2),
    "write": (0.3, 2, 12),
    "campaign": (0.3, 1, 2),
    "command": (0.5, 2, 4),
    "beat": (0, 1, 3),
    "read": (0, 1),
    "crash": (0, 0.3, 1),
    "install": (1, 4),
    "purge": (0, 0.5, 1),
    "change": (0, 1),
    "transfer": (0, 0.3),
    "settle": (0.2, 1, 2),
    "lose": (0, 0.3, 1),
    "drop": (0.3, 2),
    "fill": (0, 0.1, 1),
    "forget": (0, 1),
    "wipe": (0, 0.5),
}
"""Weights of each event; a walk draws one of them."""

LIMITS = {
    "nodeagent.raft.appends.APPEND_ENTRIES_MAX": (1, 2, 4096),
    "nodeagent.raft.appends.APPEND_BYTES_MAX": (1, 1 << 20),
    "nodeagent.raft.appends.SMALL_APPEND_BYTES": (0, 1 << 16),
    "nodeagent.raft.progress.INFLIGHT_APPENDS_MAX": (1, 2, 64),
}


def _configs(rng: random.Random, first: Config, spare: Sequence[NodeId]) -> tuple[Config, ...]:
    """Configs that the members may change to, in steps that lead back and forth."""
    found, voters, learners = [first], list(first.voters), list(first.learners)
    for _ in range(8):
        away = [n for n in (*first.voters, *spare) if n not in voters and n not in learners]
        what = rng.choice(["learn", "vote", "leave", "leave"])
        if what == "learn" and away:
            learners.append(rng.choice(away))
        elif what == "vote" and learners:
            voters.append(learners.pop(rng.randrange(len(learners))))
        elif what == "leave" and len(voters) > 2:
            voters.remove(rng.choice(voters))
        found.append(Config(tuple(sorted(voters)), tuple(sorted(learners))))
    return tuple(dict.fromkeys(found))


class RaftWalk:
    """A walk through a Raft group; `events` are what happened."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._weights = {verb: rng.choice(choices) for verb, choices in VERBS.items()}
        self._limits = {place: rng.choice(values) for place, values in LIMITS.items()}
        self.begun = ""
        """Name of the scope that it begins with; "" for a drawn group."""

        start = self._draw_group() if rng.random() < 0.5 else self._in_scope()
        self._start = self._world = start
        self._slow = rng.choice(sorted(start.nodes))
        """The node whose disk rarely completes a write."""

        self.events: list[Event] = []

    def _draw_group(self) -> RaftWorld:
        rng = self._rng
        names, spare = "abcde"[: rng.choice([3, 3, 3, 4, 5])], "xy"[: rng.choice([0, 0, 1, 2])]
        config = Config(tuple(names))
        bounds = RaftBounds(prompt=rng.random() < 0.5, configs=_configs(rng, config, spare))
        return RaftWorld(config, plenty(bounds), spare)

    def _in_scope(self) -> RaftWorld:
        scope = self._rng.choice(RAFT)
        self.begun = scope.name
        self._limits |= scope.limits
        with bounded(self._limits):
            world = scope.start()
        assert isinstance(world, RaftWorld)
        config, *_ = (m.raft.log.base.config for m in world.nodes.values() if m.raft.log.base.config.voters)
        bounds = replace(world.left, configs=world.left.configs or _configs(self._rng, config, ()))
        world.left, world.fresh = plenty(bounds), frozenset()
        return world

    def go(self, steps: int) -> None:
        """Raises `Broken` with a shortened list of events."""
        with bounded(self._limits):
            try:
                for _ in range(steps):
                    self._happens(self._drawn())
                self._come_to_rest()
            except AssertionError as error:
                events = shorter(self._start, self.events, str(error))
                begun = f'"{self.begun}"' if self.begun else ", ".join(self._world.nodes)
                raise Broken(f"{error}\nin {begun} with {self._limits}", events) from error

    def _happens(self, event: Event) -> None:
        self.events.append(event)
        self._world = self._world.after(event)

    def _drawn(self) -> Event:
        rng, world = self._rng, self._world
        if len(world.net) > NET_MAX:
            return f"drop {rng.randrange(len(world.net))}"
        by_verb: dict[str, list[Event]] = defaultdict(list)
        for event in world.events():
            if event != f"write {self._slow}" or rng.random() < SLOW:
                by_verb[event.partition(" ")[0]].append(event)
        names = sorted(world.nodes)
        by_verb["settle"] = [f"settle {' '.join(sorted(rng.sample(names, rng.randint(2, len(names)))))}"]
        by_verb["lose"] = ["lose", f"lose {rng.choice(names)}"]
        by_verb["fill"] = [f"{rng.choice(['fill', 'empty'])} {rng.choice(names)}"]
        if world.net:
            by_verb["drop"] = [f"drop {rng.randrange(len(world.net))}"]
        if outsiders := world.outsiders():
            by_verb["forget"] = [f"forget {rng.choice(outsiders)}"]
        if strangers := world.strangers():
            by_verb["wipe"] = [f"wipe {rng.choice(strangers)}"]
        verb = rng.choices(list(by_verb), [self._weights[v] for v in by_verb])[0]
        return rng.choice(by_verb[verb])

    def _come_to_rest(self) -> None:
        """Let all nodes hear each other and give every disk space; a leader must emerge and its members catch
        up."""
        names = sorted(self._world.nodes)
        for name in names:
            self._happens(f"empty {name}")
        for _ in range(HEAL_ROUNDS):
            self._happens(f"settle {' '.join(names)}")
            events = self._world.events()
            installs = [e for e in events if e.startswith("install")]
            led = max((m for m in self._world.nodes.values() if m.leads), key=_term_of, default=None)
            if installs:
                self._happens(self._rng.choice(installs))
            elif led is None:
                self._happens(self._rng.choice([e for e in events if e.startswith("campaign")]))
            elif self._is_at_rest(led.raft):
                return
            else:
                self._happens(f"beat {led.node}")
        found = [(m.node, str(m.raft.role), m.raft.term, m.applied_index) for m in self._world.nodes.values()]
        raise AssertionError(f"L1: {found}")

    def _is_at_rest(self, led: Raft) -> bool:
        members = [self._world.nodes[n] for n in led.log.config.members]
        return all(m.applied_index == led.log.last_index == led.commit for m in members) and led.can_change()


def _term_of(member: Member) -> int:
    return member.raft.term


def shorter(start: RaftWorld, events: Sequence[Event], what: str) -> Sequence[Event]:
    """A shorter list of events that breaks the same invariant; `events` itself if none can be left out."""
    length = len(events) // 2
    while length:
        at = 0
        while at < len(events):
            kept = _played(start, [*events[:at], *events[at + length :]], what.partition(":")[0])
            if kept:
                events = kept
            else:
                at += length
        length //= 2
    return events


def _played(start: RaftWorld, events: Sequence[Event], broken: str) -> list[Event]:
    """The events that could happen, if they broke this invariant; empty if they did not."""
    world, played = start, []
    for event in events:
        alike = _alike(world, event)
        if alike:
            played.append(alike)
            try:
                world = world.after(alike)
            except AssertionError as error:
                return played if str(error).startswith(broken) else []
    return []


def _alike(world: RaftWorld, event: Event) -> Event:
    """The same event among those that may happen now; "" if there is none. A message between the same nodes
    may have another position."""
    verb, *words = event.split()
    if verb in ("settle", "lose", "fill", "empty"):
        return event
    if verb == "drop":
        return event if int(words[0]) < len(world.net) else ""
    if verb == "forget":
        return event if words[0] in world.outsiders() else ""
    if verb == "wipe":
        return event if words[0] in world.strangers() else ""
    possible = world.events()
    if event in possible or verb not in ("deliver", "repeat"):
        return event if event in possible else ""
    return next((e for e in possible if e.split()[0] == verb and e.split()[2:] == words[1:]), "")


# --- a slot migration --------------------------------------------------------------------------------


def _moves(rng: random.Random) -> tuple[dict[GroupId, Ranges], list[SlotMove], list[GroupChange]]:
    groups: dict[GroupId, tuple[NodeId, ...]] = {
        g: tuple(sorted(rng.sample("abcd", rng.choice([1, 2, 2])))) for g in "wxyz"[: rng.randint(2, 4)]
    }
    later, changes = dict(groups), []
    for group, before in groups.items() if rng.random() < 0.6 else ():
        joins = rng.choice([n for n in "abcd" if n not in before])
        leaves = rng.choice(before) if rng.random() < 0.7 else None
        after = later[group] = tuple(sorted({*before, joins} - {leaves or ""}))
        changes.append(GroupChange(group, joins, leaves, before, after))
    owners: dict[GroupId, Ranges] = {}
    moves: list[SlotMove] = []
    for slot in range(rng.choice([1, 2, 2, 3])):
        source, target = rng.sample(sorted(groups), 2)
        slots = ((slot, slot + 1),)
        owners[source] = (*owners.get(source, ()), *slots)
        owners.setdefault(target, ())
        moves.append(SlotMove(slots, source, groups[source], target, later[target]))
    return owners, moves, [change for change in changes if change.group in owners]


def slots_walk(rng: random.Random) -> list[Event]:
    """Walk through a slot migration; raises `Broken` if an invariant breaks."""
    owners, moves, members = _moves(rng)
    bounds = MigrationBounds(
        writes=rng.choice([0, 2, 6]),
        deletes=rng.choice([0, 1, 3]),
        spoiled=rng.choice([0, 0, 0, 1]),
        stale=rng.choice([0, 2, 10]),
        again=rng.choice([0, 1, 4, 12]),
        cancels=rng.choice([0, 0, 1]),
        changes=rng.choice([0, 1, 1, 2]),
    )
    world = MigrationWorld(owners, moves, bounds, members)
    weights = {
        verb: rng.choice([0.05, 0.3, 1, 5])
        for verb in (
            *("tell", "apply", "act", "ready", "copy", "write", "again", "cancel", "change"),
            *("join", "send", "drop", "delete", "spoil"),
        )
    }
    events: list[Event] = []
    try:
        while (following := _next(rng, world, weights, events)) is not None:
            world = following
            assert len(events) < HANDOVER_EVENTS_MAX, f"L2: no end after {HANDOVER_EVENTS_MAX} events"
        world.rest()
    except AssertionError as error:
        raise Broken(str(error), events) from error
    return events


def _next(
    rng: random.Random, world: MigrationWorld, weights: Mapping[str, float], events: list[Event]
) -> MigrationWorld | None:
    """The world after an event that changes something; None if there is no such event."""
    ahead = world.events()
    by_chance = sorted(ahead, key=lambda e: rng.random() ** (1 / weights[e.partition(" ")[0]]), reverse=True)
    for event in by_chance:
        events.append(event)
        following = world.after(event)
        if following is not world:
            return following
        events.pop()
    return None


# --- a seed ------------------------------------------------------------------------------------------


def run(seed: int) -> Report:
    rng = random.Random(f"walks {seed}")
    events, trace = 0, 0
    for number in range(2 * WALKS):
        try:
            if number % 2:
                walk = RaftWalk(rng)
                walk.go(rng.choice(STEPS))
                happened = walk.events
            else:
                happened = slots_walk(rng)
        except AssertionError as error:
            why, _, rest = str(error).partition("\n")
            again = f"replay: python -m nodeagent.testing.walks {seed}"
            raise AssertionError(f"seed {seed}: {why}\n{again}\n{rest}") from error
        events += len(happened)
        trace = zlib.crc32("; ".join(happened).encode(), trace)
    return Report(seed, trace, events, WALKS, WALKS)


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)
