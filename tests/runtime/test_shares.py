"""One peer's slow reads wait for each other, and nobody waits for all of them."""

from collections.abc import Callable

from nodeagent.runtime.shares import AT_WORK, AT_WORK_DEFAULT, WAITING_MAX, Shares

READER, ADMIN = ("reader", "bob"), ("admin", "alice")


def work(begun: list[str], name: str, wanted: bool = True) -> Callable[[], bool]:
    def start() -> bool:
        if wanted:
            begun.append(name)
        return wanted

    return start


def test_a_reader_has_few_reads_at_work_and_others_begin_at_once() -> None:
    shares, begun = Shares(), list[str]()
    for i in range(100):
        assert shares.add(READER, work(begun, f"r{i}"))
    assert len(begun) == AT_WORK["reader"] and shares.waiting == 100 - len(begun)
    assert shares.add(ADMIN, work(begun, "a"))
    assert begun[-1] == "a"
    shares.done(READER)
    assert begun[-1] == f"r{AT_WORK['reader']}", "in the order they came"
    assert AT_WORK["reader"] < AT_WORK_DEFAULT


def test_every_read_begins_once_and_what_is_wanted_no_more_takes_no_turn() -> None:
    shares, begun = Shares(), list[str]()
    for i in range(30):
        shares.add(READER, work(begun, f"r{i}", wanted=i % 3 > 0))
    for done in range(20):
        assert len(begun) - done <= AT_WORK["reader"]
        shares.done(READER)
    assert begun == [f"r{i}" for i in range(30) if i % 3]
    assert not shares.waiting and not shares._at_work and not shares._waiting


def test_what_one_peer_may_have_waiting_is_bounded() -> None:
    shares, begun = Shares(), list[str]()
    for _ in range(AT_WORK["reader"] + WAITING_MAX):
        assert shares.add(READER, work(begun, "r"))
    assert not shares.add(READER, work(begun, "r"))
    assert shares.add(("reader", "eve"), work(begun, "e"))
