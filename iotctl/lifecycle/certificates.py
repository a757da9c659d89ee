"""Certificates of nodes and operators: looked at and renewed over SSH, so also when all have expired."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from iotctl.errors import RefusedProblem, Unreachable
from iotctl.fleet.deployment import CERT, Found
from iotctl.fleet.host import Host
from iotctl.fleet.upload import put
from iotctl.lifecycle import credentials
from iotctl.lifecycle.machines import Machines, OnDone, all_or_raise, chosen, look, service
from iotctl.spec.cluster import ClusterSource, NodeEntry
from iotctl.spec.find import authority_dir, operator_dir
from nodeagent.client import identity
from nodeagent.client.identity import KeyPair
from nodeagent.model.errors import NodeAgentError

AUTHORITY, OPERATOR = "authority", "operator"
"""Names of certificates that are no node's."""


class CertificateRow(msgspec.Struct, frozen=True):
    """`name` of a node or operator. Times in milliseconds, 0 when there is none.

    `state`: `good`, `ending`, `expired`, `missing`, `foreign` (of another authority), `renewed`, `due` (to be
    renewed; in a dry run), or `unreachable` when its machine does not tell.
    """

    name: str
    role: str
    state: str
    fingerprint: str
    expires_ms: int
    hosts: list[str]


class Certificates(msgspec.Struct, frozen=True):
    """The authority first, then the operator's, then those of the nodes.

    `changed`: how many were renewed, or are due in a dry run.
    """

    certificates: list[CertificateRow]
    changed: int


def show(
    source: ClusterSource, machines: Machines, env: Mapping[str, str], now_ms: int, done: OnDone
) -> Certificates:
    """Ask every machine; nothing is changed.

    Raises:
        RefusedProblem: the authority is not here.
    """
    nodes = list(source.file.nodes)
    answers = machines.each(nodes, lambda n, h: look(source, n, h), done)
    found = {n: a for n, a in answers.items() if not isinstance(a, Unreachable)}
    authority = _authority(source, env, found)
    rows = [
        _row(AUTHORITY, authority.cert, authority.cert, now_ms, role="authority"),
        _operator(source, env, authority, now_ms),
    ]
    for node in nodes:
        one = found.get(node.name)
        rows.append(_row(node.name, one.text(CERT), authority.cert, now_ms) if one else _silent(node))
    return Certificates(rows, 0)


def initialise(
    source: ClusterSource, machines: Machines, env: Mapping[str, str], now_ms: int, done: OnDone
) -> Certificates:
    """The authority of a cluster that has none, and the operator's certificate; what is there stays.

    Raises:
        RefusedProblem: a node has a certificate of an authority that is not here.
        Unreachable: a machine does not tell whether it has one.
    """
    missing = lacking(source, machines, env, now_ms, done)
    if AUTHORITY in missing:
        credentials.make_authority(source, env)
    authority = _authority(source, env, {})
    if missing == [OPERATOR]:
        credentials.make_operator(source, env, authority)
    rows = [
        _row(AUTHORITY, authority.cert, authority.cert, now_ms, role="authority"),
        _operator(source, env, authority, now_ms),
    ]
    return Certificates(rows, len(missing))


def lacking(
    source: ClusterSource, machines: Machines, env: Mapping[str, str], now_ms: int, done: OnDone
) -> list[str]:
    """What `initialise` has to make, of `AUTHORITY` and `OPERATOR`; raises what it raises."""
    if not credentials.has_authority(source, env):
        answers = machines.each(list(source.file.nodes), lambda n, h: look(source, n, h), done)
        credentials.authority_of(source, env, all_or_raise(answers, "no authority was made"))
        return [AUTHORITY, OPERATOR]
    is_missing = _operator(source, env, _authority(source, env, {}), now_ms).state == "missing"
    return [OPERATOR] if is_missing else []


