"""What must agree before two sides talk. Pure."""

from nodeagent.model import features
from nodeagent.model.errors import Forbidden
from nodeagent.model.requests import Hello
from nodeagent.transport.tls import ROLES, PeerName
from nodeagent.wire.frames import OLDEST_PROTOCOL, PROTOCOL


def check_hello(mine: Hello, theirs: Hello, certificate: PeerName | None, expect: str = "") -> None:
    """Refuse a peer that is not what it says, or not what we want.

    `certificate` None: TLS is off, so the name is taken from the hello (loopback only, which the
    caller has checked). `expect`: the node we meant to reach, "" for any.

    Raises:
        Forbidden: with a text that the peer is shown too.
    """
    oldest = theirs.oldest_protocol or theirs.protocol
    if oldest > PROTOCOL or theirs.protocol < OLDEST_PROTOCOL:
        raise Forbidden(
            f"{theirs.name} speaks protocol {_range(oldest, theirs.protocol)}, "
            f"{mine.name} speaks {_range(OLDEST_PROTOCOL, PROTOCOL)}",
            next_step="install the same release on both",
        )
    if theirs.role not in ROLES or not theirs.name:
        raise Forbidden(f"role {theirs.role!r} of {theirs.name!r} is unknown")
    if certificate is not None and (theirs.name, theirs.role) != (certificate.name, certificate.role):
        raise Forbidden(
            f"the peer says it is {theirs.role} {theirs.name}, "
            f"its certificate says {certificate.role} {certificate.name}",
            next_step="use the certificate that was issued for this name and role",
        )
    if expect and theirs.name != expect:
        raise Forbidden(f"{expect} was expected at this address, {theirs.name} answered")
    if mine.cluster_id and theirs.cluster_id and mine.cluster_id != theirs.cluster_id:
        raise Forbidden(
            f"{theirs.name} belongs to cluster {theirs.cluster_id}, {mine.name} to cluster {mine.cluster_id}",
            next_step="check the address and the cluster file",
        )
    check_levels(mine, theirs)
    if theirs.role == "node" and not theirs.incarnation:
        raise Forbidden(f"node {theirs.name} does not say its incarnation")


def _range(oldest: int, newest: int) -> str:
    return f"{newest}" if oldest == newest else f"{oldest} to {newest}"


def check_levels(mine: Hello, theirs: Hello) -> None:
    """Raises `Forbidden` when one of two nodes may not be in the other's cluster (`features`)."""
    if (mine.role, theirs.role) != ("node", "node"):
        return
    for node, level in ((theirs, mine.level), (mine, theirs.level)):
        why = features.refusal(node.name, node.levels, level)
        if why:
            raise Forbidden(why, next_step=features.advice(node.levels, level))
