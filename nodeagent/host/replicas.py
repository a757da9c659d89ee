"""The replicas of this node, and its groups that do not run."""

from collections.abc import Collection, Iterator

from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.replica import Replica
from nodeagent.model.ids import META, GroupId


class Replicas:
    """Iterates over the running replicas, the meta group's first."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.data: dict[GroupId, DataReplica] = {}
        self.damaged: dict[GroupId, str] = {}
        """Groups that do not run here, and why: they neither vote nor acknowledge, and no file is removed."""

        self.unlogged: dict[GroupId, bool] = {}
        """Data groups with a directory but no record in the log, and whether the directory is empty."""

    def __iter__(self) -> Iterator[Replica]:
        if self.cluster.meta_replica is not None:
            yield self.cluster.meta_replica
        yield from self.data.values()

    def of(self, group: GroupId) -> Replica | None:
        return self.cluster.meta_replica if group == META else self.data.get(group)

    def in_turn(self, turn: int) -> list[Replica]:
        """The meta group, then the data groups; each turn another data group is first to use the budget."""
        data: list[Replica] = list(self.data.values())
        if len(data) > 1:
            first = turn % len(data)
            data = data[first:] + data[:first]
        meta = self.cluster.meta_replica
        return data if meta is None else [meta, *data]

    @property
    def awaiting_meta_state(self) -> Collection[GroupId]:
        """Groups with a directory but no record in the log, while the meta state is too old to say whether
        this node left them. Directories of groups that it left are removed automatically later."""
        return () if self.cluster.is_current else self.unlogged.keys()
