"""Certificates: their contents, the file modes of keys, and refused input."""

import pickle
import stat
from pathlib import Path

import pytest

from nodeagent.client.identity import (
    certificate_facts,
    create_authority,
    fingerprint,
    is_issued_by,
    issue,
    read_authority,
    write_authority,
    write_identity,
)
from nodeagent.model.errors import Forbidden, InvalidInput, InvalidName
from nodeagent.transport.tls import Identity, client_context, peer_name, server_context
from tests.runtime.links import authority


def test_certificate_contains_name_role_and_hosts() -> None:
    """Every field that a peer or `cert show` reads."""
    pair = issue(authority("ours"), "node1", "node", hosts=("10.0.0.7", "db.example"), days=30)
    facts = certificate_facts(pair.cert)
    assert (facts.name, facts.role, facts.issuer) == ("node1", "node", "ours authority")
    assert set(facts.hosts) == {"node1", "localhost", "127.0.0.1", "10.0.0.7", "db.example"}
    assert facts.expires_ms - facts.not_before_ms > 29 * 86_400_000
    assert facts.fingerprint == fingerprint(pair.cert) and len(facts.fingerprint) == 64


def test_issuer_is_verified() -> None:
    """The signature decides, not the name."""
    pair = issue(authority("ours"), "node1", "node")
    assert is_issued_by(pair.cert, authority("ours").cert)
    assert not is_issued_by(pair.cert, create_authority("ours").cert)


def test_key_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """Mode 0600 from the first byte on, also if the file is replaced."""
    write_authority(tmp_path / "ca", authority("ours"))
    for _ in range(2):
        pair = issue(authority("ours"), "node1", "node")
        write_identity(tmp_path / "tls", pair, authority("ours").cert)
    for key in (tmp_path / "ca" / "ca.key", tmp_path / "tls" / "node.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert read_authority(tmp_path / "ca") == authority("ours")
    assert sorted(p.name for p in (tmp_path / "tls").iterdir()) == ["ca.pem", "node.key", "node.pem"]


def test_paths_and_text_are_both_an_identity(tmp_path: Path) -> None:
    """CI passes PEM text, a node has files; both are picklable for a Spark worker."""
    pair = issue(authority("ours"), "node1", "node")
    files = write_identity(tmp_path, pair, authority("ours").cert)
    for identity in (files, Identity(pair.cert, pair.key, authority("ours").cert)):
        copied = pickle.loads(pickle.dumps(identity))
        assert copied == identity
        server_context(copied)
        client_context(copied)
        assert "PRIVATE" not in repr(identity) and "PRIVATE" not in repr(pair)


@pytest.mark.parametrize(
    ("name", "role"),
    [("Node 1", "node"), ("x" * 64, "node"), ("a\nb", "admin"), ("", "reader"), ("n", "root")],
)
def test_names_and_roles_are_checked(name: str, role: str) -> None:
    """An invalid name or role gets no certificate."""
    with pytest.raises(InvalidName):
        issue(authority("ours"), name, role)


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (None, "sent no certificate"),
        ({"subject": ((("organizationalUnitName", "node"),),)}, "names no node or user"),
        ({"subject": ((("commonName", "n1"), ("organizationalUnitName", "root")),)}, "n1 has role 'root'"),
        ({"subject": ((("commonName", "n1"),),)}, "n1 has role ''; roles are node"),
    ],
)
def test_a_certificate_without_name_or_known_role_is_refused(certificate: object, says: str) -> None:
    """The error says which of the two is missing."""
    with pytest.raises(Forbidden, match=says):
        peer_name(certificate)


def test_unreadable_material_is_invalid_input(tmp_path: Path) -> None:
    """It is not reported as an exception of the TLS library."""
    pair = issue(authority("ours"), "node1", "node")
    other = issue(authority("ours"), "node1", "node")
    ca = authority("ours").cert
    for broken in (
        Identity("/nowhere.pem", pair.key, ca),
        Identity(pair.cert, other.key, ca),
        Identity(pair.cert, pair.key, "-----BEGIN CERTIFICATE-----\nxx"),
    ):
        with pytest.raises(InvalidInput):
            server_context(broken)
    with pytest.raises(InvalidInput):
        read_authority(tmp_path)
    with pytest.raises(InvalidInput):
        certificate_facts("no certificate")
