"""`iotctl meta`: what it shows, refuses and requests."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotctl.errors import Exit
from nodeagent.model.errors import Refused
from nodeagent.model.ids import META
from nodeagent.model.requests import (
    Accepted,
    GroupStatus,
    LogPin,
    MetaStatus,
    NodeStatus,
    RecoverMeta,
    Reply,
    Request,
)
from nodeagent.partition.recovery import TERMS_BEYOND
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl

METAS = {
    "node1": MetaStatus("LEADER", 61_000, "it was elected in term 3", 101, 250, 250, 0, 240, 100),
    "node2": MetaStatus("FOLLOWER", 5_000, "node1 leads in term 3", 1, 250, 249, 40, 200),
    "node4": MetaStatus(
        "UNKNOWN", 900, "no leader is heard in term 3", 1, 90, 90, -1, 80, 0, LogPin("follower", "node5")
    ),
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def test_the_status_shows_role_journal_and_images_of_every_node(spec: Path) -> None:
    shown = iotctl(spec, "meta", "status", cluster=FakeCluster(metas=METAS, down={"node5"}))
    assert shown.code == 0, shown.err
    lines = {line.split()[0]: line.split() for line in shown.out.splitlines() if line.startswith("node")}
    assert lines["node1"][1:] == ["LEADER", "1", "min", "1", "s", "101", "250", "250", "0", "ms", "240"]
    assert lines["node2"][1:] == ["FOLLOWER", "5", "s", "1", "250", "249", "40", "ms", "200"]
    assert lines["node3"][1:3] == ["no", "answer"], "an earlier release says nothing about its role"
    assert lines["node4"][1:] == ["UNKNOWN", "900", "ms", "1", "90", "90", "-", "80"]
    assert max(map(len, shown.out.splitlines())) <= 80


def test_the_document_names_what_pins_the_journal_and_who_did_not_answer(spec: Path) -> None:
    shown = iotctl(spec, "meta", "status", "-o", "json", cluster=FakeCluster(metas=METAS, down={"node5"}))
    rows = {row["node"]: row for row in json.loads(shown.out)["nodes"]}
    assert rows["node4"]["pinned_by"] == "follower node5" and rows["node4"]["age_ms"] is None
    assert rows["node1"]["fallback"] == 100 and rows["node2"]["fallback"] is None
    assert rows["node3"]["role"] is None and "0.1.0" in rows["node3"]["error"]
    assert rows["node5"]["role"] is None and "refused" in rows["node5"]["error"]


def test_without_a_majority_of_the_voters_the_exit_code_says_so(spec: Path) -> None:
    down = {"node1", "node2", "node3", "node4"}
    shown = iotctl(spec, "meta", "status", cluster=FakeCluster(metas=METAS, down=down))
    assert shown.code == 4 and "QUORUM LOST" in shown.out


@dataclass(slots=True)
class Headless(FakeCluster):
    """node1, node2 and node3 of five voters are down. node5 has the longest journal, node4 a later term."""

    down: set[str] = field(default_factory=lambda: {"node1", "node2", "node3"})
    ends: dict[str, tuple[int, int]] = field(default_factory=lambda: {"node4": (4, 80), "node5": (3, 95)})
    asked: list[tuple[str, RecoverMeta]] = field(default_factory=list)
    leads: bool = True
    refusal: str = ""
    state: dict[str, str] = field(default_factory=dict)

    def status(self, node: str) -> NodeStatus:
        found = FakeCluster.status(self, node)
        groups = tuple(self._meta(node, g) if g.group == META else g for g in found.groups)
        return msgspec.structs.replace(found, groups=groups)

    def _meta(self, node: str, group: GroupStatus) -> GroupStatus:
        last_term, last = self.ends.get(node, (3, 70))
        leads = self.leads and any(n == node for n, _ in self.asked)
        role = "leader" if leads else "follower"
        state = self.state.get(node, "running")
        return msgspec.structs.replace(
            group, role=role, term=9, last=last, last_term=last_term, commit=60, state=state
        )

    def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
        if not isinstance(request, RecoverMeta):
            return FakeCluster.call(self, node, request, timeout_s)
        if self.refusal:
            raise Refused(self.refusal)
        self.asked.append((node, request))
        return Accepted(96)


LOST = ("node1", "node2", "node3")
CONFIRMED = ("--accept-data-loss", "--confirm", "plant")


def recover(spec: Path, cluster: FakeCluster, *words: str) -> Any:
    return iotctl(spec, "meta", "recover", *words, cluster=cluster)


def test_the_preview_names_the_newest_journal_and_what_is_lost(spec: Path) -> None:
    """The term counts first, as in an election."""
    cluster = Headless()
    shown = recover(spec, cluster, *LOST, "-o", "json")
    assert shown.code == Exit.REFUSED and not cluster.asked
    found = json.loads(shown.out)
    assert (found["leader"], found["last_term"], found["last"]) == ("node4", 4, 80)
    assert found["term"] == 9 + TERMS_BEYOND and not found["done"]
    assert {s["node"] for s in found["survivors"]} == {"node4", "node5"}
    assert found["next"] == "iotctl meta recover node1 node2 node3 --accept-data-loss --confirm plant"
    table = recover(spec, cluster, *LOST)
    assert "lost: journal entries after 80" in table.out and max(map(len, table.out.splitlines())) <= 80


def test_the_node_with_the_newest_journal_is_asked_to_lead(spec: Path) -> None:
    cluster = Headless()
    done = recover(spec, cluster, *LOST, *CONFIRMED, "-o", "json")
    assert done.code == Exit.DONE, done.err
    assert cluster.asked == [("node4", RecoverMeta(LOST, 9 + TERMS_BEYOND, 80, 4, "tester"))]
    found = json.loads(done.out)
    assert found["done"] and found["next"].startswith("iotctl cluster recover node1 node2 node3")


def test_a_recovery_without_a_leader_in_time_is_partly_done(spec: Path) -> None:
    cluster = Headless(leads=False)
    done = recover(spec, cluster, *LOST, *CONFIRMED, "--timeout", "1s")
    assert done.code == Exit.PARTLY and "recorded on node4" in done.err and len(cluster.asked) == 1


@pytest.mark.parametrize(
    ("cluster", "words", "text"),
    [
        (Headless(), ("node1", "node2"), "name node3 too if it is permanently lost"),
        (Headless(), ("node1", "node2", "node3", "node9"), "node9 is not in the cluster"),
        (Headless(), (*LOST, "node4"), "node4 is not dead: it answers"),
        (Headless(silent_ms=3_000), LOST, "is not dead"),
        (Headless(down={"node1"}), ("node1",), "a majority without node1"),
        (Headless(state={"node5": "damaged"}), LOST, "on node5 is damaged"),
        (Headless(state={"node4": "stopped"}), LOST, "on node4, which has the newest log, is stopped"),
        (Headless(down={f"node{i}" for i in range(1, 6)}), LOST, "no agent returned"),
    ],
)
def test_a_recovery_is_refused_if_a_living_node_could_know_more(
    spec: Path, cluster: Headless, words: tuple[str, ...], text: str
) -> None:
    for flags in ((), CONFIRMED):
        done = recover(spec, cluster, *words, *flags)
        assert done.code in (Exit.REFUSED, Exit.UNREACHABLE) and text in done.err, done.err
    assert not cluster.asked


def test_a_refusal_of_the_node_is_shown(spec: Path) -> None:
    done = recover(spec, Headless(refusal="the journal of node4 now ends at entry 81"), *LOST, *CONFIRMED)
    assert done.code == Exit.REFUSED and "ends at entry 81" in done.err


@dataclass(slots=True)
class Moving(Headless):
    """After the preview, the journal of a survivor that will not lead grows."""

    seen: int = 0

    def statuses(self, timeout_s: float = 2.0) -> Any:
        self.seen += 1
        self.ends["node5"] = (3, 95 + self.seen)
        return FakeCluster.statuses(self, timeout_s)


def test_nothing_is_requested_if_a_journal_changed_after_the_preview(spec: Path) -> None:
    cluster = Moving()
    done = recover(spec, cluster, *LOST, *CONFIRMED)
    assert done.code == Exit.REFUSED and "have changed since they were shown" in done.err, done.err
    assert not cluster.asked
