"""What a machine says about itself: one script, one answer."""

import re
import time
from collections.abc import Sequence

import msgspec

from iotctl.errors import Unreachable
from iotctl.fleet.host import Host
from iotctl.fleet.service import FIND

PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11", "python3")
CLOCK_LOOKS = 3

SCRIPT = (
    FIND
    + r"""
say() { printf '%s=%s\n' "$1" "$2"; }
data=$1; shift
say system "$(uname -s)"
say release "$(uname -r)"
say arch "$(uname -m)"
say hostname "$(uname -n)"
say machine "$(cat /etc/machine-id /proc/sys/kernel/random/boot_id 2>/dev/null | tr '\n' ' ')"
say user "$(id -un)"
say cpus "$(getconf _NPROCESSORS_ONLN)"
say memory_kib "$(awk '/^MemTotal:/ {print $2}' /proc/meminfo 2>/dev/null)"
say files_max "$(ulimit -Hn)"
say init "$(cat /proc/1/comm 2>/dev/null)"
if sudo -n true 2>/dev/null; then say sudo yes; fi
at=$data
while [ ! -d "$at" ]; do at=$(dirname "$at"); done
say data_kib "$(df -Pk "$at" | awk 'NR == 2 {print $4}')"
if [ -w "$at" ]; then say data_writable yes; fi
for name in PYTHONS; do
    if found=$("$name" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null); then
        say python "$name $found"
    fi
done
for port in "$@"; do
    hex=$(printf ':%04X' "$port")
    if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk -v port="$hex" '$4 == "0A" && substr($2, length($2) - 4) == port {found = 1} END {exit !found}'
    then say taken "$port"; fi
done
[ -z "$(agent)" ] || say agent yes
say end yes
"""
).replace("PYTHONS", " ".join(PYTHONS))


class Facts(msgspec.Struct, frozen=True):
    """`machine`: equal for two looks at one machine since it was started. `python`: the newest there is,
    `name version`, or "". `clock_ms`: how far the machine's clock is ahead of ours, known to within
    `clock_error_ms`; None when its `date` told nothing. `data_free_bytes`: where the data would lie. `agent`:
    the node's own runs there."""

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


def read_facts(host: Host, data_dir: str, ports: Sequence[int]) -> Facts:
    """Ask once.

    Raises:
        Unreachable: the connection was lost, or what answers is no POSIX shell.
    """
    words = ["sh", "-s", "--", data_dir, *map(str, ports)]
    ran = host.run(words, stdin=SCRIPT.encode())
    said: dict[str, list[str]] = {}
    for line in ran.out.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        said.setdefault(key, []).append(value)
    if "end" not in said:
        raise Unreachable(
            f"{host.name}: cannot be examined",
            why=ran.err.decode(errors="replace").strip() or f"sh ended with {ran.code}",
            next="the login shell must run `sh`, and print nothing by itself",
            where=host.name,
        )
    clock, error = _clock(host)

    def one(key: str) -> str:
        return said.get(key, [""])[0]

    def number(key: str) -> int:
        return int(one(key)) if one(key).isdigit() else 0

    return Facts(
        system=one("system"),
        release=one("release"),
        arch=one("arch"),
        hostname=one("hostname"),
        machine=one("machine").strip(),
        user=one("user"),
        sudo="sudo" in said,
        cpus=number("cpus"),
        memory_bytes=number("memory_kib") * 1024,
        files_max=(1 << 30) if one("files_max") == "unlimited" else number("files_max"),
        init=one("init"),
        python=max(said.get("python", [""]), key=lambda p: version_of(p.partition(" ")[2])),
        data_free_bytes=number("data_kib") * 1024,
        data_writable="data_writable" in said,
        ports_taken=tuple(int(p) for p in said.get("taken", ())),
        agent="agent" in said,
        clock_ms=None if clock is None else round(clock, 1),
        clock_error_ms=round(error, 1),
    )


def version_of(text: str) -> tuple[int, ...]:
    """`3.11.2` as numbers; () for no version."""
    parts = text.split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else ()


def _clock(host: Host) -> tuple[float | None, float]:
    """(ms ahead of ours, known to within so many ms): the look with the shortest way there and back."""
    looks = []
    for _ in range(CLOCK_LOOKS):
        before = time.time()
        ran = host.run(["date", "+clock=%s.%N"])
        after = time.time()
        found = re.search(rb"clock=(\d+)\.(\d{9})?", ran.out)  # what a login shell printed comes before it
        if found is not None:
            exact = found[2] is not None  # some know no nanoseconds
            theirs = float(found[1] + b"." + (found[2] or b"5"))
            error = (after - before) / 2 + (0.0 if exact else 0.5)
            looks.append((error * 1e3, (theirs - (before + after) / 2) * 1e3))
    if not looks:
        return None, 0.0
    error, offset = min(looks)
    return offset, error
