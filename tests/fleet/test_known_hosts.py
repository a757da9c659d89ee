"""OpenSSH's known_hosts: the meaning of lines, and edits that leave other lines alone."""

import subprocess
from pathlib import Path

import pytest

from iotctl.fleet.known_hosts import HostKey, KnownHosts
from tests.fleet.sshd import make_key


def blob(path: Path) -> str:
    return make_key(path).with_suffix(".pub").read_text().split()[1]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    return blob(tmp_path / "k1"), blob(tmp_path / "k2")


def file(tmp_path: Path, *lines: str) -> KnownHosts:
    (tmp_path / "known_hosts").write_text("".join(f"{line}\n" for line in lines))
    return KnownHosts(tmp_path)


@pytest.mark.parametrize(
    ("hosts", "host", "is_named"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("b,a,c", "a", True),
        ("[a]:2222", "[a]:2222", True),
        ("[a]:2222", "a", False),
        ("*.plant,10.0.?.1", "x.plant", True),
        ("*.plant,10.0.?.1", "10.0.3.1", True),
        ("*.plant,!bad.plant", "bad.plant", False),
    ],
)
def test_patterns_of_a_line_match_as_in_openssh(
    hosts: str, host: str, is_named: bool, tmp_path: Path, keys: tuple[str, str]
) -> None:
    known = file(tmp_path, f"{hosts} ssh-ed25519 {keys[0]} a comment").of(host)
    assert [k.blob for k in known.keys] == ([keys[0]] if is_named else [])
    said = subprocess.run(
        ["ssh-keygen", "-F", host, "-f", str(tmp_path / "known_hosts")], capture_output=True
    )
    assert (said.returncode == 0) == is_named  # OpenSSH agrees


def test_hashed_names(tmp_path: Path, keys: tuple[str, str]) -> None:
    known = file(tmp_path, f"[a]:2222 ssh-ed25519 {keys[0]}")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known.path)], check=True, capture_output=True)
    assert known.path.read_text().startswith("|1|")
    assert known.of("[a]:2222").keys and not known.of("a").keys
    known.put([HostKey("[a]:2222", "ssh-ed25519", keys[1])])
    assert [k.blob for k in known.of("[a]:2222").keys] == [keys[1]]


def test_an_invalid_line_only_invalidates_itself(tmp_path: Path, keys: tuple[str, str]) -> None:
    known = file(tmp_path)
    known.path.write_bytes(
        b"# caf\xe9\n@cert-authority *.x ssh-ed25519 AAAA\na ssh-ed25519 AAA\na ssh-rsa "
        + keys[0].encode()
        + b"\nshort\n\na ssh-ed25519 "
        + keys[0].encode()
        + b" caf\xe9\n"
    )
    assert [(k.type, k.blob) for k in known.of("a").keys] == [("ssh-ed25519", keys[0])]
    known.put([HostKey("b", "ssh-ed25519", keys[1])])
    assert b"# caf\xe9\n" in known.path.read_bytes() and known.of("b").keys and known.of("a").keys


def test_the_first_file_that_lists_a_host_counts_and_a_revoked_key_never_does(
    tmp_path: Path, keys: tuple[str, str]
) -> None:
    mine = tmp_path / "mine"
    mine.write_text(f"a ssh-ed25519 {keys[1]}\n@revoked * ssh-ed25519 {keys[0]}\n")
    known = file(tmp_path, f"a ssh-ed25519 {keys[0]}").of("a", [str(mine), str(tmp_path / "absent")])
    assert [k.blob for k in known.keys] == [keys[0]] and known.own and known.revoked == (keys[0],)
    known = file(tmp_path).of("a", [str(mine)])
    assert [k.blob for k in known.keys] == [keys[1]] and not known.own


def test_put_removes_a_name_from_a_list_and_leaves_the_rest(tmp_path: Path, keys: tuple[str, str]) -> None:
    known = file(tmp_path, "# ours", f"a,b ssh-ed25519 {keys[0]} note", f"a ssh-ed25519 {keys[0]}")
    known.put([HostKey("a", "ssh-ed25519", keys[1])])
    assert known.path.read_text().splitlines() == [
        "# ours",
        f"b ssh-ed25519 {keys[0]} note",
        f"a ssh-ed25519 {keys[1]}",
    ]