def renew(
    source: ClusterSource,
    names: Sequence[str],
    machines: Machines,
    env: Mapping[str, str],
    *,
    within_ms: int,
    now_ms: int,
    done: OnDone,
    dry_run: bool = False,
) -> Certificates:
    """New certificates for what ends within `within_ms`, the operator's first; running agents load theirs at
    once. No data is touched and nothing is restarted. A machine that does not do it holds up no other.

    Args:
        dry_run: only say which are due.

    Raises:
        RefusedProblem: the authority is not here, or has expired itself.
    """
    nodes = chosen(source, names)
    answers = machines.each(nodes, lambda n, h: look(source, n, h))
    looked = {n: a for n, a in answers.items() if not isinstance(a, Unreachable)}
    authority = _authority(source, env, looked)
    ends = identity.certificate_facts(authority.cert).expires_ms
    if ends <= now_ms:
        raise RefusedProblem(
            "the certificate authority itself has expired; nothing was renewed",
            why="every node must learn a new one at the same time",
            next=f"iotctl cluster stop, move {authority_dir(source, env)} and the directory tls of every node"
            " away, then iotctl cluster deploy",
        )
    operator = _operator(source, env, authority, now_ms)
    renewed = operator.state == "missing" or operator.expires_ms <= now_ms + within_ms
    if renewed and dry_run:
        operator = msgspec.structs.replace(operator, state="due")
    elif renewed:
        credentials.make_operator(source, env, authority)
        operator = msgspec.structs.replace(_operator(source, env, authority, now_ms), state="renewed")

    def one(node: NodeEntry, host: Host) -> CertificateRow:
        found = looked[node.name]
        files = credentials.node_files(node, found, authority, now_ms, within_ms=within_ms)
        if dry_run:
            row = _row(node.name, found.text(CERT), authority.cert, now_ms)
            return msgspec.structs.replace(row, state="due") if files else row
        if not files:
            if found.running:  # an earlier run may have ended before it told the agent
                service(source, node, host, found).reload()
            return _row(node.name, found.text(CERT), authority.cert, now_ms)
        home = source.data_dir_of(node)
        put(host, home, files)
        service(source, node, host, found).reload()
        text = next(f.content for f in files if f.name == CERT).decode()
        return msgspec.structs.replace(_row(node.name, text, authority.cert, now_ms), state="renewed")

    rows = machines.each([n for n in nodes if n.name in looked], one, done)
    every = [operator]
    for node in nodes:
        row = rows.get(node.name)
        every.append(row if isinstance(row, CertificateRow) else _silent(node))
    return Certificates(every, sum(r.state in ("renewed", "due") for r in every))


def issue(
    source: ClusterSource,
    name: str,
    role: str,
    out: Path,
    env: Mapping[str, str],
    now_ms: int,
    *,
    dry_run: bool = False,
) -> CertificateRow:
    """A certificate for another operator, in the directory `out` (`dry_run`: one that is not kept).

    Raises:
        RefusedProblem: the authority is not here, or `out` holds one already.
        InvalidName: a name or role that is not allowed.
    """
    authority = _authority(source, env, {})
    if (out / identity.CERT_FILE).exists():
        raise RefusedProblem(f"{out} holds a certificate already", next="name another directory with --out")
    pair = identity.issue(authority, name, role)
    if not dry_run:
        identity.write_identity(out, pair, authority.cert)
    return _row(name, pair.cert, authority.cert, now_ms)


def _silent(node: NodeEntry) -> CertificateRow:
    return CertificateRow(node.name, "node", "unreachable", "", 0, [])


def _authority(source: ClusterSource, env: Mapping[str, str], found: Mapping[str, Found]) -> KeyPair:
    authority = credentials.authority_of(source, env, found)
    if authority is None:
        raise RefusedProblem(
            f"no certificate authority in {authority_dir(source, env)}",
            next="copy it from the machine where the cluster was made",
        )
    return authority


def _operator(
    source: ClusterSource, env: Mapping[str, str], authority: KeyPair, now_ms: int
) -> CertificateRow:
    try:
        pem = (operator_dir(source, env) / identity.CERT_FILE).read_text()
    except OSError:
        pem = ""
    return _row(OPERATOR, pem, authority.cert, now_ms, role="admin")


def _row(name: str, pem: str, authority: str, now_ms: int, *, role: str = "node") -> CertificateRow:
    try:
        facts = identity.certificate_facts(pem)
    except NodeAgentError:
        return CertificateRow(name, role, "missing", "", 0, [])
    if not identity.is_issued_by(pem, authority):
        state = "foreign"
    elif facts.expires_ms <= now_ms:
        state = "expired"
    else:
        state = "ending" if facts.expires_ms - now_ms <= credentials.RENEW_MS else "good"
    return CertificateRow(
        facts.name if role == "admin" else name,
        facts.role or role,
        state,
        facts.fingerprint,
        facts.expires_ms,
        list(facts.hosts),
    )
