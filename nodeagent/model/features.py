"""Feature levels: what all nodes of a cluster have agreed to log, send and store.

A node reads what any level up to its newest allows. It logs, sends and stores what a level added only once
the cluster is at that level: until then other nodes may run the previous release, and any node may go back to
it. An entry of the meta group raises the level once every node supports the new level; the level never falls.

Each addition to what is logged, sent or stored gets a member of `Feature`, unless nodes of the previous
release can ignore it without harm (a field of a status).
"""

from enum import IntEnum

import msgspec

FIRST = 1
"""The level of releases that name no level (0.1.0)."""


class Feature(IntEnum):
    """Each addition, with the level that added it."""

    AUDIT_CHAIN = 2
    """The meta state has the number of its first audit line, and a digest of the lines before it."""

    FILE_WRITER = 2
    """Entries that make TsFiles name the TsFile library that their bytes depend on."""

    IMAGES = 2
    """The meta state is saved and sent as an image (`model.image_format`)."""

    META_RECOVERY = 2
    """An entry retires the nodes with which the meta group lost its majority."""

    REASONS = 2
    """A drain says whether a rolling restart asked for it; the error of an operation names its group."""

    RELAY = 2
    """Followers of the meta group send committed entries to learners (`raft.relay`)."""

    RECOVERY_IN_CHANGE = 2
    """An entry forces the recovery of data groups while a change is open."""

    TTL_IF_NEW = 2
    """An entry sets the TTL of a table only if it creates the table."""

    UNFINISHED_RUNS = 2
    """An entry that begins a playbook run is refused rather than dropping an unfinished run."""

    ZONES = 2
    """The meta state has the zones of the nodes, over which the voters of the meta group are spread."""


class Levels(msgspec.Struct, frozen=True):
    """The levels that a release supports, from `oldest` to `newest`, both included."""

    oldest: int
    newest: int

    def __contains__(self, level: int) -> bool:
        return self.oldest <= level <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN = Levels(FIRST, max(Feature, default=FIRST))
"""The levels that this release supports."""


def refusal(node: str, levels: Levels, level: int) -> str:
    """Why a node that supports `levels` may not be in a cluster at `level` (0: not known); "" if it may."""
    if not level or level in levels:
        return ""
    return f"the cluster is at feature level {level}, but {node} supports {levels}"


def advice(levels: Levels, level: int) -> str:
    """The next step after a refusal."""
    if level > levels.newest:
        return "install the release that the other nodes run: iotctl cluster upgrade"
    return (
        "install the previous release on that node, then raise the feature level: "
        "iotctl cluster finalize-upgrade"
    )
