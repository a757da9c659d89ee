"""Facts of a machine: system, resources, clock, Python and ports."""

import re
import time
from collections.abc import Sequence

import msgspec

from iotctl.fleet.asking import Answer, Question
from iotctl.fleet.host import Host

PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
"""Newest first."""

CLOCK_CLEAR_MS, CLOCK_LOOKS = 250.0, 3
"""A clock that may be off by more than `CLOCK_CLEAR_MS` is read `CLOCK_LOOKS` more times, each time in a
command of its own."""

SCRIPT = r"""
say clock "$(date +%s.%N)"
data=$1 names=$2
shift 2
# Shell built-ins start no process: on a small machine each process costs a millisecond or two.
line_of() {
    line=
    { IFS= read -r line <"$1"; } 2>/dev/null
}
named() {
    say system "$1"
    say hostname "$2"
    say release "$3"
    say arch "$4"
}
named $(uname -snrm)
machine=
for id in /etc/machine-id /proc/sys/kernel/random/boot_id; do
    line_of "$id"
    machine="$machine$line "
done
say machine "$machine"
say user "$user"
cpus=0
while IFS=' :' read -r key rest; do
    case $key in cpu[0-9]*) cpus=$((cpus + 1)) ;; cpu) ;; *) break ;; esac
done 2>/dev/null </proc/stat
say cpus "$cpus"
memory=
while read -r key kib rest; do
    [ "$key" = MemTotal: ] && memory=$kib && break
done 2>/dev/null </proc/meminfo
say memory_kib "$memory"
say files_max "$(ulimit -Hn)"
line_of /proc/1/comm
say init "$line"
[ -z "$sudo" ] || say sudo yes
at=$data
while [ ! -d "$at" ]; do at=$(dirname "$at"); done
command -v getent >/dev/null || names=
patience=
command -v timeout >/dev/null && patience="timeout 5"
for name in $names; do  # in parallel: with a name server that is down, each lookup times out
    (
        set -- $($patience getent ahosts "$name" 2>/dev/null)
        say address "$name $1"
    ) &
done
wait
ports=$*
set -- $(LC_ALL=C df -Pk "$at")
say data_kib "${11}"  # in this locale, the heading of df has seven words
if [ -w "$at" ]; then say data_writable yes; fi
# The Python of the installed software; otherwise the newest, which must be started to get its version.
base= version=
while IFS=' =' read -r key value; do
    case $key in
        home) base=$value ;;
        version) version=$value ;;
    esac
done 2>/dev/null <"$data/app/pyvenv.cfg"
python="$base/python${version%.*} $version"
case $python in *" "*" "*) python= ;; esac
[ -x "${python% *}" ] && [ -x "$data/app/bin/python" ] || python=
[ -z "$python" ] || say python "$python"
for name in PYTHONS; do
    [ -z "$python" ] || break
    command -v "$name" >/dev/null || continue
    if found=$("$name" -ISc 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null); then
        say python "$name $found"
        break
    fi
done
six=/proc/net/tcp6
[ -r "$six" ] || six=
awk -v ports="$ports" '
    BEGIN { count = split(ports, port, " "); for (i = 1; i <= count; i++) hex[i] = sprintf(":%04X", port[i]) }
    $4 == "0A" { listens[substr($2, length($2) - 4)] = 1; next }
    FNR > 1 { nextfile }  # listening sockets come first, and there may be many others
    END { for (i = 1; i <= count; i++) if (hex[i] in listens) print "taken=" port[i] }' \
    /proc/net/tcp $six
""".replace("PYTHONS", " ".join(PYTHONS))


class Facts(msgspec.Struct, frozen=True):
    """`machine`: identifies the machine until it reboots. `python`: the Python of the installed software,
    else the newest: `name version`, or "". `clock_ms`: how far the machine's clock is ahead of ours, to
    within `clock_error_ms`; None if `date` printed no time. `data_free_bytes`: free on the disk for the
    data. `agent`: the node's agent runs. `addresses`: how the machine resolves the hosts of all nodes, ""
    for an unknown name."""

    system: str
    release: str
    arch: str
    hostname: str
    machine: str
    user: str
    sudo: bool
    cpus: int
    memory_bytes: int
    files_max: int
    init: str
    python: str
    data_free_bytes: int
    data_writable: bool
    ports_taken: tuple[int, ...]
    agent: bool
    clock_ms: float | None
    clock_error_ms: float
    addresses: dict[str, str] = {}


def question(data_dir: str, ports: Sequence[int], names: Sequence[str] = ()) -> Question:
    """The question for the facts of a node's machine; `names` are the host names of all nodes."""
    return Question(SCRIPT, (data_dir, " ".join(names), *map(str, ports)))


def facts_of(answer: Answer, host: Host, *, agent: bool) -> Facts:
    """The facts in the answer. Reads the clock again if the answer leaves open whether it is far off.

    Args:
        agent: the node's agent runs there.

    Raises:
        Unreachable: the connection was lost.
    """
    clock, error = _clock(answer, host)
    return Facts(
        system=answer.one("system"),
        release=answer.one("release"),
        arch=answer.one("arch"),
        hostname=answer.one("hostname"),
        machine=answer.one("machine").strip(),
        user=answer.one("user"),
        sudo="sudo" in answer,
        cpus=answer.number("cpus"),
        memory_bytes=answer.number("memory_kib") * 1024,
        files_max=(1 << 30) if answer.one("files_max") == "unlimited" else answer.number("files_max"),
        init=answer.one("init"),
        python=answer.one("python"),
        data_free_bytes=answer.number("data_kib") * 1024,
        data_writable="data_writable" in answer,
        ports_taken=tuple(int(p) for p in answer.every("taken")),
        agent=agent,
        clock_ms=None if clock is None else round(clock, 1),
        clock_error_ms=round(error, 1),
        addresses=dict(sorted((n, a) for n, _, a in (v.partition(" ") for v in answer.every("address")))),
    )


def version_of(text: str) -> tuple[int, ...]:
    """`3.11.2` as numbers; () if the text is not a version."""
    parts = text.split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else ()


def _clock(answer: Answer, host: Host) -> tuple[float | None, float]:
    """(ms ahead of our clock, error in ms)."""
    first = _offset(answer.one("clock"), answer.asked_s, answer.heard_s)
    if first is None:
        return None, 0.0
    looks = [first]
    if first[0] + abs(first[1]) > CLOCK_CLEAR_MS:
        for _ in range(CLOCK_LOOKS):
            before = time.time()
            ran = host.run(["date", "+clock=%s.%N"])
            after = time.time()
            # A login shell may have printed something before the time.
            found = _offset(ran.out.decode(errors="replace").rpartition("clock=")[2], before, after)
            looks += [found] if found else []
    error, offset = min(looks)
    return offset, error


def _offset(date: str, before: float, after: float) -> tuple[float, float] | None:
    """(error in ms, ms ahead) of a `date` that was read between `before` and `after`."""
    found = re.match(r"(\d+)\.(\d{9})?", date)
    if found is None:
        return None
    exact = found[2] is not None  # some `date` programs print no nanoseconds
    theirs = float(f"{found[1]}.{found[2] or '5'}")
    error = (after - before) / 2 + (0.0 if exact else 0.5)
    return error * 1e3, (theirs - (before + after) / 2) * 1e3
