"""Deployment of a node to a machine: its present state, the necessary changes, and making them.

    INSTALL_DIR/VERSION/       a virtual environment; `.complete` is written last
    DATA_DIR/app               link to the version that this node runs
    DATA_DIR/node.yaml, tls/   settings and certificate of the node
    DATA_DIR/agent.log         the agent's log, unless the agent is a systemd unit (then: the journal)

`question` asks, `changes` decides (pure), `install` and `configure` act; each of them may be repeated.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from iotctl.errors import Unreachable
from iotctl.fleet.asking import Answer, Question
from iotctl.fleet.host import Host, Ran
from iotctl.fleet.service import (
    SUPERVISED,
    SUPERVISOR,
    SYSTEMD,
    UNITS,
    Running,
    Service,
    as_root,
    kind_of,
    unit,
)
from iotctl.fleet.upload import File, put, put_archive

INSTALL_TIMEOUT_S = PRUNE_TIMEOUT_S = 900.0
CONFIG, CA, CERT, KEY = "node.yaml", "tls/ca.pem", "tls/node.pem", "tls/node.key"
READ = (CONFIG, CA, CERT, SUPERVISOR)
"""Files whose content is compared; the content of the key is never read."""

LOOK = r"""
home=$1 install=$2 unit=$3
shift 3
closed() { say unreadable "$1 $(stat -c %U "$1")"; }
say user "$user"
[ -z "$sudo" ] || say sudo yes
if [ -d "$home" ] && ! { [ -r "$home" ] && [ -x "$home" ]; }; then closed "$home"; fi
if [ -d "$home/tls" ] && [ ! -x "$home/tls" ]; then closed "$home/tls"; fi
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
say app "$(readlink "$home/app" 2>/dev/null)"
for mark in "$install"/*/.complete; do
    mark=${mark%/.complete}
    [ ! -e "$mark/.complete" ] || say installed "${mark##*/}"
done
for file in "$@"; do
    if [ -e "$home/$file" ] && [ ! -r "$home/$file" ]; then closed "$home/$file"; fi
    [ ! -f "$home/$file" ] || say "file:$file" "$(base64 -w 0 <"$home/$file" 2>/dev/null)"
done
[ ! -f "$unit" ] || say unit "$(base64 -w 0 <"$unit")"
[ ! -s "$home/tls/node.key" ] || say key yes
for kept in "$home/removing" "$home"/removed-*; do
    [ ! -d "$kept" ] || say kept "$kept"
done
[ ! -d /run/systemd/system ] || say systemd yes
for place in "$home" "$install"; do
    if [ -d "$place" ]; then
        [ -w "$place" ] && say ready "$place"
    else
        at=$(dirname "$place")
        while [ ! -d "$at" ]; do at=$(dirname "$at"); done
        [ -w "$at" ] && say makeable "$place"
    fi
