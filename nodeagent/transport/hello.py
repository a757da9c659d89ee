"""The checks of a peer's hello. Pure."""

from nodeagent.model import features
from nodeagent.model.errors import Forbidden
from nodeagent.model.requests import Hello
from nodeagent.transport.tls import ROLES, PeerName
from nodeagent.wire.frames import OLDEST_PROTOCOL, PROTOCOL


def check_hello(mine: Hello, theirs: Hello, certificate: PeerName | None, expect: str = "") -> None:
    """Refuse a peer whose hello contradicts its certificate, or that is not the peer or release we need.

    `certificate` is None if TLS is off: then the name in the hello counts (loopback only, which the caller
    has checked). `expect` is the node that was dialled, "" for any.

    Raises:
        Forbidden: the peer receives the text too.
    """
    oldest = theirs.oldest_protocol or theirs.protocol
    if oldest > PROTOCOL or theirs.protocol < OLDEST_PROTOCOL:
        raise Forbidden(
            f"{theirs.name} speaks protocol {_range(oldest, theirs.protocol)}, "
            f"{mine.name} speaks {_range(OLDEST_PROTOCOL, PROTOCOL)}",
            next_step="install the same release on both",
        )
    if theirs.role not in ROLES or not theirs.name:
        raise Forbidden(f"a hello needs a name and a known role, not {theirs.name!r} and {theirs.role!r}")
    if certificate is not None and (theirs.name, theirs.role) != (certificate.name, certificate.role):
        raise Forbidden(
            f"the peer's hello says {theirs.role} {theirs.name}, "
            f"its certificate says {certificate.role} {certificate.name}",
            next_step="use the certificate that was issued for this name and role",
        )
    if expect and theirs.name != expect:
        raise Forbidden(f"expected {expect} at this address, but {theirs.name} answered")
    if mine.cluster_id and theirs.cluster_id and mine.cluster_id != theirs.cluster_id:
        raise Forbidden(
            f"{theirs.name} belongs to cluster {theirs.cluster_id}, {mine.name} to cluster {mine.cluster_id}",
            next_step="check the address and the cluster file",
        )
    check_levels(mine, theirs)
    if theirs.role == "node" and not theirs.incarnation:
        raise Forbidden(f"the hello of node {theirs.name} has no incarnation")


def _range(oldest: int, newest: int) -> str:
    return f"{newest}" if oldest == newest else f"{oldest} to {newest}"


def check_levels(mine: Hello, theirs: Hello) -> None:
    """Raises `Forbidden` if one of two nodes does not support the other's cluster level (`features`)."""
    if (mine.role, theirs.role) != ("node", "node"):
        return
    for node, level in ((theirs, mine.level), (mine, theirs.level)):
        why = features.refusal(node.name, node.levels, level)
        if why:
            raise Forbidden(why, next_step=features.advice(node.levels, level))
