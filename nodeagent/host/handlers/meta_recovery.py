"""Force recovery of the meta group, whose majority is permanently lost: this node leads it from its journal.

The entry `RecoverMeta` precedes the new config in the same batch, so that it is durable with it. It retires
the lost nodes: no other node hears them any more, and if they come back they are told so.
"""

from nodeagent.host.context import Context
from nodeagent.host.handlers.changes import SILENT_TIMEOUTS
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.peers import Peers
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config
from nodeagent.model.features import Feature
from nodeagent.model.ids import META, NodeId
from nodeagent.model.requests import ErrorReply, RecoverMeta

UNCHANGED = "the meta group was not recovered"
AGAIN = "run `iotctl meta recover` again"


class MetaRecovery:
    def __init__(self, context: Context, peers: Peers) -> None:
        self._context = context
        self._effects = context.effects
        self._peers = peers

    def answer(self, token: int, replica: MetaReplica, request: RecoverMeta) -> None:
        refusal = self._check(replica, request)
        if refusal is not None:
            return self._effects.reply(token, refusal)
        command = meta.RecoverMeta(self._effects.wall, request.nodes, self._context.node, request.by)
        config = self._config(replica, request.nodes)
        if replica.proposals.force(config, request.term, meta.encode(command), token):
            self._effects.note(
                "meta_recovered", group=META, term=replica.raft.term, without=", ".join(request.nodes)
            )
        return None

    def _check(self, replica: MetaReplica, request: RecoverMeta) -> ErrorReply | None:
        me, nodes, log = self._context.node, request.nodes, replica.raft.log
        if replica.state.image.level < Feature.META_RECOVERY:
            what = f"{UNCHANGED}: this needs feature level {Feature.META_RECOVERY}"
            what += f", the cluster is at {replica.state.image.level}"
            return ErrorReply("refused", what, f"start {' or '.join(log.config.voters)}")
        if replica.installing or replica.rebasing:
            return ErrorReply("unavailable", f"{UNCHANGED}: the state of {me} is being replaced", AGAIN)
        if (log.last_term, log.last_index) != (request.last_term, request.last):
            what = (
                f"{UNCHANGED}: the journal of {me} ends at entry {log.last_index} of term {log.last_term} now"
            )
            return ErrorReply("refused", what, AGAIN)
        unknown = next((n for n in nodes if n not in replica.state.nodes), None)
        if unknown is not None or not nodes:
            why = f"the cluster has no node {unknown}" if unknown is not None else "no lost node is named"
            return ErrorReply("not_found", f"{UNCHANGED}: {why}", "iotctl cluster nodes")
        if sum(v not in nodes for v in log.config.voters) >= log.config.quorum:
            what = f"{UNCHANGED}: it has a majority without {', '.join(nodes)}"
            return ErrorReply("refused", what, "iotctl cluster remove-node NODE --dead")
        return next(filter(None, map(self._check_silent, nodes)), None)

    def _check_silent(self, node: NodeId) -> ErrorReply | None:
        if node == self._context.node:
            return ErrorReply("refused", f"{UNCHANGED}: {node} is not lost: it answers", f"omit {node}")
        limit_ms = SILENT_TIMEOUTS * self._context.config.raft.election_timeout_ms
        heard = self._peers.heard.get(node)
        if heard is None or self._effects.now - heard >= limit_ms:
            return None
        what = f"{UNCHANGED}: {node} is not lost: {self._context.node} heard from it"
        return ErrorReply("refused", f"{what} {self._effects.now - heard} ms ago", f"omit {node}")

    def _config(self, replica: MetaReplica, lost: tuple[NodeId, ...]) -> Config:
        """This node and the living voters vote; the other living nodes follow."""
        old = replica.raft.log.config
        me = self._context.node
        voters = (me, *(v for v in old.voters if v not in lost and v != me))
        return Config(voters, tuple(n for n in old.learners if n not in lost and n != me))
