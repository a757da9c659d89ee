"""Snapshots of one group that this node pulls from its leader and installs."""

from collections.abc import Callable

from nodeagent.host.group_context import GroupContext
from nodeagent.host.log_start import LogStart
from nodeagent.host.saved import read_saved
from nodeagent.host.state_machine import StateMachine
from nodeagent.model.entries import Rebase
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import DropStaging, Failed, Installed, InstallSnapshot, JobResult, install_area
from nodeagent.model.raft_messages import SnapshotOffer
from nodeagent.model.requests import CheckFiles

INSTALL_KEEP_MS = 10_000
"""How long the files of a failed pull are kept: the next pull of the same snapshot continues with them."""


class Installs:
    """
    Args:
        stop: stops the replica at an entry, for a reason (`Replica.stop`).
    """

    def __init__(
        self,
        context: GroupContext,
        machine: StateMachine,
        log_start: LogStart,
        stop: Callable[[int, str], None],
    ) -> None:
        self._context = context
        self._condition = context.condition
        self._machine = machine
        self._log_start = log_start
        self._stop = stop

    def is_in(self, area: str) -> bool:
        """Whether the files of a snapshot arrive in this staging area now."""
        snapshot = self._condition.installing
        return snapshot is not None and install_area(snapshot) == area

    def take(self, source: NodeId, offer: SnapshotOffer) -> None:
        """Pull the snapshot that the leader offers; an offer that is ignored comes again."""
        context, condition = self._context, self._condition
        if condition.installing is not None or offer.base.index < context.raft.log.base.index:
            return
        if context.raft.room:
            return  # its files would fill the disk
        if context.jobs.is_running or context.leads or condition.is_unlogged:
            return  # the jobs on the old state's files must end first
        condition.installing = offer.snapshot
        context.effects.note("install_begins", group=context.group, source=source, base=offer.base.index)
        job = InstallSnapshot(context.group, source, offer.snapshot)
        context.jobs.run(job, lambda r: self._on_pulled(source, offer.snapshot, r))

    def _on_pulled(self, source: NodeId, snapshot: str, result: JobResult) -> None:
        condition = self._condition
        if isinstance(result, Installed) and not condition.removed and not self._context.leads:
            self._install(snapshot, result)
        else:
            self._fail(source, snapshot, result)
        self._machine.on_pulled()

    def _fail(self, source: NodeId, snapshot: str, result: JobResult) -> None:
        context = self._context
        self._condition.installing = None
        context.effects.later(INSTALL_KEEP_MS, lambda: self._drop_pulled(snapshot))
        what = result.what if isinstance(result, Failed) else "no longer needed"
        if isinstance(result, Failed) and result.file:  # the source hashes its file and finds the damage
            context.effects.call(source, CheckFiles(context.group, (), (result.file,)), lambda _: None)
        context.effects.note("install_failed", group=context.group, why=what)

    def _install(self, snapshot: str, result: Installed) -> None:
        """Checkpoint and files are durable: now the log may begin where they end.

        Until its new beginning is durable too, no append is accepted and nothing is applied, so that the log
        on disk and the log in memory agree on what follows the base.
        """
        context, condition = self._context, self._condition
        raft = context.raft
        saved = read_saved(result.payload)
        assert saved.base.index >= raft.log.base.index, (context.group, saved.base, raft.log.base)
        keep = raft.log.term(saved.base.index) == saved.base.term
        context.proposals.refuse_all("outcome_unknown", f"leadership of {context.group} was lost")
        self._log_start.reset()
        try:
            self._machine.restore(saved.state, saved.base.index)
        except Exception as error:  # the sender's release wrote what this release cannot read
            condition.installing = None
            self._drop_pulled(snapshot)
            return self._stop(saved.base.index, f"the state {type(error).__name__}: {error}")
        condition.rebasing = True

        def rebased() -> None:
            condition.installing = None
            condition.rebasing = False
            self._drop_pulled(snapshot)
            raft.installed(saved.base, saved.base.index, context.effects.now)

        context.outbox.persist(context.group, [Rebase(context.group, saved.base, keep)], rebased)
        context.effects.note(
            "installed", group=context.group, base=saved.base.index, received=result.bytes_received
        )
        return None

    def _drop_pulled(self, snapshot: str) -> None:
        """Remove the staged files of the pull, unless the same snapshot is being pulled now: that pull
        continues with them."""
        area = install_area(snapshot)
        self._context.effects.remove(DropStaging(area), still=lambda: self._condition.installing != snapshot)
