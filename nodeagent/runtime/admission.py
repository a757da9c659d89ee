"""This node's hello, and which peers it admits."""

from collections.abc import Callable

from nodeagent.log.identity import NodeFile
from nodeagent.model.errors import Forbidden, retired_sentence
from nodeagent.model.ids import NodeId
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.requests import Hello
from nodeagent.runtime.clock import Clock
from nodeagent.runtime.ports import HostPort
from nodeagent.transport.connection import Connection
from nodeagent.wire.frames import OLDEST_PROTOCOL, PROTOCOL

REFUSED = (MembershipStatus.RETIRED, MembershipStatus.OLDER)
"""Membership statuses that never become `MEMBER` again."""


class Admission:
    """Checks the peers of one node. `wake` is called when the host may have to ask members about a peer."""

    def __init__(
        self, host: HostPort, node: NodeId, identity: NodeFile, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._host = host
        self._node = node
        self._identity = identity
        self._clock = clock
        self._wake = wake

    def hello(self) -> Hello:
        host = self._host
        return Hello(
            PROTOCOL,
            "node",
            self._node,
            self._identity.incarnation,
            host.cluster.id,
            host.cluster.table_version,
            self._identity.start,
            self._identity.nonces,
            host.cluster.level,
            host.peers.levels.own.oldest,
            host.peers.levels.own.newest,
            OLDEST_PROTOCOL,
        )

    def check(self, hello: Hello) -> None:
        """Raises `Forbidden` for a retired incarnation or an older copy of a node's directory."""
        status = self._membership_status(hello)
        if status is MembershipStatus.RETIRED:
            raise Forbidden(
                retired_sentence(hello.incarnation, hello.name),
                next_step="start with a new directory and add the node with `iotctl cluster add-node`",
                retired=hello.incarnation,
            )
        if hello.role != "node":
            return
        self._host.peers.levels.meet(hello.incarnation, hello.levels)
        why = self._host.peers.starts.meet(hello.incarnation, hello.name, hello.start, hello.nonces)
        if why:
            replace = f"iotctl cluster replace-node {hello.name} NEW"
            raise Forbidden(why, next_step=replace, older=hello.incarnation)

    def _membership_status(self, peer: Hello) -> MembershipStatus:
        """The membership status of a peer; an operator or reader needs only a certificate."""
        if peer.role != "node":
            return MembershipStatus.MEMBER
        self._host.peers.starts.meet(peer.incarnation, peer.name, peer.start, peer.nonces)
        status = self._host.membership_status(peer.name, peer.incarnation, self._clock.now())
        if status is MembershipStatus.UNKNOWN:
            self._wake()  # the host may have to ask members about it
        return status

    def heard(self, connection: Connection) -> MembershipStatus:
        """The peer's membership status at this frame. A peer that was retired since its hello, or that runs
        on an older copy of its directory, loses the connection: a process that was suspended may resume with
        connections from before.
        """
        assert connection.peer is not None
        status = self._membership_status(connection.peer)
        if status in REFUSED:
            try:
                self.check(connection.peer)
            except Forbidden as error:
                connection.close(error)
        return status
