"""Findings: problems that prevent or impair a node on a machine, each with its fix. Pure."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

import msgspec

from iotctl.fleet.facts import Facts, version_of
from iotctl.humanize import bytes_text

PYTHON_MIN = (3, 11)
CLOCK_WARN_MS, CLOCK_MAX_MS = 500.0, 10_000.0
"""Certificates and TTLs depend on the wall clock; consensus does not."""

DISK_WARN_BYTES, DISK_MIN_BYTES = 10 << 30, 1 << 30
FILES_WARN, FILES_MIN = 65_536, 4_096
MEMORY_WARN_BYTES = 1 << 30


class Place(msgspec.Struct, frozen=True):
    """What a node needs on its machine."""

    node: str
    data_dir: str
    ports: tuple[int, ...]
    host: str = ""


class Finding(msgspec.Struct, frozen=True):
    """`severity`: an `error` prevents the node from running, a `warning` does not. `next`: the fix."""

    severity: str
    code: str
    node: str
    message: str
    next: str


def findings(facts: Mapping[str, tuple[Place, Facts]]) -> list[Finding]:
    """The findings of all machines, errors first, then by node."""
    found = [f for place, one in facts.values() for f in _of_one(place, one)]
    found += _shared(facts)
    found += _names(facts)
    return sorted(found, key=lambda f: (f.severity != "error", f.node, f.code))


def _of_one(place: Place, facts: Facts) -> Iterator[Finding]:
    def at(severity: str, code: str, message: str, fix: str) -> Finding:
        return Finding(severity, code, place.node, message, fix)

    def graded(code: str, is_error: bool, is_warning: bool, message: str, fix: str) -> Iterator[Finding]:
        if is_error or is_warning:
            yield at("error" if is_error else "warning", code, message, fix)

    if facts.system != "Linux":
        yield at("error", "system", f"{facts.system} is not supported", "use a Linux machine")
    if version_of(facts.python.partition(" ")[2]) < PYTHON_MIN:
        has = f"has {facts.python}" if facts.python else "has no Python"
        yield at(
            "error", "python", f"{has}; Python 3.11 or newer is required", "apt-get install python3.11-venv"
        )
    if facts.clock_ms is None:
        yield at("warning", "clock", "the clock could not be read", "compare the output of `date` manually")
    else:
        ahead = abs(facts.clock_ms) - facts.clock_error_ms
        yield from graded(
            "clock",
            ahead > CLOCK_MAX_MS,
            ahead > CLOCK_WARN_MS,
            f"the clock differs from this machine's by {facts.clock_ms / 1e3:+.1f} s",
            "timedatectl set-ntp true",
        )
    yield from graded(
        "disk",
        facts.data_free_bytes < DISK_MIN_BYTES,
        facts.data_free_bytes < DISK_WARN_BYTES,
        f"only {bytes_text(facts.data_free_bytes)} are free for {place.data_dir}",
        "free or add disk space, or set data_dir to another disk",
    )
    if not facts.data_writable and not facts.sudo:
        fix = f"sudo install -d -o {facts.user} {place.data_dir}"
        yield at("error", "data_dir", f"{facts.user} may not write {place.data_dir} and has no sudo -n", fix)
    taken = [p for p in place.ports if p in facts.ports_taken]
    if taken and not facts.agent:
        ports = " and ".join(map(str, taken))
        yield at("error", "port", f"another process listens on {ports}", f"ss -ltnp | grep :{taken[0]}")
    yield from graded(
        "files",
        facts.files_max < FILES_MIN,
        facts.files_max < FILES_WARN,
        f"a process may open only {facts.files_max} files",
        "raise nofile in /etc/security/limits.conf",
    )
    if facts.memory_bytes < MEMORY_WARN_BYTES:
        yield at(
            "warning",
            "memory",
            f"has only {bytes_text(facts.memory_bytes)} of memory",
            "use a machine with 1 GiB or more",
        )


def _names(facts: Mapping[str, tuple[Place, Facts]]) -> Iterator[Finding]:
    """Agents listen on the address to which they resolve their own name, and call each other by name."""
    apart = len({one.machine for _, one in facts.values()}) > 1
    fix = "add the name to DNS or /etc/hosts, or write an address as host into cluster.yaml"
    for place, one in facts.values():
        # The name of another node may be unknown because its machine is lost and about to be replaced.
        for name in [n for n, address in one.addresses.items() if not address]:
            severity = "error" if name == place.host else "warning"
            yield Finding(severity, "names", place.node, f"cannot resolve the name {name}", fix)
        own = one.addresses.get(place.host, "")
        if apart and _is_loopback(own):
            message = f"resolves {place.host}, its own name, to {own}: no other machine could reach its agent"
            yield Finding("error", "names", place.node, message, fix)


def _is_loopback(address: str) -> bool:
    """False for text that is not an address: a machine may return anything."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _shared(facts: Mapping[str, tuple[Place, Facts]]) -> Iterator[Finding]:
    """Nodes that share a machine."""
    there: dict[str, list[Place]] = {}
    for place, one in facts.values():
        others = there.setdefault(one.machine, []) if one.machine else []
        if others:
            names = ", ".join(o.node for o in others)
            message = f"is on the same machine as {names}: one failure stops all of them"
            yield Finding("warning", "machine", place.node, message, "spread the nodes over machines")
        for other in others:
            if place.data_dir == other.data_dir or set(place.ports) & set(other.ports):
                message = f"has the same data_dir or port as {other.node} on the same machine"
                yield Finding("error", "same_place", place.node, message, "set data_dir, port and http_port")
        others.append(place)
