"""Ports that were assigned to a fleet stay assigned while it is down."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from iotctl.errors import RefusedProblem
from iotctl.fleet import ports
from iotctl.fleet.ports import take_ports


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A separate home, and only ten ports in all."""
    monkeypatch.setattr(ports, "PORTS", range(31_990, 32_000))
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def made(place: Path) -> Path:
    place.mkdir()
    return place


def test_ports_of_a_fleet_that_is_down_are_not_assigned_to_another(
    env: dict[str, str], tmp_path: Path
) -> None:
    """No port has a listener here; the ports of a deleted directory are free again."""
    first, second, third = (made(tmp_path / name) for name in ("first", "second two", "third"))
    given = [*take_ports(4, first, env), *take_ports(4, second, env), *take_ports(2, third, env)]
    assert sorted(given) == list(ports.PORTS)
    second.rmdir()
    assert sorted(take_ports(4, third, env)) == sorted(given[4:8])


def test_an_assigned_port_without_a_listener_is_better_than_none(env: dict[str, str], tmp_path: Path) -> None:
    first, second = made(tmp_path / "first"), made(tmp_path / "second")
    given = take_ports(8, first, env)
    assert set(take_ports(4, second, env)) >= set(ports.PORTS) - set(given)
    with pytest.raises(RefusedProblem, match="fewer than 11 ports are free"):
        take_ports(11, second, env)
    assert sorted(take_ports(10, second, env)) == sorted(ports.PORTS)


def test_a_recreated_fleet_releases_its_earlier_ports(env: dict[str, str], tmp_path: Path) -> None:
    """Otherwise creating and destroying fleets would use up all ports."""
    first, second = made(tmp_path / "first"), made(tmp_path / "second")
    for _ in range(5):
        mine = take_ports(4, first, env, release_old=True)
    assert not set(take_ports(6, second, env)) & set(mine)


def test_a_full_disk_loses_no_other_fleets_ports(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (made(tmp_path / name) for name in ("first", "second", "third"))
    given = take_ports(4, first, env)

    def full(*words: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        assert len(take_ports(4, second, env)) == 4
    assert not set(take_ports(6, third, env)) & set(given)


def test_ports_are_assigned_without_file_locks(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*words: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    assert len(take_ports(3, tmp_path, env)) == 3


@pytest.mark.parametrize("text", [b"", b"x\n", b"31990\n", b"\xff\xfe\x00 /\n", b"99999999999 /\n31991"])
def test_invalid_lines_are_ignored(env: dict[str, str], tmp_path: Path, text: bytes) -> None:
    kept = made(made(tmp_path / "state") / "iotctl") / "ports"
    kept.write_bytes(text)
    given = take_ports(3, tmp_path, env)
    assert {f"{port} {tmp_path}" for port in given} <= set(kept.read_text(errors="replace").splitlines())


def test_ports_are_assigned_without_a_writable_record(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    assert len(take_ports(3, tmp_path, env)) == 3
