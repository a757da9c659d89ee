"""The SSH transport against a real sshd: trust, commands and failures."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from iotctl.errors import InputProblem, Unreachable
from iotctl.fleet.dial import Prefetch, dial
from iotctl.fleet.known_hosts import HostKey, KnownHosts
from iotctl.fleet.ssh import Connector
from iotctl.fleet.ssh_config import CONFIG, Target, route_of
from tests.fleet.sshd import Sshd, make_key
from tests.waiting import until

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
    KnownHosts(tmp_path).put([connector.host_key(t)[0] for t in targets])


def test_a_command_runs_with_its_input_output_and_code(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """No shell interprets the arguments; a megabyte of input and output is transferred."""
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
    assert host.run(["true"], stdin=data).code == 0  # the command does not read its input
    assert host.run(["sh", "-c", "kill -9 $$"]).code == -1
    host.close()


def test_a_prefetched_connection_is_taken_once(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """The second connection is new; a connection that is not taken is closed."""
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    other = msgspec.structs.replace(target(sshd), name="node2")
    begun = {t: dial(sshd.address, sshd.port, 5.0) for t in (target(sshd), other)}
    with begun_with(connector, lambda t: begun[t], *begun) as early:
        ports = {early.open(target(sshd)).run(["sh", "-c", "echo $SSH_CLIENT"]).out.split()[1] for _ in "ab"}
        assert len(ports) == 2 and str(begun[target(sshd)].getsockname()[1]).encode() in ports
        assert begun[other].fileno() != -1
    until(lambda: begun[other].fileno() == -1)


def test_a_prefetched_connection_that_ended_is_replaced(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """An sshd with too many connections ends some. A failed prefetch is reported only if it is needed."""
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    with socket.create_server(("127.0.0.1", 0)) as closing:
        early = socket.create_connection(closing.getsockname())
        closing.accept()[0].close()
        with begun_with(connector, lambda _: early, target(sshd)) as made:
            assert made.open(target(sshd)).run(["true"]).code == 0
    sshd.stop()
    with (
        begun_with(connector, None, target(sshd)) as made,
        pytest.raises(Unreachable, match="no SSH connection"),
    ):
        made.open(target(sshd))


@contextmanager
def begun_with(
    connector: Connector, sock: Callable[[Target], socket.socket] | None, *targets: Target
) -> Iterator[Connector]:
    """A copy of `connector`, which knows the keys, that prefetches a connection (from `sock`) per target."""
    env = dict(connector._env)
    with pytest.MonkeyPatch.context() as patch:
        if sock is not None:
            patch.setattr("iotctl.fleet.dial._begin", lambda t, env, timeout_s: (route_of(t, env), sock(t)))
        ahead = Prefetch(targets, env, 5.0)
        made = Connector(connector._known, env, ahead=ahead)
        try:
            yield made
        finally:
            made.close()


def test_a_command_that_does_not_end_times_out(
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


def test_the_clusters_file_takes_precedence_over_the_operators(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """An old key in `~/.ssh/known_hosts` does not matter after `trust --replace`, only before."""
    sshd, other = start("a"), start("b")
    key, _ = connector.host_key(target(sshd))
    old = KnownHosts(tmp_path / "b")
    wrong, _ = connector.host_key(target(other))
    old.put([HostKey(key.host, wrong.type, wrong.blob)])
    (tmp_path / "ssh_config").write_text(f"UserKnownHostsFile {old.path}\n")
    with pytest.raises(Unreachable, match="has CHANGED"):
        connector.open(target(sshd))
    KnownHosts(tmp_path).put([key])
    connector.open(target(sshd)).close()


def test_a_refused_login_is_reported(
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
    trust(connector, tmp_path, behind)
    with ThreadPoolExecutor(12) as pool:
        hosts = list(pool.map(lambda _: connector.open(behind), range(12)))
    assert all(h.run(["echo", "inside"]).out == b"inside\n" for h in hosts)
    assert (tmp_path / "gateway" / "log").read_text().count("Accepted") == 1


def test_fifty_connections_at_once_with_the_default_limits(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    """sshd drops some of more than ten handshakes (MaxStartups); they are retried."""
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    with ThreadPoolExecutor(50) as pool:
        hosts = list(pool.map(lambda _: connector.open(target(sshd)), range(50)))
    assert {h.run(["echo", "x"]).out for h in hosts} == {b"x\n"}
    for host in hosts:
        host.close()


def test_a_server_that_never_answers_a_command_times_out(connector: Connector, tmp_path: Path) -> None:
    class Silent(paramiko.ServerInterface):
        def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
            return AUTH_SUCCESSFUL

        def get_allowed_auths(self, username: str) -> str:
            return "publickey"

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return OPEN_SUCCEEDED

        def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
            time.sleep(3.0)
            return False

    key = make_key(tmp_path / "id")
    listener = socket.create_server(("127.0.0.1", 0))
    serving = []

    def serve() -> None:
        for _ in range(2):  # the client requests the key, then runs a command
            transport = paramiko.Transport(listener.accept()[0])
            transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(key)))
            transport.start_server(threading.Event(), Silent())
            serving.append(transport)

    threading.Thread(target=serve, daemon=True).start()
    there = Target("node1", "127.0.0.1", "me", listener.getsockname()[1], str(key))
    trust(connector, tmp_path, there)
    host = connector.open(there)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="did not end within 0.5 s"):
        host.run(["true"], timeout_s=0.5)
    assert time.monotonic() - began < 2.0
    host.close()
    for transport in serving:
        transport.close()
    listener.close()


def test_a_gateway_that_refuses_is_tried_once_for_all_hosts_behind_it(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    gateway = start("gateway", options=("LogLevel VERBOSE",))
    inner = start("inner", address="127.0.0.2")
    stranger = make_key(tmp_path / "stranger")
    (tmp_path / "ssh_config").write_text(
        f"Host gate\n  HostName {gateway.address}\n  Port {gateway.port}\n  User {gateway.user}\n"
        f"  IdentityFile {stranger}\n  IdentitiesOnly yes\nHost *\n  UserKnownHostsFile none\n"
    )
    trust(connector, tmp_path, Target("gate", "gate"))

    def attempt(_: int) -> str:
        with pytest.raises(Unreachable) as error:
            connector.open(target(inner, jump="gate"))
        return error.value.what

    with ThreadPoolExecutor(8) as pool:
        said = set(pool.map(attempt, range(8)))
    assert len(said) == 1 and "refuses the login" in said.pop()
    log = (tmp_path / "gateway" / "log").read_text()
    assert log.count("Connection from") == 3, log  # a check that it is up, one for its key, and one login


def test_a_cycle_of_jump_hosts_is_an_error(connector: Connector, tmp_path: Path) -> None:
    (tmp_path / "ssh_config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    for work in (connector.open, connector.gateways):
        with pytest.raises(InputProblem, match="form a cycle"):
            work(Target("node1", "a"))


def test_keys_with_a_passphrase_come_from_the_agent(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `IdentitiesOnly`, only the key of that file is offered, if the agent holds it."""
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    other = make_key(tmp_path / "other")
    said = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    agent = dict(re.findall(r"(SSH_\w+)=([^;]+);", said))
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", agent["SSH_AUTH_SOCK"])
        for file in (other, sshd.user_key):
            subprocess.run(["ssh-add", "-q", str(file)], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(sshd.user_key)], check=True)
        (tmp_path / "ssh_config").write_text("IdentitiesOnly yes\nUserKnownHostsFile none\n")
        connector.open(target(sshd)).close()
        assert "Failed publickey" not in (tmp_path / "a" / "log").read_text()
        subprocess.run(["ssh-add", "-q", "-D"], check=True)
        with pytest.raises(Unreachable, match="refuses the login") as error:
            connector.open(target(sshd))
        assert error.value.next == f"ssh-add {sshd.user_key}"
    finally:
        os.kill(int(agent["SSH_AGENT_PID"]), signal.SIGTERM)


