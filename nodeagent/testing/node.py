"""A whole node of a simulated cluster: the real `Host` on a `Machine`."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.host.context import NodeRun
from nodeagent.host.found import fault_of, is_traceless, lost_meta, unsaid
from nodeagent.host.host import Host
from nodeagent.host.opening import Held, open_host
from nodeagent.host.replica import Replica
from nodeagent.host.saved import Saved
from nodeagent.log import Damage, NoSpace, Recovered
from nodeagent.log.identity import mark_damaged
from nodeagent.model.config import ClusterSettings, NodeConfig, RaftSettings, Seed
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.errors import Damaged
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import META, GroupId, NodeId, Owner
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import CheckStatus, Chunk, ErrorReply, FetchChunk, GetStatus, Reply, Request
from nodeagent.testing.machine import Machine
from nodeagent.testing.sim import Sim


class SimNode(Machine):
    """A machine that runs a whole `Host`."""

    host: Host

    def __init__(self, sim: "Sim[SimNode]", config: NodeConfig) -> None:
        super().__init__(sim, config.node)
        self.config = config
        self.holds: tuple[str, ...] = ()

    # --- life --------------------------------------------------------------------------------------

    def _open_host(self, recovered: Recovered) -> None:
        start = self.identity.start
        groups, unreadable = self._found(recovered)
        holding = {g for g in self.storage.groups() if any(self.storage.files.names(g).values())}
        lost = lost_meta(groups, holding)
        damaged = [*recovered.damaged, *unreadable, *([Damage(0, 0, META, 0, 0, lost)] if lost else [])]
        if self.identity.damaged:
            damaged.append(Damage(0, 0, "", 0, 0, self.identity.damaged))
        owner = Owner(self.node, self.incarnation, start)
        faults = [f for g, (log, payload) in groups.items() if (f := fault_of(g, log, payload, owner))]
        assert self.lossy or not (damaged or faults), (self.node, damaged, faults)
        self._sweep({} if damaged else groups, owner)
        life = NodeRun(
            self.config,
            self.incarnation,
            random.Random(self.sim.rng.getrandbits(64)),
            self.now,
            self.wall,
            start,
            self.build.levels,
            self.build.writer,
        )
        held = Held(
            groups,
            damaged,
            staged=self.storage.staging.operations(),
            holding=holding,
            starts=self.host.peers.starts.newest if self.life > 1 and hasattr(self, "host") else {},
            left=recovered.left,
            faults=self.storage.faults,
            imageless=self.storage.imageless,
        )
        self.host = open_host(life, held)
        unexplained = self.host.replicas.damaged.keys() - set(self.host.replicas.awaiting_meta_state)
        assert self.lossy or recovered.damaged or not unexplained, self.host.replicas.damaged
        self.host.operations.failpoints.may_set = True
        self.host.operations.failpoints.set(self.holds)
        self.sim.note(f"{self.node} starts, life {self.life}, groups {sorted(self.host.replicas.data)}")

    def _found(self, recovered: Recovered) -> "tuple[dict[str, tuple[_Found, bytes | None]], list[Damage]]":
        out: dict[str, tuple[_Found, bytes | None]] = {}
        unreadable: list[Damage] = []
        for group in sorted({*recovered.groups, *self.storage.groups()}):
            log = recovered.groups.get(group)
            found = _Found(log.base, log.hard, log.entries) if log else _Found()
            payload: bytes | None = None
            try:
                payload = self.storage.checkpoint(group)
            except Damaged as error:
                unreadable.append(Damage(0, 0, group, 0, 0, error.what))
            out[group] = (found, payload)
        return out, unreadable

    def _sweep(self, groups: "dict[str, tuple[_Found, bytes | None]]", owner: Owner) -> None:
        """Delete files of undamaged groups that their checkpoints do not name, as a starting node does."""
        self.later(self.upkeep_ms, self._upkeep)
        whole = {
            group: (log, payload)
            for group, (log, payload) in groups.items()
            if not is_traceless(log) and not fault_of(group, log, payload, owner)
        }
        try:
            self.write_log(unsaid(whole))
            self.sync_log()
        except NoSpace:
            self.durable.refused()
            return
        known: dict[str, dict[int, set[str]]] = {}
        for group in whole:
            files = self.saved(group)
            if files is not None:
                slots = known.setdefault(group, {})
                for meta in files:
                    slots.setdefault(meta.slot, set()).add(meta.name)
        self.storage.sweep(known)

    def saved(self, group: GroupId) -> list[FileMeta] | None:
        """Files that a data group's checkpoint on disk names; None if it has no checkpoint."""
        payload = self.storage.checkpoint(group)
        if payload is None or group == META:
            return None
        files = decode_checkpoint(msgspec.msgpack.decode(payload, type=Saved).state).files
        return sorted(files, key=lambda f: f.name)

    # --- what runs in it ---------------------------------------------------------------------------

    def replicas(self) -> Iterable[Replica]:
        return self.host.replicas

    def replica(self, group: GroupId) -> Replica | None:
        return self.host.replicas.of(group)

    def damage(self, group: GroupId) -> str:
        return self.host.replicas.damaged.get(group, "")

    # --- arrivals ----------------------------------------------------------------------------------

    def _membership_status(self, peer: NodeId) -> MembershipStatus:
        """The membership status of `peer` by its current incarnation; clients are always accepted."""
        source = self.sim.nodes.get(peer)
        if source is None:
            return MembershipStatus.MEMBER
        own = source.identity
        self.host.peers.starts.meet(source.incarnation, peer, own.start, own.nonces)
        self.host.peers.levels.meet(source.incarnation, source.build.levels)
        status = self.host.membership_status(peer, source.incarnation, self.now)
        is_retired = source.incarnation in self.host.cluster.meta.image.retired
        assert not (is_retired and status is MembershipStatus.MEMBER), (
            f"S13: {peer} was retired and is accepted"
        )
        if status is MembershipStatus.UNKNOWN:
            self.sim.unknown += 1
            self.wake()
        return status

    def on_raft(self, sender: NodeId, messages: list[Routed]) -> None:
        status = self._membership_status(sender)
        if status is MembershipStatus.RETIRED:
            self._refuse(sender)
        elif status is MembershipStatus.OLDER:
            older = self.host.peers.starts.older[self.sim.nodes[sender].incarnation]
            self.sim.carry(self.node, sender, lambda n: n.on_older_copy(older))
        elif status is MembershipStatus.MEMBER:
            self.host.on_raft(sender, messages, self.now)
            self.wake()

    def _refuse(self, peer: NodeId) -> str:
        """Tell a peer that its incarnation was retired; returns the reason."""
        why = f"the incarnation of {peer} was retired"
        if peer in self.sim.nodes:
            self.sim.carry(self.node, peer, lambda n: n.host.on_retired(why, n.now))
        return why

    def on_older_copy(self, why: str) -> None:
        """Handle the refusal of a peer that knows a newer start of this node's directory."""
        self.host.on_older_copy(why, self.now)
        if not self.identity.damaged:
            self.identity = mark_damaged(self.disk, self.identity, why)
        self.lossy = True
        self.wake()

    def serve(self, peer: NodeId, request: Request, answer: Callable[[Reply], None]) -> None:
        status = self._membership_status(peer)
        if status is MembershipStatus.OLDER:
            answer(ErrorReply("forbidden", f"{peer} runs on an older copy of its directory"))
            return
        if status is MembershipStatus.RETIRED:
            answer(ErrorReply("forbidden", self._refuse(peer)))
            return
        if status is MembershipStatus.UNKNOWN and not isinstance(request, CheckStatus):
            answer(ErrorReply("unavailable", f"{peer} is not known here"))
            return
        if isinstance(request, GetStatus):
            answer(self.host.status.of_node(self.now, self.wall))
            return
        if isinstance(request, FetchChunk):
            data = self.storage.read_chunk(request.snapshot, request.name, request.offset, request.length)
            answer(Chunk(data, len(data)))
            return
        self.host.on_request(self.token(answer), request, self.now, self.wall)
        self.wake()


@dataclass(frozen=True, slots=True)
class _Found:
    base: Base = Base(0, 0, Config())
    hard: HardState = HardState()
    entries: list = field(default_factory=list)  # type: ignore[type-arg]


def configs(names: list[NodeId], settings: ClusterSettings, seeds: int) -> list[NodeConfig]:
    """Node configurations: the first `seeds` nodes bootstrap, the others join. Node names are the
    addresses."""
    seed_list = tuple(Seed(n, n, 1) for n in names[:seeds])
    return [
        NodeConfig(
            node=name,
            host=name,
            port=1,
            http_port=2,
            seeds=seed_list,
            cluster=settings,
            join=i >= seeds,
            raft=RaftSettings(heartbeat_ms=50, election_timeout_ms=500),
            memtable_bytes_max=1 << 16,
            partition_bytes_max=1 << 14,
            idle_close_ms=1_500,
            compact_files_min=2,
            compact_files_min_in_change=4,
            compact_every_ms=400,
            compact_deletes_ms=1_000,
            expire_every_ms=700,
        )
        for i, name in enumerate(names)
    ]
