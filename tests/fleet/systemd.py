"""Machines with a real systemd as PID 1, each in its own namespaces on the machine that runs the tests.

Such a machine shares files, network and clock with its host. It has its own processes, cgroups, /run, /dev,
/etc (a copy) and units: little more than a journal and an sshd. Kernel-wide settings below /proc/sys and /sys
are read-only there. When its PID 1 is killed, all its processes and mounts end; only its directory and its
cgroup, which is removed, are on the host.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fleet.plant import Plant, laid_out
from tests.fleet.sshd import SSHD, Sshd, make_key

SYSTEMD = Path("/lib/systemd/systemd")
BOOT_S = 60.0
COMMAND_S = 30.0

FORBIDDEN = "audit_control,audit_read,mac_admin,sys_boot,sys_module,sys_rawio,sys_time,syslog"
"""Units that would change the shared kernel."""

LOGIN, LOGIN_ID = "iotops", 54321
"""An ordinary user of every machine; `FREE` lets it use sudo freely, `ASKED` only with a password."""

FREE, ASKED = f"{LOGIN} ALL=(ALL) NOPASSWD: ALL\n", f"{LOGIN} ALL=(ALL) ALL\n"

JOURNAL = """[Journal]
Storage=volatile
ReadKMsg=no
Audit=
ForwardToSyslog=no
ForwardToWall=no
"""

UNITS = (
    "basic.target",
    "multi-user.target",
    "network-online.target",
    "network.target",
    "shutdown.target",
    "sockets.target",
    "sysinit.target",
    "systemd-journald-dev-log.socket",
    "systemd-journald.service",
    "systemd-journald.socket",
)

BEGIN = r"""
set -eu
read -r pid rest </proc/self/stat  # still the host's
echo "$pid" >"$1/init"
echo 0 >"$2/cgroup.procs"
exec unshare --cgroup sh -c "$3" boot "$1"
"""

BOOT = r"""
set -eu
own=$1
mount -t proc proc /proc
mount -o bind,ro /proc/sys /proc/sys
mount -o remount,bind,ro /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run

mkdir -p /run/own/dev/pts /run/own/dev/shm /run/own/units /run/sshd
cp -a /etc /run/own/etc
rm -rf /run/own/etc/systemd /run/own/etc/sudoers*
cp -a "$own/etc/." /run/own/etc
mount --bind /run/own/etc /etc

for device in full null random tty urandom zero; do
    touch "/run/own/dev/$device"
    mount --bind "/dev/$device" "/run/own/dev/$device"
done
ln -s pts/ptmx /run/own/dev/ptmx
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /run/own/dev/pts
mount -t tmpfs tmpfs /run/own/dev/shm
touch /run/own/dev/kmsg
mount --bind "$own/said" /run/own/dev/kmsg
mount --rbind /run/own/dev /dev

cd /lib/systemd/system
for unit in UNITS; do [ ! -e "$unit" ] || cp "$unit" /run/own/units; done
cd /
mount --bind /run/own/units /lib/systemd/system
for place in /lib/systemd/system-generators /usr/local/lib/systemd; do
    [ ! -d "$place" ] || mount -t tmpfs -o mode=755 tmpfs "$place"
done

exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=tests \
    SYSTEMD --system --unit=multi-user.target --log-target=kmsg --show-status=false
""".replace("UNITS", " ".join(UNITS)).replace("SYSTEMD", str(SYSTEMD))

SSHD_UNIT = """[Unit]
After=multi-user.target systemd-journald.service

