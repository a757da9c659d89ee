"""The SSH transport against a real sshd: whom it trusts, what it runs, how it fails."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from iotctl.errors import Unreachable
from iotctl.fleet.known_hosts import HostKey, KnownHosts
from iotctl.fleet.ssh import Connector
from iotctl.fleet.ssh_config import CONFIG, Target, route_of
from tests.fleet.sshd import Sshd, make_key

pytestmark = pytest.mark.real


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[Connector]:
    env = {**os.environ, CONFIG: str(tmp_path / "ssh_config"), "SSH_AUTH_SOCK": ""}
    (tmp_path / "ssh_config").write_text("UserKnownHostsFile none\n")
    made = Connector(KnownHosts(tmp_path), env)
    yield made
    made.close()


def target(sshd: Sshd, **more: str) -> Target:
    return Target("node1", sshd.address, sshd.user, sshd.port, str(sshd.user_key), **more)


def trust(connector: Connector, tmp_path: Path, *targets: Target) -> None:
    KnownHosts(tmp_path).put([connector.host_key(t) for t in targets])


def test_a_command_runs_with_its_input_output_and_code(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """Arguments reach it as they are, whatever a shell would make of them; a megabyte goes both ways."""
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    host = connector.open(target(sshd))
    odd = "a 'b' $HOME \"c\" \n*; rm -rf /nowhere"
    assert host.run(["printf", "%s", odd]).out == odd.encode()
    data = os.urandom(1 << 20)
    assert host.run(["cat"], stdin=data).out == data
    ran = host.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (ran.code, ran.out, ran.err) == (7, b"out\n", b"err\n")
    assert host.run(["sh", "-c", "head -c 8000000 /dev/zero >&2"]).code == 0
    assert host.run(["true"], stdin=data).code == 0  # it does not read it
    host.close()


def test_a_command_that_does_not_end_is_given_up(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    host = connector.open(target(sshd))
    with pytest.raises(Unreachable, match=r"sleep did not end within 0.3 s") as error:
        host.run(["sleep", "30"], timeout_s=0.3)
    assert "may have run" in error.value.why
    assert host.run(["true"]).code == 0
    host.close()


def test_an_unknown_and_a_changed_host_key_stop_before_any_login(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    sshd = start()
    with pytest.raises(Unreachable, match="is not known") as unknown:
        connector.open(target(sshd))
    assert unknown.value.next == "iotctl cluster trust"
    trust(connector, tmp_path, target(sshd))
    connector.open(target(sshd)).close()
    sshd.stop()
    other = start("b", port=sshd.port)
    with pytest.raises(Unreachable, match="has CHANGED") as changed:
        connector.open(target(other))
    assert "--replace node1" in changed.value.next
    assert "Accepted" not in (tmp_path / "b" / "log").read_text()


def test_the_clusters_own_file_is_believed_before_the_operators(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """After `trust --replace` an old key in `~/.ssh/known_hosts` does not matter; alone it does."""
    sshd, other = start("a"), start("b")
    key = connector.host_key(target(sshd))
    old = KnownHosts(tmp_path / "b")
    wrong = connector.host_key(target(other))
    old.put([HostKey(key.host, wrong.type, wrong.blob)])
    (tmp_path / "ssh_config").write_text(f"UserKnownHostsFile {old.path}\n")
    with pytest.raises(Unreachable, match="has CHANGED"):
        connector.open(target(sshd))
    KnownHosts(tmp_path).put([key])
    connector.open(target(sshd)).close()


def test_a_login_that_is_refused_says_so(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    stranger = make_key(tmp_path / "stranger")
    with pytest.raises(Unreachable, match="refuses the login"):
        connector.open(Target("node1", sshd.address, sshd.user, sshd.port, str(stranger)))


def test_through_a_jump_host(start: Callable[..., Sshd], connector: Connector, tmp_path: Path) -> None:
    """Several hosts share one connection to the gateway."""
    gateway, inner = start("gateway"), start("inner", address="127.0.0.2")
    (tmp_path / "ssh_config").write_text(
        f"Host gate\n  HostName {gateway.address}\n  Port {gateway.port}\n  User {gateway.user}\n"
        f"  IdentityFile {gateway.user_key}\nUserKnownHostsFile none\n"
    )
    gate = Target("gate", "gate")
    trust(connector, tmp_path, gate)
    behind = target(inner, jump="gate")
    KnownHosts(tmp_path).put([connector.host_key(behind)])
    with ThreadPoolExecutor(12) as pool:
        hosts = list(pool.map(lambda _: connector.open(behind), range(12)))
    assert all(h.run(["echo", "inside"]).out == b"inside\n" for h in hosts)
    assert (tmp_path / "gateway" / "log").read_text().count("Accepted") == 1


def test_fifty_connections_at_once_with_the_default_limits(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """sshd drops some of more than ten handshakes (MaxStartups); they come again."""
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    with ThreadPoolExecutor(50) as pool:
        hosts = list(pool.map(lambda _: connector.open(target(sshd)), range(50)))
    assert {h.run(["echo", "x"]).out for h in hosts} == {b"x\n"}
    for host in hosts:
        host.close()


def test_a_connection_that_breaks_is_told(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    host = connector.open(target(sshd))
    with pytest.raises(Unreachable, match="was lost"):
        host.run(["sh", "-c", "kill -9 $PPID; sleep 5"])


def test_the_operators_configuration_counts(tmp_path: Path) -> None:
    """Include, Match and patterns as OpenSSH reads them; the spec overrides."""
    (tmp_path / "more").write_text("Host plant-*\n  HostName %h.example.org\n  User ops\n  Port 2222\n")
    (tmp_path / "config").write_text(
        f"Include {tmp_path}/more\nMatch host plant-*\n  ProxyJump gate,second\n"
    )
    env = {**os.environ, CONFIG: str(tmp_path / "config")}
    route = route_of(Target("n", "plant-1"), env)
    assert (route.host, route.user, route.port) == ("plant-1.example.org", "ops", 2222)
    assert route.jump == ("gate", "second") and route.known_as == "[plant-1.example.org]:2222"
    mine = route_of(Target("n", "plant-1", user="me", port=22, jump="other"), env)
    assert (mine.user, mine.port, mine.jump) == ("me", 22, ("other",))
