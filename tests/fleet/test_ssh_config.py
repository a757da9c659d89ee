"""Words that name a machine, as `cluster init` and `ssh -J` take them."""

import pytest

from iotctl.errors import InputProblem
from iotctl.fleet.ssh_config import jump_target


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
def test_a_machine_and_how_it_is_reached(word: str, user: str, host: str, port: int) -> None:
    target = jump_target(word)
    assert (target.user, target.host, target.port) == (user, host, port)


@pytest.mark.parametrize("word", ["ops@plant:ssh", "plant:0", "plant:65536", "plant:-1", "plant:²"])
def test_what_is_no_port_is_said(word: str) -> None:
    with pytest.raises(InputProblem, match="is no port"):
        jump_target(word)
