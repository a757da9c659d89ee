"""Words that name a machine, as in `cluster init` and `ssh -J`."""

import shutil
from pathlib import Path

import pytest

from iotctl.errors import InputProblem
from iotctl.fleet.ssh_config import CONFIG, Target, jump_target, route_of
from iotctl.spec.cluster import load_cluster
from iotctl.spec.hosts import host_problem, jump_problem, user_problem


@pytest.mark.parametrize(
    ("word", "user", "host", "port"),
    [
        ("plant", "", "plant", 0),
        ("ops@10.0.0.1:2222", "ops", "10.0.0.1", 2222),
        ("ops@[fe80::1]:22", "ops", "fe80::1", 22),
        ("[fe80::1]", "", "fe80::1", 0),
        ("fe80::1", "", "fe80::1", 0),
    ],
)
def test_a_word_gives_user_host_and_port(word: str, user: str, host: str, port: int) -> None:
    target = jump_target(word)
    assert (target.user, target.host, target.port) == (user, host, port)


@pytest.mark.parametrize("word", ["ops@plant:ssh", "plant:0", "plant:65536", "plant:-1", "plant:²"])
def test_an_invalid_port_is_refused(word: str) -> None:
    with pytest.raises(InputProblem, match="is not a port"):
        jump_target(word)


HOSTILE = [
    "$(touch x)",
    "`id`",
    "a;b",
    "a b",
    "-oProxyCommand=x",
    "a\nb",
    "a|b",
    "a&b",
    "a'b",
    "",
    "%h",
    "a\x1b[2J",
]


@pytest.mark.parametrize("host", ["plant-1", "10.0.0.1", "::1", "fe80::1%eth0", "münchen.example", "a_b.c."])
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert not host_problem(host)


@pytest.mark.parametrize("word", [*HOSTILE, "x" * 254, "fe80::1%$(id)", "a%eth0", ".", "..", "fe80::1%.."])
def test_a_word_with_shell_syntax_or_a_directory_is_not_a_host(word: str) -> None:
    assert host_problem(word)


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("has_ssh", [True, False])
def test_commands_of_the_configuration_only_get_plain_host_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, has_ssh: bool
) -> None:
    """F15: `ProxyCommand … %h` and `Match exec` run a shell, with or without an `ssh` binary; the same holds
    for user and jump host. Such a name is refused before the configuration is read."""
    if not has_ssh:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    ran = tmp_path / "ran"
    (tmp_path / "config").write_text(f'Match exec "touch {ran}; true %h"\n  ProxyCommand nc %h %r\n')
    env = {"PATH": "/usr/bin:/bin", CONFIG: str(tmp_path / "config")}
    targets = [Target("n", word), Target("n", "plant", jump=f"{word}@gate" if word else "-x")]
    targets += [Target("n", "plant", user=word)] if word else []
    for target in targets:
        with pytest.raises(InputProblem, match="is not a (host|user)"):
            route_of(target, env)
    assert not ran.exists()


def test_a_host_from_the_configuration_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "config").write_text("Host plant\n  HostName $(id)\n  ProxyCommand nc %h %p\n")
    with pytest.raises(InputProblem, match="is not a host"):
        route_of(Target("n", "plant"), {CONFIG: str(tmp_path / "config")})


@pytest.mark.parametrize(
    ("node", "ssh", "at"),
    [
        ('host: "$(id)"', "{}", "5:"),
        ("host: a", '{user: "x;y"}', "7:"),
        ("host: a", '{jump: "gate,$(id)"}', "7:"),
        ('host: a, ssh: {user: "-l"}', "{}", "5:"),
    ],
)
def test_an_invalid_host_in_cluster_yaml_is_reported_with_its_place(
    tmp_path: Path, node: str, ssh: str, at: str
) -> None:
    """F15: before anything connects."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "apiVersion: iotctl/v1\ncluster:\n  name: p\nnodes:\n"
        f"  - {{name: n, {node}}}\ndefaults:\n  ssh: {ssh}\n"
    )
    with pytest.raises(InputProblem, match="is not a (host|user)") as refused:
        load_cluster(path)
    assert refused.value.where.startswith(f"{path}:{at}")


def test_users_and_jump_hosts() -> None:
    assert not user_problem("ops.admin+x@corp") and not jump_problem("ops@gate:22, [fe80::1]:2222,second")
    assert user_problem("-l") and jump_problem("ok,-oProxyCommand=x")
