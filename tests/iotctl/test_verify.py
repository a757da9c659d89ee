"""`iotctl verify --repair`: consent, exit codes and output. For repairs themselves see `tests/pipeline`."""

import io
from pathlib import Path

import pytest

from iotctl.errors import Exit
from iotctl.pipeline import verify
from iotctl.pipeline.report import Mismatch, Repair, Unread, VerifyReport
from tests.iotctl.fakes import SPEC, FakeCluster, Ran, Tty, iotctl
from tests.iotctl.test_contract import document


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def mismatch(repaired: bool, reason: str = "") -> Mismatch:
    return Mismatch("node2", 7, "f.tsfile", "", None, "a" * 32, "b" * 32, repaired, reason)


def report(*found: Mismatch, unread: bool = False) -> VerifyReport:
    out = VerifyReport("hash", replicas_compared=3, files=9)
    out.add_mismatches(list(found))
    if any(m.repaired for m in found):
        out.repairs = [Repair("node2", "node1.1", 7, "f.tsfile", ["node1"], "quarantine/node1.1/00007-f")]
    if unread:
        out.unread = [Unread("node3", "node1.1", None, "no contact")]
    return out


class Job:
    """Replaces the Spark job and records whether a repair was requested."""

    def __init__(self, found: VerifyReport) -> None:
        self.found = found
        self.repairs: list[bool] = []

    def __call__(self, spec: object, *, repair: bool, **_: object) -> VerifyReport:
        self.repairs.append(repair)
        return self.found


def ran(
    spec: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: VerifyReport,
    *words: str,
    stdin: io.StringIO | None = None,
) -> tuple[Ran, Job]:
    job = Job(found)
    monkeypatch.setattr(verify, "run", job)
    return iotctl(spec, "verify", *words, cluster=FakeCluster(), stdin=stdin or io.StringIO()), job


def test_repair_without_a_terminal_is_refused_naming_the_flag(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command does not even compare files."""
    done, job = ran(spec, monkeypatch, report(), "--repair", "--depth", "hash")
    assert done.code == Exit.REFUSED and "--yes" in done.err and not job.repairs


@pytest.mark.parametrize(("answer", "code", "asked"), [("y\n", Exit.DONE, [True]), ("n\n", Exit.REFUSED, [])])
def test_the_operator_is_asked_for_consent(
    spec: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: Exit, asked: list[bool]
) -> None:
    """Only `yes` starts the repair."""
    done, job = ran(spec, monkeypatch, report(mismatch(True)), "--repair", stdin=Tty(answer))
    assert done.code == code and job.repairs == asked


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (report(), Exit.DONE),
        (report(mismatch(True)), Exit.DONE),
        (report(mismatch(True), mismatch(False, "no majority")), Exit.VERIFICATION),
        (report(mismatch(True), unread=True), Exit.UNREACHABLE),
        (report(mismatch(False), unread=True), Exit.VERIFICATION),
    ],
    ids=["equal", "all repaired", "one is left", "repaired and unread", "left and unread"],
)
def test_exit_codes(spec: Path, monkeypatch: pytest.MonkeyPatch, found: VerifyReport, code: Exit) -> None:
    """0 if all differences were repaired, 7 if any remains, 4 if something was not read."""
    done, job = ran(spec, monkeypatch, found, "--repair", "--yes", "-o", "json")
    assert done.code == code and job.repairs == [True]
    told = document(done.out)["mismatches"]
    assert [m["repaired"] for m in told] == [m.repaired for m in found.mismatches]


def test_the_table_shows_replaced_and_remaining_files(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table shows where the damaged file is stored, where the good copy came from, and why the other file
    stays."""
    found = report(mismatch(True), mismatch(False, "no majority of the 3 replicas"))
    done, _ = ran(spec, monkeypatch, found, "--repair", "--yes")
    for text in ("quarantine/node1.1/00007-f", "node1", "no majority of the 3 replicas", "FAIL"):
        assert text in done.out, done.out


def test_without_repair_the_next_command_is_named(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repaired without the option."""
    done, job = ran(spec, monkeypatch, report(mismatch(False)), "--depth", "hash")
    assert done.code == Exit.VERIFICATION and job.repairs == [False]
    assert "iotctl verify --depth hash --repair" in done.err


def test_manifest_depth_cannot_repair(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth manifest reads no bytes, so it proves nothing about them."""
    done, job = ran(spec, monkeypatch, report(), "--depth", "manifest", "--repair", "--yes")
    assert done.code == Exit.USAGE and not job.repairs
