"""Certificates of nodes and operators, read and renewed over SSH, which works even if all have expired."""

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
"""Names of the certificates that do not belong to a node."""


class CertificateRow(msgspec.Struct, frozen=True):
    """`name` is that of the node or operator. `expires_ms` is 0 without a certificate.

    `state`: `good`, `ending`, `expired`, `missing`, `foreign` (issued by another authority), `renewed`, `due`
    (a dry run found that it must be renewed), or `unreachable` if the machine did not answer.
    """

    name: str
    role: str
    state: str
    fingerprint: str
    expires_ms: int
    hosts: list[str]


class Certificates(msgspec.Struct, frozen=True):
    """The authority's certificate first (none after a renewal), then the operator's, then those of the nodes.

    `changed`: how many were created or renewed, or are due in a dry run.
    """

    certificates: list[CertificateRow]
    changed: int


def show(
    source: ClusterSource, machines: Machines, env: Mapping[str, str], now_ms: int, done: OnDone
) -> Certificates:
    """Read the certificates of every machine; nothing is changed.

    Raises:
        RefusedProblem: the authority is not on this machine.
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
    """Create the cluster's authority and the operator's certificate, unless they exist.

    Raises:
        RefusedProblem: a node has a certificate of an authority that is not on this machine.
        Unreachable: a machine did not answer whether it has a certificate.
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
    """Those of `AUTHORITY` and `OPERATOR` that `initialise` has to create; raises the same errors."""
    if not credentials.has_authority(source, env):
        answers = machines.each(list(source.file.nodes), lambda n, h: look(source, n, h), done)
        credentials.authority_of(source, env, all_or_raise(answers, "no authority was created"))
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
    """Renew certificates that are missing or expire within `within_ms`, and those of nodes that no longer
    match cluster.yaml, the operator's first. Running agents load theirs at once: no data is touched and
    nothing is restarted. A machine that fails does not hold up the others.

    Args:
        dry_run: only report which certificates are due.

    Raises:
        RefusedProblem: the authority is not on this machine, or has expired.
    """
    nodes = chosen(source, names)
    answers = machines.each(nodes, lambda n, h: look(source, n, h))
    looked = {n: a for n, a in answers.items() if not isinstance(a, Unreachable)}
    authority = _authority(source, env, looked)
    ends = identity.certificate_facts(authority.cert).expires_ms
    if ends <= now_ms:
        raise RefusedProblem(
            "the certificate authority itself has expired; nothing was renewed",
            why="a new authority must reach every node at the same time",
            next=f"iotctl cluster stop, move away {authority_dir(source, env)} and the directory tls of every"
            " node, then iotctl cluster deploy",
        )
    operator = _renewed_operator(source, env, authority, now_ms, within_ms, dry_run=dry_run)

    def one(node: NodeEntry, host: Host) -> CertificateRow:
        found = looked[node.name]
        files = credentials.node_files(node, found, authority, now_ms, within_ms=within_ms)
        row = _row(node.name, found.text(CERT), authority.cert, now_ms)
        if dry_run:
            return msgspec.structs.replace(row, state="due") if files else row
        if not files:
            if found.running:  # an earlier renewal may have ended before it notified the agent
                service(source, node, host, found).reload()
            return row
        put(host, source.data_dir_of(node), files)
        service(source, node, host, found).reload()
        text = next(f.content for f in files if f.name == CERT).decode()
        return msgspec.structs.replace(_row(node.name, text, authority.cert, now_ms), state="renewed")

    rows = machines.each([n for n in nodes if n.name in looked], one, done)
    every = [operator]
    for node in nodes:
        row = rows.get(node.name)
        every.append(row if isinstance(row, CertificateRow) else _silent(node))
    return Certificates(every, sum(r.state in ("renewed", "due") for r in every))


def _renewed_operator(
    source: ClusterSource,
    env: Mapping[str, str],
    authority: KeyPair,
    now_ms: int,
    within_ms: int,
    *,
    dry_run: bool,
) -> CertificateRow:
    """Renew the operator's certificate if it is missing or expires within `within_ms`; returns its row."""
    operator = _operator(source, env, authority, now_ms)
    renewed = operator.state == "missing" or operator.expires_ms <= now_ms + within_ms
    if not renewed:
        return operator
    if dry_run:
        return msgspec.structs.replace(operator, state="due")
    credentials.make_operator(source, env, authority)
    return msgspec.structs.replace(_operator(source, env, authority, now_ms), state="renewed")


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
    """Issue a certificate for another operator into the directory `out`; `dry_run` writes nothing.

    Raises:
        RefusedProblem: the authority is not on this machine, or `out` holds a certificate already.
        InvalidName: the name or role is not allowed.
    """
    authority = _authority(source, env, {})
    if (out / identity.CERT_FILE).exists():
        raise RefusedProblem(
            f"{out} already holds a certificate; none was issued", next="name another directory with --out"
        )
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
            f"there is no certificate authority in {authority_dir(source, env)}; nothing was changed",
            next="copy it from the machine where the cluster was created",
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
