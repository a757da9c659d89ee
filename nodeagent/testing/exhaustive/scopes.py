"""The scopes to explore: how each begins, and how much may happen then."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from nodeagent.model.entries import Config
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Ranges, SlotMove
from nodeagent.testing.exhaustive.explore import Explored, World, explore
from nodeagent.testing.exhaustive.migration import MigrationBounds
from nodeagent.testing.exhaustive.migration_world import MigrationWorld
from nodeagent.testing.exhaustive.raft_group import RaftBounds
from nodeagent.testing.exhaustive.raft_world import RaftWorld
from nodeagent.testing.nemesis import bounded

ABC = Config(("a", "b", "c"))
ABCD = Config(("a", "b", "c", "d"))
WITHOUT_ONE = (Config(("a", "c", "d")), Config(("b", "c", "d")))


@dataclass(frozen=True, slots=True)
class Scope:
    name: str
    steps: int
    """Approximate number of steps; far fewer would mean that the scope explores less than before."""

    start: Callable[[], World]
    """Raises `AssertionError` if an invariant is broken before the first event."""

    limits: Mapping[str, int] = field(default_factory=dict)
    """Values for limits in the code, by name."""


def _raft(
    bounds: RaftBounds, script: str = "", config: Config = ABC, others: tuple[NodeId, ...] = ()
) -> Callable[[], World]:
    """A world whose nodes `others` do not know the group yet; `script` as in `RaftWorld.begun`."""
    return lambda: RaftWorld(config, bounds, others).begun(script)


def _moving(bounds: MigrationBounds, *moves: tuple[GroupId, str, GroupId, str]) -> Callable[[], World]:
    """A world in which move number `i` moves slot `i` from a group with the given members (`ab`) to
    another."""
    owners: dict[GroupId, Ranges] = {}
    slot_moves: list[SlotMove] = []
    for slot, (source, givers, target, takers) in enumerate(moves):
        slots = ((slot, slot + 1),)
        owners[source] = (*owners.get(source, ()), *slots)
        owners.setdefault(target, ())
        slot_moves.append(SlotMove(slots, source, tuple(givers), target, tuple(takers)))
    return lambda: MigrationWorld(owners, slot_moves, bounds)


def _comes_back(name: str, how: str) -> Scope:
    """A scope in which b left and is a learner again with only the first entries; c received neither of these
    two changes."""
    configs = (
        Config(("a", "b", "c"), ("d",)),
        ABCD,
        Config(("a", "c", "d")),
        Config(("a", "c", "d"), ("b",)),
    )
    script = (
        "elect a b; settle a b c; change a 0; settle a b c d; command a; settle a b c d; change a 1; "
        f"settle a b d; lose c; change a 2; settle a d; lose b; {how}; change a 3; settle a d; "
        "hear b a; hear a b; hear b a; lose"
    )
    small = {
        "nodeagent.raft.appends.APPEND_ENTRIES_MAX": 2,
        "nodeagent.raft.progress.INFLIGHT_APPENDS_MAX": 1,
    }
    bounds = RaftBounds(campaigns=1, prompt=True, configs=configs)
    return Scope(name, 2_400, _raft(bounds, script, others=("d",)), small)


RAFT = (
    Scope("elections", 35_000, _raft(RaftBounds(campaigns=2, prompt=True, alike=ABC.voters))),
    Scope(
        "elections and lost writes",
        5_700,
        _raft(RaftBounds(campaigns=1, crashes=1), "elect a b; settle a b; lose"),
    ),
    Scope(
        "a command and another leader",
        1_400,
        _raft(RaftBounds(campaigns=1, commands=1, prompt=True), "elect a b; settle a b; lose"),
    ),
    Scope(
        "entries of older terms (thesis 3.6.2)",
        65_000,
        _raft(RaftBounds(campaigns=1, prompt=True), "elect a c; lose; elect b c; lose; elect a c"),
    ),
    Scope(
        "a longer log of an older term",
        27_000,
        _raft(
            RaftBounds(campaigns=1, prompt=True),
            "elect a c; command a; lose; elect b c; campaign a c",
        ),
    ),
    Scope(
        "conflicts on slow disks",
        31_000,
        _raft(
            RaftBounds(campaigns=1, crashes=1, commands=1),
            "elect a c; command a; lose; elect b c; lose",
        ),
    ),
    Scope(
        "writes overtaken by a new leader",
        4_900,
        _raft(RaftBounds(commands=1), "elect a c; command a; lose; elect b c"),
    ),
    Scope(
        "a write partly overtaken by another leader",
        460,
        _raft(
            RaftBounds(),
            "elect c d e; settle b c d e; command c; lose; beat c; hear a c; hear c a; hear a c; lose; "
            "elect b d e; lose c d e",
            Config(("a", "b", "c", "d", "e")),
        ),
    ),
    Scope(
        "appends without entries to a full disk",
        640,
        _raft(
            RaftBounds(beats=2, prompt=True),
            "elect c a; settle c a; command c; command c; lose; fill c; elect a b; settle a b; lose; "
            "beat a; settle a c",
        ),
        limits={"nodeagent.raft.appends.SMALL_APPEND_BYTES": 0},
    ),
    Scope(
        "a snapshot for a follower of a former leader",
        5_600,
        _raft(
            RaftBounds(beats=3, prompt=True),
            "elect c a; command c; command c; lose; elect a b; settle a b; command a; settle a b; "
            "purge a; lose; beat a",
        ),
    ),
    Scope(
        "a message that arrives twice",
        21_000,
        _raft(RaftBounds(campaigns=1, commands=1, repeats=1, prompt=True), "elect a b; settle a b; lose"),
    ),
    Scope(
        "purges",
        530,
        _raft(RaftBounds(purges=1, commands=1), "elect a b; settle a b c; lose"),
    ),
    Scope(
        "two voters at once",
        0,
        _raft(RaftBounds(changes=1, configs=(Config(("a",)),), prompt=True), "elect a b; settle a b c"),
    ),
    Scope(
        "one change after another",
        5_700,
        _raft(
            RaftBounds(
                changes=2, configs=(Config(("a", "b", "c"), ("d",)), ABCD, Config(("a", "c"))), prompt=True
            ),
            "elect a b; settle a b c; lose",
            others=("d",),
        ),
    ),
    Scope(
        "a change unknown to a former leader (Ongaro 2015)",
        2_400,
        _raft(
            RaftBounds(changes=1, configs=WITHOUT_ONE, prompt=True),
            "elect a b c; settle a b c d; change a 0; lose; elect b c d",
            ABCD,
        ),
    ),
    Scope(
        "a former leader under its own change (Ongaro 2015)",
        34_000,
        _raft(
            RaftBounds(campaigns=1, lapses=1, configs=WITHOUT_ONE, prompt=True),
            "elect a b c; settle a b c d; change a 0; lose; elect b c d; settle b c d; change b 1; lose a",
            ABCD,
        ),
    ),
    _comes_back("a member returns, and another does not know that it had left", "forget b"),
    _comes_back("a member returns on a new disk, and another does not know it", "wipe b"),
    Scope(
        "strong reads",
        32_000,
        _raft(RaftBounds(campaigns=1, reads=1, prompt=True), "elect a b; settle a b c; lose"),
    ),
    Scope(
        "reads at a new leader",
        9_700,
        _raft(
            RaftBounds(reads=1, prompt=True),
            "elect a b; settle a b c; command a; settle a b; lose; elect b c",
        ),
    ),
    Scope("a leadership transfer", 1_400, _raft(RaftBounds(transfers=1), "elect a b; settle a b c; lose")),
)

SLOTS = (
    Scope(
        "slots, outdated views and a cancel",
        820,
        _moving(MigrationBounds(stale=1, cancels=1), ("x", "a", "y", "b")),
    ),
    Scope("slots, under a writer", 930, _moving(MigrationBounds(writes=1), ("x", "a", "y", "b"))),
    Scope(
        "slots, duplicated commands",
        25_000,
        _moving(MigrationBounds(again=1, writes=1), ("x", "a", "y", "b")),
    ),
    Scope(
        "slots of one group to two groups",
        3_000,
        _moving(MigrationBounds(), ("x", "a", "y", "b"), ("x", "a", "z", "c")),
    ),
    Scope(
        "slots of two groups to one group",
        100_000,
        _moving(MigrationBounds(cancels=1), ("x", "a", "z", "c"), ("y", "b", "z", "c")),
    ),
    Scope("slots, members lag", 14_000, _moving(MigrationBounds(cancels=1), ("x", "ab", "y", "bc"))),
    Scope(
        "slots, members lag under a writer",
        109_000,
        _moving(MigrationBounds(writes=1), ("x", "ab", "y", "bc")),
    ),
    Scope(
        "slots, members lag and outdated views",
        115_000,
        _moving(MigrationBounds(stale=1), ("x", "ab", "y", "bc")),
    ),
)

SCOPES = {"raft": RAFT, "slots": SLOTS}
"""Scopes by world."""


def chosen(words: Collection[str]) -> list[Scope]:
    """Scopes whose world is one of `words` or whose name contains one; all scopes if there are no words."""
    return [
        scope
        for world, scopes in SCOPES.items()
        for scope in scopes
        if not words or world in words or any(word in scope.name for word in words)
    ]


def through(scope: Scope, steps_max: int | None = None) -> Explored:
    """Explore a scope; raises `Broken`, or `AssertionError` if an invariant is broken before the first
    event."""
    with bounded(dict(scope.limits)):
        return explore(scope.start(), steps_max)


def result_line(steps_max: int | None, name: str) -> str:
    """Explore the scope with this name; returns the results as one line."""
    found = through(next(s for s in chosen(()) if s.name == name), steps_max)
    speed = found.steps / max(found.seconds, 1e-3)
    left = "" if found.complete else ", INCOMPLETE"
    return (
        f"{name}: {found.states} states, {found.steps} steps, {found.longest} events at most, "
        f"{float(found.orders):.1e} orders, {found.seconds:.1f} s, {speed:.0f} steps/s{left}"
    )
