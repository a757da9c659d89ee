"""The replicas of this node, and its groups that do not run."""

from collections.abc import Collection, Iterator

from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.replica import Replica
from nodeagent.model.ids import META, GroupId


class Replicas:
    """Iterating gives those that run, that of the meta group first."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.data: dict[GroupId, DataReplica] = {}
        self.damaged: dict[GroupId, str] = {}
        """These do not run: they neither vote nor acknowledge, and nothing of them is removed."""

        self.unlogged: dict[GroupId, bool] = {}
        """Data groups with a directory that the log knows nothing of, and whether there is nothing in it."""

    def __iter__(self) -> Iterator[Replica]:
        if self.cluster.meta_replica is not None:
            yield self.cluster.meta_replica
        yield from self.data.values()

    def of(self, group: GroupId) -> Replica | None:
        return self.cluster.meta_replica if group == META else self.data.get(group)

    def in_turn(self, turn: int) -> list[Replica]:
        """The meta group, then the data groups: each turn another is first at what may be applied."""
        data: list[Replica] = list(self.data.values())
        if len(data) > 1:
            first = turn % len(data)
            data = data[first:] + data[:first]
        meta = self.cluster.meta_replica
        return data if meta is None else [meta, *data]

    @property
    def unsettled(self) -> Collection[GroupId]:
        """Groups with a directory that the log knows nothing of, while the meta state is too old to tell
        whether this node left them. What it left goes then by itself."""
        return () if self.cluster.is_current else self.unlogged.keys()
