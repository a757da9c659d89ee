"""Several questions in one round trip, to the shell of this machine."""

import os
import shutil
import socket
import time
import venv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from iotctl.errors import Unreachable
from iotctl.fleet import facts
from iotctl.fleet.asking import Answer, Question, ask
from iotctl.fleet.host import Ran, ThisHost


def test_each_script_gets_its_own_arguments_and_gives_its_own_answers() -> None:
    """The shell never interprets arguments; scripts share neither variables nor input."""
    odd = "a 'b' $(touch x) \"c\""
    first = Question('mine=1; cat; for word in "$@"; do say word "$word"; done', (odd, "", "-n"))
    second = Question('say count $#; say mine "$mine"; false', ())
    third = Question("say last yes", ())
    one, two, three = ask(ThisHost(), first, second, third)
    assert one.every("word") == (odd, "", "-n") and "count" not in one
    assert (two.number("count"), two.one("mine")) == (0, "") and "mine" in two
    assert three.said == {"last": ["yes"]} and three.one("other") == "" and three.every("other") == ()


def test_a_script_that_ends_early_gives_no_answer() -> None:
    """Otherwise some of the facts would be treated as all of them."""

    class Cut(ThisHost):
        def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 1.0) -> Ran:
            return Ran(137, b"user=bob\nend=0\nuser=", b"Killed")

    with pytest.raises(Unreachable, match="could not be examined") as caught:
        ask(Cut(), Question("", ()), Question("", ()))
    assert caught.value.why == "Killed"
    for broken in ("exit 3", "say a b; : ${nothing?}; say c d", "( say x y"):
        with pytest.raises(Unreachable, match="could not be examined"):
            ask(ThisHost(), Question("say fine yes", ()), Question(broken, ()))


def look(data: Path, *ports: int) -> facts.Facts:
    (answer,) = ask(ThisHost(), facts.question(str(data), ports, ("localhost", "no.such.name.invalid")))
    return facts.facts_of(answer, ThisHost(), agent=False)


def test_a_machine_reports_its_facts(tmp_path: Path) -> None:
    """The disk of a missing directory is that of its parent; a port with a listener is taken."""
    with ExitStack() as opened:
        listen = [opened.enter_context(socket.create_server(("127.0.0.1", 0)))]
        if Path("/proc/net/tcp6").exists():
            listen.append(opened.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6)))
        talks = opened.enter_context(socket.create_connection(listen[0].getsockname()))
        taken = {s.getsockname()[1] for s in listen}
        found = look(tmp_path / "to be" / "made", *taken, talks.getsockname()[1])
    assert set(found.ports_taken) == taken
    assert found.addresses["localhost"] in ("127.0.0.1", "::1")
    assert found.addresses["no.such.name.invalid"] == ""
    assert found.cpus == os.cpu_count() and found.system == "Linux" and found.data_writable
    assert abs(found.data_free_bytes - shutil.disk_usage(tmp_path).free) < 1 << 30
    name, _, version = found.python.partition(" ")
    assert name.startswith("python3") and facts.version_of(version) > (3,)


def test_installed_software_reports_its_python(tmp_path: Path) -> None:
    """This is the Python that the software runs from, if it still exists, whatever else is installed."""
    venv.create(tmp_path / "software", with_pip=False, symlinks=True)
    (tmp_path / "app").symlink_to(tmp_path / "software")
    settings = tmp_path / "software" / "pyvenv.cfg"
    base, version = "", ""
    for line in settings.read_text().splitlines():
        key, _, value = line.partition(" = ")
        base, version = (value if key == "home" else base), (value if key == "version" else version)
    expected = f"{base}/python{version.rpartition('.')[0]} {version}"
    assert look(tmp_path).python == expected
    settings.write_text(settings.read_text().replace(base, "/nowhere"))
    assert look(tmp_path).python.startswith("python3")
    settings.write_text(settings.read_text().replace("/nowhere", base))
    (tmp_path / "software" / "bin" / "python").unlink()
    assert look(tmp_path).python.startswith("python3")


class Clock(ThisHost):
    """A machine whose `date` is `ahead_s` ahead of ours; counts separate requests for the clock."""

    looks = 0

    def __init__(self, ahead_s: float, nanoseconds: bool = True) -> None:
        self.ahead_s = ahead_s
        self.nanoseconds = nanoseconds

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 1.0) -> Ran:
        self.looks += 1
        now = time.time() + self.ahead_s
        date = f"{now:.9f}" if self.nanoseconds else f"{int(now)}.%N"
        return Ran(0, f"hello\nclock={date}\n".encode(), b"")


def heard(took_s: float, date: str) -> Answer:
    now = time.time()
    return Answer({"clock": [date]}, now - took_s, now)


def test_a_correct_clock_is_read_once() -> None:
    """One round trip per machine; its duration bounds the error of the clock."""
    host = Clock(0.0)
    found = facts.facts_of(heard(0.2, f"{time.time() - 0.2:.9f}"), host, agent=False)
    assert found.clock_ms == pytest.approx(-100, abs=20) and found.clock_error_ms == pytest.approx(100, abs=5)
    assert host.looks == 0


@pytest.mark.parametrize(("took_s", "ahead_s"), [(0.1, 2.0), (0.1, -2.0), (3.0, 0.0)])
def test_a_clock_that_may_be_off_is_read_again(took_s: float, ahead_s: float) -> None:
    """Either the clock is off, or the machine answered too slowly to tell."""
    host = Clock(ahead_s)
    found = facts.facts_of(heard(took_s, f"{time.time() + ahead_s:.9f}"), host, agent=False)
    assert host.looks == 3 and found.clock_error_ms < 20
    assert found.clock_ms == pytest.approx(ahead_s * 1e3, abs=20)


def test_without_nanoseconds_the_clock_is_known_to_half_a_second() -> None:
    """Some `date` programs print %N literally."""
    found = facts.facts_of(heard(0.02, f"{int(time.time())}.%N"), Clock(0.0, nanoseconds=False), agent=False)
    assert 500 <= found.clock_error_ms < 520 and found.clock_ms is not None
    assert abs(found.clock_ms) <= 520
    assert facts.facts_of(heard(0.02, "?"), Clock(0.0), agent=False).clock_ms is None
