"""What the leader of the meta group does on its own: it changes the members, and ends what waits too long."""

from functools import partial

from nodeagent.host.clocks import Clocks
from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.host.failpoints import Failpoints
from nodeagent.host.leadership import Leadership
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.reports import Reports
from nodeagent.meta import commands as meta
from nodeagent.meta.nodes import DEAD
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import Operation, Stage
from nodeagent.scaling import failpoints, membership

SEAL_TIMEOUT_MS = 30_000
PLANNED_TIMEOUT_MS = 60_000
"""A newcomer that never follows the meta log must not block other changes."""


class MetaSteps:
    """`drive` runs on the leader. Times are by the leader's own clock, except for holds, which may last
    days."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        leadership: Leadership,
        reports: Reports,
        failpoints: Failpoints,
    ) -> None:
        self._node = context.node
        self._effects = context.effects
        self._clocks: Clocks = context.clocks
        self._cluster = cluster
        self._leadership = leadership
        self._reports = reports
        self._failpoints = failpoints
        self._waiting_since: tuple[str, Stage, int] = ("", Stage.DONE, 0)
        self._lease_since: tuple[str, int, int] = ("", 0, 0)
        """(operation, serial, when this leader first saw it)"""

        self._lock_since: tuple[int, int] = (0, 0)
        """(index of the last renewal, when this leader first saw it)"""

    def drive(self, replica: MetaReplica, op: Operation | None) -> None:
        cluster = self._cluster
        if not replica.raft.can_change() or replica.applied_index < replica.led_from or not cluster.id:
            return
        self._watch_lock(replica)
        step = self._member_step(replica, op)
        if isinstance(step, membership.Change):
            try:
                replica.raft.change(step.config, self._effects.now)
            except NodeAgentError as error:
                self._effects.note("reconfigure_later", group="meta", why=error.what)
            return
        if isinstance(step, membership.Transfer):
            self._leadership.transfer(replica, step.target)
            return
        if op is not None and failpoints.is_stopped(op, self._failpoints.points):
            return
        if op is not None and not op.meta_ready and _is_ready(replica, op):
            self._reports.report(meta.MetaReady(cluster.record_now, op.id))
        self._watch_stage(op)
        self._watch_lease(op)
        self._watch_hold(replica, op)

    def _member_step(
        self, replica: MetaReplica, op: Operation | None
    ) -> membership.Change | membership.Transfer | None:
        """The next change of the meta group's members."""
        image = self._cluster.meta.image
        assert image.settings is not None
        unfit = {n for n, r in image.nodes.items() if r.state == DEAD}
        if op is not None and op.leaving is not None:
            unfit.add(op.leaving)
        return membership.meta_step(
            replica.raft.log.config,
            set(image.nodes),
            unfit,
            {n: r.zone for n, r in image.nodes.items()},
            voters_max=image.settings.meta_voters,
            me=self._node,
            caught_up=partial(self._leadership.may_take_over, replica),
        )

    def _watch_stage(self, op: Operation | None) -> None:
        """Cancel an operation whose stage takes too long: one sick node must not keep slots closed or block
        the next change."""
        limits = {Stage.PLANNED: PLANNED_TIMEOUT_MS, Stage.SEALED: SEAL_TIMEOUT_MS}
        if op is None or op.stage not in limits or self._failpoints.points:
            return
        if self._waiting_since[:2] != (op.id, op.stage):
            self._waiting_since = (op.id, op.stage, self._effects.now)
        elif self._effects.now - self._waiting_since[2] > limits[op.stage]:
            late = op.created_group if op.meta_ready and op.created_group else op.node
            missing = sorted(set(op.losing) - set(op.sealed)) if op.stage is Stage.SEALED else [late]
            self._reports.report(
                meta.ControlOperation(
                    self._cluster.record_now,
                    op.id,
                    "cancel",
                    f"{op.stage.name.lower()} timeout",
                    report=f"not ready within {limits[op.stage]} ms: {', '.join(missing)}",
                )
            )

    def _watch_lease(self, op: Operation | None) -> None:
        """End a lease that its owner does not renew, by this leader's own clock."""
        if op is None or op.lease is None:
            return
        if self._lease_since[:2] != (op.id, op.lease.serial):
            self._lease_since = (op.id, op.lease.serial, self._effects.now)
        elif self._effects.now - self._lease_since[2] > op.lease.ttl_ms:
            lapsed = str(op.lease.serial)
            now = self._cluster.record_now
            self._reports.report(meta.ControlOperation(now, op.id, "unlease", "", report=lapsed))

    def _watch_lock(self, replica: MetaReplica) -> None:
        """End the cluster's lock if its owner does not renew it, as for a lease."""
        lock, now = self._cluster.meta.image.lock, self._effects.now
        renewed = lock.renewed if lock is not None else 0
        if renewed != self._lock_since[0]:
            self._lock_since = (renewed, now)
        elif lock is not None and now - self._lock_since[1] > lock.ttl_ms:
            self._lock_since = (renewed, now)
            lapsed = meta.DropLock(self._cluster.record_now, lock.serial, "", "it lapsed", renewed)
            replica.propose([meta.encode(lapsed)])

    def _watch_hold(self, replica: MetaReplica, op: Operation | None) -> None:
        """End a hold by the voters' wall clocks: a hold of days must survive every change of leader, and no
        single clock may end it."""
        if op is None or not op.is_held or not op.held_since_ms:
            return
        passed = self._clocks.passed(replica.raft.log.config.voters)
        if passed is not None and passed >= op.held_since_ms + op.options.hold_release_ms:
            now = self._cluster.record_now
            self._reports.report(meta.ControlOperation(now, op.id, "release", "--hold-release has passed"))


def _is_ready(replica: MetaReplica, op: Operation) -> bool:
    """Whether the joining node follows the meta group, and the leaving node no longer votes."""
    config = replica.raft.log.config
    if op.joining is not None and not (op.joining in config.members and replica.raft.caught_up(op.joining)):
        return False
    return op.leaving not in config.voters