def test_a_missing_key_file_is_an_input_error(connector: Connector, tmp_path: Path) -> None:
    with pytest.raises(InputProblem, match="absent is not a file"):
        connector.open(Target("node1", "127.0.0.1", key=str(tmp_path / "absent")))


def test_a_lost_connection_is_reported(
    start: Callable[..., Sshd], connector: Connector, tmp_path: Path
) -> None:
    sshd = start()
    trust(connector, tmp_path, target(sshd))
    host = connector.open(target(sshd))
    with pytest.raises(Unreachable, match="was lost"):
        host.run(["sh", "-c", "kill -9 $PPID; sleep 5"])


def test_the_operators_configuration_counts(tmp_path: Path) -> None:
    """Include, Match and patterns work as in OpenSSH; the spec takes precedence."""
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


def test_tokens_of_the_configuration_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "Host plant\n  HostName 10.0.0.1\n  Port 2200\n  User ops\n  ProxyCommand nc %h %p\n"
        "  IdentityFile /keys/%r@%n\n  UserKnownHostsFile /a/%h /c\n"
    )
    route = route_of(Target("n", "plant"), {**os.environ, CONFIG: str(tmp_path / "config")})
    assert route.proxy_command == "nc 10.0.0.1 2200" and "/keys/ops@plant" in route.keys
    assert route.known_hosts[:2] == ("/a/10.0.0.1", "/c")


def test_through_a_proxy_command(start: Callable[..., Sshd], connector: Connector, tmp_path: Path) -> None:
    """The command runs in a shell, as in OpenSSH."""
    sshd = start()
    (tmp_path / "ssh_config").write_text(
        f"Host inner\n  HostName 127.0.0.1\n"
        f"  ProxyCommand ssh -F none -i {sshd.user_key} -o StrictHostKeyChecking=no"
        f" -o UserKnownHostsFile=/dev/null -p {sshd.port} -W %h:{sshd.port} {sshd.address} 2>/dev/null\n"
        f"  User {sshd.user}\n  IdentityFile {sshd.user_key}\nHost *\n  UserKnownHostsFile none\n"
    )
    there = Target("node1", "inner")
    trust(connector, tmp_path, there)
    assert connector.open(there).run(["echo", "x"]).out == b"x\n"
