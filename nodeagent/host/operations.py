"""Carries out the next actions of `scaling` on this node, for its groups and for the meta group."""

from nodeagent.host.context import Context
from nodeagent.host.failpoints import Failpoints
from nodeagent.host.group_steps import GroupSteps
from nodeagent.host.leadership import Leadership
from nodeagent.host.lifecycle import Lifecycle
from nodeagent.host.meta_steps import MetaSteps
from nodeagent.host.replicas import Replicas
from nodeagent.host.reports import Reports
from nodeagent.host.slot_copier import SlotCopier
from nodeagent.host.writer import FileWriter
from nodeagent.model.ids import GroupId
from nodeagent.scaling import failpoints


class Operations:
    """Each call of `drive` takes one step of each part; all progress is in the operation's record."""

    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        lifecycle: Lifecycle,
        leadership: Leadership,
        writer: FileWriter,
    ) -> None:
        node, cluster = context.node, replicas.cluster
        self._node = node
        self._cluster = cluster
        self.failpoints = Failpoints()
        self.reports = Reports(cluster, self.failpoints)
        self.slot_copier = SlotCopier(
            node, context.incarnation, context.effects, replicas.data, self.reports.report
        )
        self._group_steps = GroupSteps(
            context, replicas, lifecycle, leadership, self.slot_copier, self.reports, writer
        )
        self._meta_steps = MetaSteps(context, cluster, leadership, self.reports, self.failpoints)

    def is_due(self) -> bool:
        """Whether something that the next step of a group waits for has happened since the last call."""
        return self._group_steps.is_due()

    def drive(self) -> None:
        cluster = self._cluster
        op = cluster.meta.operations.open()
        wanted: set[GroupId] = set()
        stopped = op is not None and failpoints.is_stopped(op, self.failpoints.points)
        self._group_steps.begin(op)
        if op is not None and not stopped:
            wanted = self._group_steps.drive(op)
        if cluster.applied and not stopped:
            image = cluster.meta.image
            mine = {g.group for g in image.groups.values() if self._node in g.members}
            self.slot_copier.drive(image.operations, wanted, mine)
        if cluster.is_current:
            self._group_steps.recover()
            self._group_steps.adopt_rest()
        if cluster.meta_replica is not None and cluster.meta_replica.leads:
            self._meta_steps.drive(cluster.meta_replica, op)