[Service]
ExecStart={sshd} -D -e -f {directory}/sshd_config
StandardError=append:{directory}/log
KillMode=process
{service}
"""


class NoBoot(Exception):
    """No machine can be created here; the text is the reason."""


@dataclass
class Machine(Sshd):
    """Boots when created. `login`: the user of iotctl's SSH logins. `service`: more lines for sshd's unit."""

    login: str = "root"
    service: str = ""

    def start(self) -> None:
        """Boot the machine. Raises `NoBoot` with the last output of systemd."""
        self._lay_out_etc()
        groups = _cgroups()
        for left in groups.glob("iotctl-test-*"):  # left by a run that was killed
            if not Path("/proc", left.name.split("-")[2]).exists():
                _removed(left)
        self._group = groups / f"iotctl-test-{os.getpid()}-{self.port}"
        self._group.mkdir()
        for name in ("init", "said", "log"):
            (self.directory / name).write_bytes(b"")
        words = ["setpriv", "--pdeathsig=KILL", f"--bounding-set=-{FORBIDDEN.replace(',', ',-')}", "unshare"]
        words += ["--mount", "--propagation=private", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words += ["sh", "-c", BEGIN, "begin", str(self.directory), str(self._group), BOOT]
        with (self.directory / "boot").open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_up()
        except BaseException:
            self.stop()
            raise

    @property
    def user(self) -> str:
        return self.login

    @property
    def pid(self) -> int:
        """The pid of the machine's PID 1 on the host; 0 before it is started."""
        return int((self.directory / "init").read_text() or 0)

    @property
    def root(self) -> Path:
        """The machine's files as the host can read them."""
        return Path(f"/proc/{self.pid}/root")

    def run(self, *words: str) -> str:
        """Run a command inside the machine, as root, and return its output whether it succeeds or not."""
        said = self.directory / "ran"
        command = [
            "nsenter",
            f"--target={self.pid}",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--cgroup",
            *words,
        ]
        with said.open("wb") as out:  # no pipe: a process that the command leaves behind would keep it open
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=COMMAND_S)
        return said.read_text()

    def units(self) -> list[str]:
        """The units of agents according to systemd and its directory."""
        listed = self.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "nodeagent-*")
        files = (self.root / "etc/systemd/system").rglob("nodeagent-*")
        return sorted({*(line.split()[0] for line in listed.splitlines()), *(f.name for f in files)})

    def stop(self) -> None:
        if pid := self.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait(10)
        deadline = time.monotonic() + 10.0
        while not _removed(self._group):  # until the last process has been reaped
            assert time.monotonic() < deadline, f"{self._group} cannot be removed"
            time.sleep(0.05)

    def _lay_out_etc(self) -> None:
        """Write what differs from the host's /etc. Machines share software, and therefore one machine-id."""
        sshd = SSHD_UNIT.format(sshd=SSHD, directory=self.directory, service=self.service)
        files = {
            "machine-id": "0123456789abcdef0123456789abcdef\n",
            "passwd": Path("/etc/passwd").read_text()
            + f"{LOGIN}:x:{LOGIN_ID}:{LOGIN_ID}::/nonexistent:/bin/sh\n",
            "group": Path("/etc/group").read_text() + f"{LOGIN}:x:{LOGIN_ID}:\n",
            "shadow": Path("/etc/shadow").read_text() + f"{LOGIN}:*:20000:0:99999:7:::\n",
            "sudoers": FREE,
            "systemd/journald.conf": JOURNAL,
            "systemd/system/sshd.service": sshd,
        }
        etc = self.directory / "etc"
        shutil.rmtree(etc, ignore_errors=True)
        for name, text in files.items():
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            (etc / name).write_text(text)
            (etc / name).chmod(0o440 if name in ("shadow", "sudoers") else 0o644)
        wants = etc / "systemd/system/multi-user.target.wants"
        wants.mkdir()
        for unit in ("sshd.service", *(u for u in UNITS if "journald" in u)):
            (wants / unit).symlink_to(f"../{unit}")

    def _wait_up(self) -> None:
        deadline = time.monotonic() + BOOT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                socket.create_connection((self.address, self.port), 1.0).close()
                return
            time.sleep(0.05)
        texts = [(self.directory / name).read_text(errors="replace") for name in ("boot", "said", "log")]
        said = [line for text in texts for line in text.splitlines()]
        raise NoBoot(" | ".join(said[-5:]) or "systemd said nothing")


@contextmanager
def booted(directory: Path, nodes: Sequence[str], login: str = "root", service: str = "") -> Iterator[Plant]:
    """A machine for each node, as `tests.fleet.plant.machines` makes them.

    Raises:
        NoBoot: this host cannot run any.
    """
    if os.geteuid() != 0:
        raise NoBoot("only root makes namespaces")
    if not SYSTEMD.exists():
        raise NoBoot(f"{SYSTEMD} is missing")
    key = make_key(directory / "id")
    hosts: dict[str, Sshd] = {}
    with ExitStack() as ending:
        for i, name in enumerate(nodes, 1):
            address = f"127.0.0.{i}"
            hosts[name] = Machine(directory / name, key, address=address, login=login, service=service)
            ending.callback(hosts[name].stop)
        yield laid_out(directory, nodes, hosts)


def _cgroups() -> Path:
    """Where the host mounts cgroups v2."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(place)
    raise NoBoot("no cgroup2 is mounted that can be written")


def _removed(group: Path) -> bool:
    """Remove a cgroup and those below it. Returns False while one of them contains a process."""
    below = sorted((d for d, _, _ in os.walk(group)), key=len, reverse=True)
    with suppress(OSError):
        for directory in below:
            os.rmdir(directory)
    return not group.exists()
