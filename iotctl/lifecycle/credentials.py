"""The cluster's certificate authority and the operator's certificate, in the user's data directory.

    $XDG_DATA_HOME/iotctl/CLUSTER/authority/   ca.pem, ca.key
    $XDG_DATA_HOME/iotctl/CLUSTER/operator/    ca.pem, node.pem, node.key

They are never stored beside cluster.yaml, which is meant to be shared.
"""

from collections.abc import Mapping

from iotctl.errors import RefusedProblem
from iotctl.fleet.deployment import CA, CERT, KEY, Found
from iotctl.fleet.upload import File
from iotctl.spec.cluster import ClusterSource, NodeEntry
from iotctl.spec.find import authority_dir, find_identity, operator_dir, pem_of
from nodeagent.client import identity
from nodeagent.client.identity import KeyPair
from nodeagent.model.errors import InvalidName, NodeAgentError

FILES = (CA, KEY, CERT)
RENEW_MS = 30 * 86_400_000
"""A certificate that expires sooner is renewed."""


def has_authority(source: ClusterSource, env: Mapping[str, str]) -> bool:
    return (authority_dir(source, env) / identity.CA_KEY_FILE).is_file()


def make_authority(source: ClusterSource, env: Mapping[str, str]) -> KeyPair:
    """Create an authority and the operator's certificate.

    Raises:
        RefusedProblem: an authority exists; it may have issued every certificate of the cluster.
    """
    if has_authority(source, env):
        raise RefusedProblem(
            f"{authority_dir(source, env)} already holds an authority; nothing was changed",
            next="iotctl cluster deploy",
        )
    authority = identity.create_authority(source.name)
    identity.write_authority(authority_dir(source, env), authority)
    make_operator(source, env, authority)
    return authority


def make_operator(source: ClusterSource, env: Mapping[str, str], authority: KeyPair) -> None:
    name = env.get("USER") or env.get("LOGNAME") or "operator"
    try:
        pair = identity.issue(authority, name, "admin")
    except InvalidName:  # a login name may contain characters that a certificate's name must not
        pair = identity.issue(authority, "operator", "admin")
    identity.write_identity(operator_dir(source, env), pair, authority.cert)


def ensure_operator(source: ClusterSource, env: Mapping[str, str], authority: KeyPair) -> None:
    """Issue a certificate to an operator who has a copy of the authority but no certificate."""
    if find_identity(None, env, source, source.directory) is None and not any(pem_of(env).values()):
        make_operator(source, env, authority)


def authority_of(source: ClusterSource, env: Mapping[str, str], found: Mapping[str, Found]) -> KeyPair | None:
    """The authority on this machine; None if neither this machine nor any node has one.

    Raises:
        RefusedProblem: a node has a certificate of an authority that is not on this machine.
    """
    directory = authority_dir(source, env)
    there = {n: f.text(CA) for n, f in found.items() if f.text(CA)}
    if not has_authority(source, env):
        if there:
            raise RefusedProblem(
                f"the authority of {source.name} is not on this machine; nothing was changed",
                why=f"nodes with certificates: {', '.join(there)}",
                next=f"copy {directory} from the machine where the cluster was created",
            )
        return None
    authority = identity.read_authority(directory)
    other = [n for n, text in there.items() if text != authority.cert]
    if other:
        raise RefusedProblem(
            f"{', '.join(other)}: the certificates are from another authority than the one in {directory};"
            " nothing was changed",
            why="another cluster of this name was created elsewhere",
            next="give this cluster another name, or copy its authority to this machine",
        )
    return authority


def node_files(
    entry: NodeEntry, found: Found, authority: KeyPair, now_ms: int, *, within_ms: int = RENEW_MS
) -> tuple[File, ...]:
    """The files of a new certificate; () while the present one is valid for longer than `within_ms`."""
    if found.key and _is_good(entry, found.text(CERT), authority, now_ms + within_ms):
        return ()
    pair = identity.issue(authority, entry.name, "node", hosts=(entry.host,))
    return (
        File(CA, authority.cert.encode()),
        File(KEY, pair.key.encode(), 0o600),
        File(CERT, pair.cert.encode()),
    )


def _is_good(entry: NodeEntry, pem: str, authority: KeyPair, until_ms: int) -> bool:
    try:
        facts = identity.certificate_facts(pem)
    except NodeAgentError:
        return False
    return (
        facts.name == entry.name
        and facts.role == "node"
        and entry.host in facts.hosts
        and facts.expires_ms > until_ms
        and identity.is_issued_by(pem, authority.cert)
    )
