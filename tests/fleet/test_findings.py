"""Findings from the facts of a machine."""

import msgspec
import pytest

from iotctl.fleet.facts import Facts, version_of
from iotctl.fleet.findings import Place, findings

GOOD = Facts(
    system="Linux",
    release="6.1",
    arch="x86_64",
    hostname="a",
    machine="m1",
    user="ops",
    sudo=True,
    cpus=4,
    memory_bytes=8 << 30,
    files_max=1 << 20,
    init="systemd",
    python="python3.11 3.11.2",
    data_free_bytes=100 << 30,
    data_writable=False,
    ports_taken=(),
    agent=False,
    clock_ms=3.0,
    clock_error_ms=1.0,
)
PLACE = Place("node1", "/var/lib/nodeagent", (9003, 9004))


def test_every_machine_must_know_the_names_of_all_nodes() -> None:
    """Agents call each other by name, and listen on the address of their own name, which Debian writes into
    /etc/hosts as 127.0.1.1."""

    def of(own: str, other: str, machine: str = "m2") -> list[tuple[str, str]]:
        one = msgspec.structs.replace(GOOD, addresses={"a": own, "b": other})
        two = msgspec.structs.replace(GOOD, machine=machine, addresses={"a": "10.0.0.1", "b": "10.0.0.2"})
        places = [Place("node1", "/a", (1, 2), "a"), Place("node2", "/b", (3, 4), "b")]
        told = findings({"node1": (places[0], one), "node2": (places[1], two)})
        return [(f.severity, f.message) for f in told if f.code == "names"]

    assert of("10.0.0.1", "10.0.0.2") == []
    assert of("", "10.0.0.2") == [("error", "cannot resolve the name a")]
    assert of("10.0.0.1", "") == [("warning", "cannot resolve the name b")], "its machine may be lost"
    for loopback in ("127.0.1.1", "::1"):
        ((severity, message),) = of(loopback, "10.0.0.2")
        assert severity == "error" and loopback in message
        assert of(loopback, "10.0.0.2", "m1") == [], "all of them are on one machine"
    assert of("fe80::1%eth0", "10.0.0.2") == [] and of("what?", "10.0.0.2") == []


def said(**changes: object) -> list[tuple[str, str]]:
    facts = msgspec.structs.replace(GOOD, **changes)
    return [(f.severity, f.code) for f in findings({"node1": (PLACE, facts)})]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, []),
        ({"system": "Darwin"}, [("error", "system")]),
        ({"python": ""}, [("error", "python")]),
        ({"python": "python3 3.9.2"}, [("error", "python")]),
        ({"python": "python3.12 3.12.0"}, []),
        ({"clock_ms": -700.0}, [("warning", "clock")]),
        ({"clock_ms": 700.0, "clock_error_ms": 300.0}, []),  # perhaps only 400 ms
        ({"clock_ms": 11_000.0}, [("error", "clock")]),
        ({"clock_ms": None}, [("warning", "clock")]),
        ({"data_free_bytes": 5 << 30}, [("warning", "disk")]),
        ({"data_free_bytes": 1 << 20}, [("error", "disk")]),
        ({"sudo": False}, [("error", "data_dir")]),
        ({"sudo": False, "data_writable": True}, []),
        ({"ports_taken": (9004,)}, [("error", "port")]),
        ({"ports_taken": (9004,), "agent": True}, []),
        ({"files_max": 1_024}, [("error", "files")]),
        ({"files_max": 10_000}, [("warning", "files")]),
        ({"memory_bytes": 1 << 29}, [("warning", "memory")]),
    ],
)
def test_each_finding(changes: dict[str, object], wanted: list[tuple[str, str]]) -> None:
    assert said(**changes) == wanted


def test_nodes_on_one_machine() -> None:
    there = Place("node2", "/srv/other", (9013, 9014))
    found = findings({"node1": (PLACE, GOOD), "node2": (there, GOOD)})
    assert [(f.severity, f.code, f.node) for f in found] == [("warning", "machine", "node2")]
    same = Place("node3", "/srv/third", (9014, 9015))
    found = findings({"node1": (PLACE, GOOD), "node2": (there, GOOD), "node3": (same, GOOD)})
    assert [(f.node, f.code) for f in found if f.severity == "error"] == [("node3", "same_place")]


def test_versions() -> None:
    assert version_of("3.11.2") > version_of("3.9.18") > version_of("")
    assert version_of("3.11rc1") == ()
