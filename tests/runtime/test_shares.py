"""Slow reads of one peer wait for each other, and no other peer waits for all of them."""

from collections.abc import Callable

from nodeagent.runtime.shares import AT_WORK_DEFAULT, RUNNING_MAX, WAITING_MAX, FairQueue

READER, ADMIN = ("reader", "bob"), ("admin", "alice")


def work(begun: list[str], name: str, wanted: bool = True) -> Callable[[], bool]:
    def start() -> bool:
        if wanted:
            begun.append(name)
        return wanted

    return start


def test_a_reader_runs_few_reads_and_other_peers_start_at_once() -> None:
    shares, begun = FairQueue(), list[str]()
    for i in range(100):
        assert shares.add(READER, work(begun, f"r{i}"))
    assert len(begun) == RUNNING_MAX["reader"] and shares.waiting == 100 - len(begun)
    assert shares.add(ADMIN, work(begun, "a"))
    assert begun[-1] == "a"
    shares.done(READER)
    assert begun[-1] == f"r{RUNNING_MAX['reader']}", "in order of arrival"
    assert RUNNING_MAX["reader"] < AT_WORK_DEFAULT


def test_every_read_starts_once_and_an_abandoned_read_takes_no_turn() -> None:
    shares, begun = FairQueue(), list[str]()
    for i in range(30):
        shares.add(READER, work(begun, f"r{i}", wanted=i % 3 > 0))
    for done in range(20):
        assert len(begun) - done <= RUNNING_MAX["reader"]
        shares.done(READER)
    assert begun == [f"r{i}" for i in range(30) if i % 3]
    assert not shares.waiting and not shares._at_work and not shares._waiting


def test_waiting_reads_of_one_peer_are_bounded() -> None:
    shares, begun = FairQueue(), list[str]()
    for _ in range(RUNNING_MAX["reader"] + WAITING_MAX):
        assert shares.add(READER, work(begun, "r"))
    assert not shares.add(READER, work(begun, "r"))
    assert shares.add(("reader", "eve"), work(begun, "e"))
