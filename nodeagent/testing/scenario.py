"""One seeded run of a whole cluster: bootstrap, writers and readers, an add and a remove under faults.

Every third seed also moves slots between the groups at the end. No random number decides this, because one
more draw would change the runs of all seeds.

`python -m nodeagent.testing.scenario FIRST [COUNT]` prints one line per seed.
"""

import msgspec

from nodeagent.model import requests as q
from nodeagent.model.requests import OperationReply
from nodeagent.testing.checks import check_converged
from nodeagent.testing.node import SimNode
from nodeagent.testing.operated import OperatedCluster
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.simulated import LIMIT_MS
from nodeagent.testing.workload import EXPIRING


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    simulated_ms: int
    writes: int
    reads: int
    kills: int
    operations: list[str]
    longest_write_ms: int
    compactions: int
    """Compactions on all members."""

    expired: int
    """Rows observed to have expired by their TTL."""


class Scenario(OperatedCluster):
    """One seeded run: adds and removes nodes, waits for the operations, and brings the cluster to rest."""

    rest_ms = LIMIT_MS
    """Time limit for flushing and merging all files at the end."""

    # --- steps -------------------------------------------------------------------------------------

    def begin(self, *, reads: bool = True) -> None:
        """Form the cluster and start the writers and, with `reads`, the reader."""
        self.form()
        self.schemas()
        for writer in self.writers:
            writer.start()
        self.widener.start()
        if reads:
            self.reader.start()

    def harass(self, names: list[str], operation: str) -> None:
        """Cause faults of nodes, disks and the network at random times while the operation is open."""
        rng = self.sim.rng
        for _ in range(rng.randint(1, 4)):
            self.sim.pause(rng.randint(10, 1500))
            if self.stage(operation) in ("DONE", "CANCELLED"):
                return
            if rng.random() < 0.5:
                self.sim.faults.drop = rng.choice([0, 0.02, 0.1])
                self.sim.faults.duplicate = rng.choice([0, 0.05])
                self.sim.faults.delay_ms = rng.choice([(1, 3), (1, 30), (5, 80)])
                self.sim.faults.sync_ms = rng.choice([(1, 3), (1, 40)])
                self.sim.faults.job_ms = rng.choice([(1, 10), (1, 10), (20, 900)])
                self.sim.faults.compact_ms = rng.choice([None, (500, 4_000)])
            if rng.random() < 0.3:
                self.cut(names)
            if rng.random() < 0.3:
                self.sim.nodes[rng.choice(names)].fill_disk()
            if rng.random() < 0.3:
                self.sim.nodes[rng.choice(names)].cut_power_soon()
            if rng.random() < 0.2:
                for name in names:  # the whole cluster loses power
                    self.kill(name, rng.randint(50, 3000), power=True)
            if all(self.sim.nodes[n].alive for n in names):
                self.kill(rng.choice(names), rng.randint(50, 4000), power=rng.random() < 0.6)

    def finish(self, operation: str, *, cancelled: bool = False) -> bool:
        """End all faults and wait for the end of the operation; returns whether it was done rather than
        cancelled."""
        self.heal()
        ends = ("DONE", "CANCELLED") if cancelled else ("DONE",)
        self.until(
            lambda: (
                self.stage(operation) in ends and all(n.alive for n in self._members() if n not in self.dead)
            ),
            f"{operation} has ended",
        )
        done = self.stage(operation) == "DONE"
        if not done:
            self.history.forget_moves(operation)
        return done

    def maybe_cancel(self, operation: str) -> bool:
        """Cancel at a random time, which may be too late; returns whether the change was done
        nevertheless."""
        rng = self.sim.rng
        self.sim.pause(rng.randint(0, 400))
        if rng.random() < 0.3:
            self.kill(rng.choice(list(self.sim.nodes)), rng.randint(50, 2000), power=True)
        self.request(q.ControlOperation(operation, "cancel", "sim"), OperationReply)
        return self.finish(operation, cancelled=True)

    def add_plainly(self, newcomer: str) -> None:
        self.sim.nodes[newcomer].start()
        self.finish(self.change("add-node", newcomer))

    def add(self, newcomer: str) -> None:
        """Add a node, often after a cancelled attempt."""
        self.sim.nodes[newcomer].start()
        self.sim.pause(self.sim.rng.randint(0, 700))
        for _ in range(self.sim.rng.choice([0, 1, 1, 2])):
            if self.maybe_cancel(self.change("add-node", newcomer)):
                return
        operation = self.change("add-node", newcomer)
        self.harass(self._names(), operation)
        self.finish(operation)

    def remove(self) -> None:
        leaver = self.sim.rng.choice(self._names())
        if self.sim.rng.random() < 0.3 and self.maybe_cancel(self.change("remove-node", leaver)):
            self.sim.nodes[leaver].alive = False
            return
        operation = self.change("remove-node", leaver)
        self.harass(self._names(), operation)
        self.finish(operation)
        self.sim.nodes[leaver].alive = False

    def rebalance(self) -> None:
        for _ in range(self.sim.rng.choice([0, 1])):
            self.maybe_cancel(self.move_slots())
        operation = self.move_slots()
        self.harass(self._names(), operation)
        self.finish(operation)

    def quiet(self) -> None:
        """Stop the clients and wait until all replicas are at rest."""
        for writer in self.writers:
            writer.stopping = True
        self.reader.stopping = self.widener.stopping = True
        self.until(lambda: all(w.idle for w in self.writers), "every write is acknowledged")
        self.until(self._at_rest, "every replica has flushed and merged its files", self.rest_ms)
        self.until(lambda: not any(self._staged(n) for n in self._members()), "staging is empty")
        self.until(lambda: not any(n.unanswered for n in self._members()), "every request is answered")
        self.sim.pause(2_000)

    def _staged(self, node: SimNode) -> bool:
        return bool(node.storage.staging.operations())

    def _at_rest(self) -> bool:
        return all(
            not r.state.rows.slot_of
            and not r.state.closes.pending
            and not r.state.adoptions.waiting
            and not r.state.compactions.active
            and not r.removals.is_pending
            and not (r.leads and r.state.files.changed)
            and not any(f.partition.storage_group == EXPIRING for f in r.state.files.manifest.files())
            and not r.state.slots.sealed
            and r.applied_index == r.raft.log.last_index == r.raft.commit
            for n in self._members()
            for r in n.host.replicas.data.values()
        )

    def read_everything(self) -> None:
        self.view.refresh()
        left = self.reader.partitions()
        done: list[bool] = []
        for group, week in left:
            self.reader.read(group, week, done.append, retry=True)
        self.until(lambda: len(done) == len(left), "every partition can be read")

    # --- the run -----------------------------------------------------------------------------------

    def run(self) -> Report:
        self.begin()
        self.sim.faults.duplicate = 0.05
        self.sim.faults.sync_ms = self.sim.rng.choice([(1, 3), (1, 60)])
        self.sim.faults.job_ms = self.sim.rng.choice([(1, 10), (1, 200), (50, 900)])
        self.sim.pause(self.sim.rng.randint(500, 4000))
        self.add(self.newcomers[0])
        self.remove()
        if self.sim.rng.random() < 0.3:
            self.add(self.newcomers[1])
        if self.seed % 3 == 1:
            self.rebalance()
        self.quiet()
        check_converged(self.sim)
        self.read_everything()
        return Report(
            self.seed,
            self.sim.trace,
            self.sim.events,
            self.sim.now,
            self.history.writes,
            self.history.reads,
            self.kills,
            self.operations,
            self.history.longest_gap_ms,
            self.sim.jobs["CompactFiles"],
            len(self.history.expired),
        )


def run(seed: int) -> Report:
    """Run a seed."""
    scenario = Scenario(seed)
    with replayable(seed, f"nodeagent.testing.scenario {seed}", scenario.sim):
        return scenario.run()


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)