done
"""

MAKE_DIRS = r"""
set -eu
user=$1
shift
while [ $# -gt 0 ]; do
    mode=$1 place=$2
    shift 2
    if [ -d "$place" ] && ls -A "$place" | grep -qvx 'lost+found'; then
        owner=$(stat -c %U "$place")
        [ "$owner" = "$user" ] && continue
        echo "$place is not empty and belongs to $owner" >&2
        exit 1
    fi
    install -d -m "$mode" -o "$user" "$place"
done
"""
"""Refuses a directory that is not empty and belongs to another user."""

INSTALL = r"""
set -eu
base=$1 version=$2 python=$3
cd "$base"
exec 9>.lock
flock 9
if [ ! -e "$version/.complete" ]; then
    rm -rf "$version"
    # Without pip, a virtual environment needs no extra system package; pip runs from its own wheel.
    "$python" -m venv --without-pip "$version"
    "$version/bin/python" "$(echo "wheels-$version"/pip-*.whl)/pip" install --quiet --no-index --no-compile \
        --disable-pip-version-check --find-links "wheels-$version" "nodeagent==$version"
    "$version/bin/nodeagent" --help >/dev/null
    sync -f "$version" 2>/dev/null || sync
    touch "$version/.complete"
fi
mkdir -p "$version/.nodes"
rm -rf "wheels-$version"
"""

MARK = r"""
mark() { printf %s "$home" | sha256sum | cut -c 1-16; }
"""
"""`mark` prints the name under which a version records a data directory that is linked to it."""

LINK = (
    MARK
    + r"""
set -eu
home=$1 target=$2
exec 9>"$(dirname "$target")/.lock"
flock 9
[ -e "$target/.complete" ] || { echo "$target is no longer installed" >&2; exit 1; }
mkdir -p "$target/.nodes"
echo "$home" >"$target/.nodes/$(mark)"
touch "$target/.nodes"
ln -sfn "$target" "$home/app.new"
mv -T "$home/app.new" "$home/app"
"""
)
"""A version records the data directories of all clusters that were linked to it, and the time of the last
link."""

PRUNE = r"""
set -eu
base=$1 current=$2 last=
cd "$base"
exec 9>.lock
flock 9
here=$(pwd -P)
for mark in $(ls -dt -- */.nodes); do
    version=${mark%/.nodes}
    if [ "$version" = "$current" ] || [ ! -e "$version/.complete" ]; then continue; fi
    for file in "$mark"/*; do
        [ -e "$file" ] || continue
        home=$(cat "$file")
        # The directory may be deleted, on an unmounted disk, or another user's: we cannot read its link then.
        if [ ! -x "$home" ] || [ "$home/app" -ef "$version" ]; then continue 2; fi
    done
    for process in /proc/[0-9]*; do
        words=
        { IFS= read -r words <"$process/cmdline"; } 2>/dev/null || true
        case $words in "$base/$version/"* | "$here/$version/"*) continue 2 ;; esac
    done
    if [ -z "$last" ]; then last=$version; continue; fi
    rm -f "$version/.complete"
    rm -rf "$version"
    echo "$version"
done
"""
"""Keeps the unused version that was linked last, for a rollback."""


class Found(msgspec.Struct, frozen=True):
    """The present state of a node's machine.

    `user`: our user there; `sudo`: works without a password. `files`: content by name. `ready`, `makeable`:
    directories that can be written, or created without root. `running`: the first word of the agent's command
    line, "" if it is down. `supervised`: our supervisor runs. `kept`: directories with files of removed
    nodes. `unreadable`: path and owner of files that we may not read; the other fields are then incomplete.
    """

    user: str
    sudo: bool
    libc: str
    app: str
    installed: tuple[str, ...]
    files: dict[str, bytes]
    unit: bytes
    key: bool
    running: str
    systemd: bool
    ready: tuple[str, ...]
    makeable: tuple[str, ...]
    supervised: bool
    unreadable: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def kind(self) -> str:
        """How the agent is kept running: as it is now, or as a new agent would be."""
        if self.unit or self.supervised:
            return SYSTEMD if self.unit else SUPERVISED
        return kind_of(self.systemd, self.user, self.sudo)

    @property
    def needs_sudo(self) -> bool:
        """Whether commands for root run through `sudo -n`."""
        return self.sudo and self.user != "root"

    def service(self, host: Host, node: str, unit: str, home: str) -> Service:
        return Service(host, self.kind, node, unit, home, self.needs_sudo)

    def text(self, name: str) -> str:
        return self.files.get(name, b"").decode(errors="replace")


class Wanted(msgspec.Struct, frozen=True):
    """The desired state of a node's machine; files that are not named stay as they are."""

    node: str
    unit_name: str
    home: str
    install_dir: str
    version: str
    service: str
    user: str
    files: tuple[File, ...]

    @property
    def app(self) -> str:
        return str(PurePosixPath(self.install_dir) / self.version)

    @property
    def unit(self) -> str:
        return unit(self.node, self.home, self.user)


class Change(msgspec.Struct, frozen=True):
    """One necessary change. `what`: `dirs` and `software`, which nothing uses yet; `files`, `version` and
    `unit`, which the agent reads when it starts."""

    what: str
    detail: str

    @property
    def needs_restart(self) -> bool:
        return self.what in ("files", "version", "unit")


def question(home: str, install_dir: str, unit: str) -> Question:
    """The question for the state of the node in `home` whose unit is named `unit`."""
    return Question(LOOK, (home, install_dir, f"{UNITS}/{unit}", *READ))


def found_in(answer: Answer, running: Running) -> Found:
    files = {k[5:]: base64.b64decode(v[0]) for k, v in answer.said.items() if k.startswith("file:")}
    return Found(
        user=answer.one("user"),
        sudo="sudo" in answer,
        libc=answer.one("libc").removeprefix("glibc").strip(),
        app=answer.one("app"),
        installed=answer.every("installed"),
        files=files,
        unit=base64.b64decode(answer.one("unit")),
        key="key" in answer,
        running=running.agent,
        systemd="systemd" in answer,
        ready=answer.every("ready"),
        makeable=answer.every("makeable"),
        supervised=running.supervised,
        unreadable=answer.every("unreadable"),
        kept=answer.every("kept"),
    )


def changes(wanted: Wanted, found: Found) -> list[Change]:
    """The necessary changes in the order in which they are made; empty if the state is as desired. Pure."""
    made: list[Change] = []
    places = [p for p in (wanted.home, wanted.install_dir) if p not in found.ready]
    if places:
        made.append(Change("dirs", f"create {' and '.join(places)}"))
    if wanted.version not in found.installed:
        made.append(Change("software", f"install version {wanted.version}: {wanted.app}"))
    different = [f.name for f in wanted.files if found.files.get(f.name) != f.content]
    if different:
        made.append(Change("files", f"write {', '.join(different)}"))
    if found.app != wanted.app:
        now = f"instead of {PurePosixPath(found.app).name}" if found.app else ""
        made.append(Change("version", f"run {wanted.version} {now}".rstrip()))
    if wanted.service == SYSTEMD and found.unit != wanted.unit.encode():
        made.append(Change("unit", f"write {UNITS}/{wanted.unit_name}"))
    return made


def make_dirs(host: Host, wanted: Wanted, *, sudo: bool) -> None:
    """Raises `Unreachable` with the machine's error output."""
    places = ("755", wanted.install_dir, "750", wanted.home)
    words = ["sh", "-c", MAKE_DIRS, "dirs", wanted.user, *places]
    run_checked(host, as_root(words) if sudo else words, "the node's directories could not be created")


def install(host: Host, wanted: Wanted, python: str, wheels: bytes) -> None:
    """Install the software from `wheels`, a tar. No node runs it yet.

    Raises:
        Unreachable: the installation failed; with pip's error output.
    """
    directory = f"{wanted.install_dir}/wheels-{wanted.version}"
    run_checked(host, ["mkdir", "-p", directory], "the node's directories could not be created")
    put_archive(host, directory, wheels)
    words = ["sh", "-c", INSTALL, "install", wanted.install_dir, wanted.version, python]
    run_checked(host, words, "the software could not be installed", timeout_s=INSTALL_TIMEOUT_S)


def configure(service: Service, wanted: Wanted, made: Sequence[Change]) -> None:
    """Write the files, then the link, then the unit. Of the files, `node.yaml` comes last, since a directory
    without it is not a node.

    Raises:
        Unreachable: the machine could not write them.
    """
    kinds = {c.what for c in made}
    if "files" in kinds:
        put(service.host, wanted.home, sorted(wanted.files, key=lambda f: f.name == CONFIG))
    if "version" in kinds:
        link(service.host, wanted.home, wanted.app)
    if "unit" in kinds:
        service.put_unit(wanted.unit)


def prune(host: Host, install_dir: str, current: str) -> list[str]:
    """Delete the versions that no directory is linked to and no process runs, except the one of them that was
    linked last.

    Returns: the deleted versions.

    Raises:
        Unreachable: the machine could not delete them.
    """
    words = ["sh", "-c", PRUNE, "prune", install_dir, current]
    ran = run_checked(host, words, "old versions could not be deleted", timeout_s=PRUNE_TIMEOUT_S)
    return ran.out.decode(errors="replace").split()


def link(host: Host, home: str, app: str) -> None:
    """Switch the node to another version, which it runs from its next start. Raises `Unreachable`."""
    run_checked(host, ["sh", "-c", LINK, "link", home, app], "the node's version could not be set")


def machines(wanted: Mapping[str, Wanted], machine_of: Mapping[str, str]) -> list[list[str]]:
    """Groups of nodes that share an installation: on the same machine with the same directory."""
    together: dict[tuple[str, str], list[str]] = {}
    for node, one in wanted.items():
        together.setdefault((machine_of[node] or node, one.install_dir), []).append(node)
    return list(together.values())


def run_checked(host: Host, words: Sequence[str], what: str, *, timeout_s: float = 60.0) -> Ran:
    """Run a command. Raises `Unreachable` with `what` and the end of its error output if it fails."""
    ran = host.run(words, timeout_s=timeout_s)
    if ran.code:
        said = ran.err.decode(errors="replace").strip().splitlines()
        why = " | ".join(said[-3:]) or f"the command exited with {ran.code}"
        raise Unreachable(f"{host.name}: {what}", why=why, next="iotctl cluster check", where=host.name)
    return ran
