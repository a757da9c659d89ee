"""The agent on a machine as a service: start, stop, reload, remove, and read the end of its log.

If systemd runs and we may control it (root, or `sudo -n`), the agent is a unit. Otherwise a small supervisor
in the node's directory restarts the agent when it exits, with growing pauses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from iotctl.errors import Unreachable
from iotctl.fleet.asking import Answer, Question
from iotctl.fleet.host import RUN_TIMEOUT_S, Host, Ran
from iotctl.fleet.upload import File

SYSTEMD, SUPERVISED = "systemd", "supervised"
STOP_S = 60
"""How long an agent has to transfer its leadership and exit before it is killed."""

SUPERVISOR = "supervise"
UNITS = "/etc/systemd/system"

SUPERVISE = r"""#!/bin/sh
# Written by iotctl. Keeps the agent of one directory running until it gets SIGTERM.
home=$1
log=$home/agent.log
exec 9>"$home/supervisor.lock"
flock -n 9 || exit 75
echo $$ >"$home/supervisor.pid"
ulimit -n "$(ulimit -Hn)"
child= stopping= pause=1
trap 'stopping=yes; [ -z "$child" ] || kill "$child" 2>/dev/null' TERM INT
while [ -z "$stopping" ]; do
    if [ "$(wc -c <"$log" 2>/dev/null || echo 0)" -gt 67108864 ]; then mv "$log" "$log.1"; fi
    began=$(date +%s)
    "$home/app/bin/nodeagent" run "$home" >>"$log" 2>&1 9>&- &
    child=$!
    [ -z "$stopping" ] || kill "$child" 2>/dev/null
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    child=
    [ -z "$stopping" ] || break
    if [ $(($(date +%s) - began)) -gt 60 ]; then pause=1; fi
    echo "the agent ended; it is started again in $pause s" >>"$log"
    sleep "$pause" 9>&- &
    wait $!
    [ "$pause" -ge 32 ] || pause=$((pause * 2))
done
rm -f "$home/supervisor.pid"
"""

FIND = r"""
home=$1
# The shell's `read` drops the NUL bytes between the words, and needs no process per candidate.
whose() {
    words=
    { IFS= read -r words <"/proc/$1/cmdline"; } 2>/dev/null
}
agent() {
    for process in /proc/[0-9]*; do
        whose "${process#/proc/}"
        case $words in *"nodeagentrun$home") echo "${process#/proc/}"; return ;; esac
    done
}
supervisor() {
    pid=
    { read -r pid <"$home/supervisor.pid"; } 2>/dev/null
    [ -n "$pid" ] || return 0
    whose "$pid"
    case $words in *"$home/SUPERVISOR$home") echo "$pid" ;; esac
}
""".replace("SUPERVISOR", SUPERVISOR)
"""Defines `agent` and `supervisor`, which print a pid or nothing."""

_LOOK = (
    FIND
    + r"""
[ -z "$(supervisor)" ] || say supervised yes
pid=$(agent)
[ -z "$pid" ] || tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | {
    IFS= read -r words
    say running "$words"
}
"""
)

_START = (
    FIND
    + r"""
[ -z "$(supervisor)" ] || exit 0
setsid sh "$home/SUPERVISOR" "$home" </dev/null >/dev/null 2>>"$home/agent.log" &
for i in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.1
    [ -z "$(supervisor)" ] || exit 0
done
tail -n 2 "$home/agent.log" >&2
exit 1
""".replace("SUPERVISOR", SUPERVISOR)
)

_STOP = (
    FIND
    + r"""
grace=$2
one=$(supervisor)
two=$(agent)
[ -z "$one$two" ] && exit 0
# One signal only: the supervisor forwards it, and an agent that gets a second signal transfers no leadership.
kill ${one:-$two} 2>/dev/null
end=$(($(date +%s) + grace))
while [ -n "$(supervisor)$(agent)" ]; do
    if [ "$(date +%s)" -ge "$end" ]; then
        kill -9 $(supervisor) $(agent) 2>/dev/null
        echo killed
    fi
    sleep 0.1
done
"""
)

_STOP_UNIT = (
    FIND
    + r"""
unit=$2
systemctl stop "$unit" && exit
code=$?
# 5: there is no such unit. A node that was never deployed, or is deleted already, counts as stopped.
[ "$code" = 5 ] && [ -z "$(agent)" ] && exit
exit "$code"
"""
)

_RELOAD = (
    FIND
    + r"""
# An agent that has just started does not catch the signal yet and would exit.
tries=300
while pid=$(agent); [ -n "$pid" ]; do
    case $(grep ^SigCgt: "/proc/$pid/status" 2>/dev/null) in
        *[13579bdf]) kill -HUP "$pid" && echo notified; exit ;;
    esac
    tries=$((tries - 1))
    if [ "$tries" = 0 ]; then echo "the agent does not handle SIGHUP" >&2; exit 1; fi
    sleep 0.1
done
"""
)


class Running(msgspec.Struct, frozen=True):
    """`agent`: the first word of its command line, "" if it is down. `supervised`: our supervisor runs."""

    agent: str
    supervised: bool


def question(home: str) -> Question:
    """The question of whether the agent of the node in `home` runs. Its script reads the command lines of all
    processes, so the question is asked only once."""
    return Question(_LOOK, (home,))


def running_in(answer: Answer) -> Running:
    return Running(answer.one("running"), "supervised" in answer)


def unit_name(cluster: str, node: str) -> str:
    """The unit's name, with the cluster: nodes of two clusters on one machine may have the same name."""
    return f"nodeagent-{cluster}-{node}.service"


def unit(node: str, home: str, user: str) -> str:
    """The text of the node's systemd unit."""
    return f"""# Written by iotctl.
[Unit]
Description=nodeagent {node}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
User={user}
ExecStart={home}/app/bin/nodeagent run {home}
Restart=always
RestartSec=2
TimeoutStopSec={STOP_S}
KillMode=mixed
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, slots=True)
class Service:
    """The agent of one node as a service of its machine. `kind` is `SYSTEMD` or `SUPERVISED`, `unit` the name
    of its unit; `sudo`: commands for root run through `sudo -n`."""

    host: Host
    kind: str
    node: str
    unit: str
    home: str
    sudo: bool

    def start(self) -> None:
        """Start the agent unless it runs; returns once it has started, before it serves.

        Raises:
            Unreachable: it could not be started; the end of its log says why.
        """
        if self.kind == SYSTEMD:
            ran = self._as_root(["systemctl", "enable", "--now", self.unit])
        else:
            ran = self.host.run(["sh", "-c", _START, "start", self.home])
        self._check(ran, "the agent did not start")

    def stop(self) -> bool:
        """Stop the agent; True if it had to be killed, which systemd does not report.

        Raises:
            Unreachable: the agent may still run.
        """
        timeout_s = STOP_S + 30.0
        if self.kind == SYSTEMD:
            words = ["sh", "-c", _STOP_UNIT, "stop", self.home, self.unit]
            ran = self._as_root(words, timeout_s=timeout_s)
        else:
            words = ["sh", "-c", _STOP, "stop", self.home, str(STOP_S)]
            ran = self.host.run(words, timeout_s=timeout_s)
        self._check(ran, "the agent did not stop")
        return b"killed" in ran.out

    def reload(self) -> bool:
        """Make the agent load its renewed certificate; False if it does not run.

        Raises:
            Unreachable: the agent could not be notified.
        """
        words = ["sh", "-c", _RELOAD, "reload", self.home]
        ran = self._as_root(words) if self.kind == SYSTEMD else self.host.run(words)
        self._check(ran, "the agent could not be notified of its new certificate", "restart")
        return b"notified" in ran.out

    def log_tail(self, lines: int) -> str:
        """The last lines of the agent's log."""
        if self.kind == SYSTEMD:
            words = ["journalctl", "--no-pager", "--output=cat", f"--lines={lines}", f"--unit={self.unit}"]
            ran = self._as_root(words)
        else:
            ran = self.host.run(["tail", "-n", str(lines), f"{self.home}/agent.log"])
        self._check(ran, "the log cannot be read", "check")
        return ran.out.decode(errors="replace")

    def put_unit(self, text: str) -> None:
        """Write the unit, readable by all users, and make systemd load it. Raises `Unreachable`."""
        path = f"{UNITS}/{self.unit}"
        script = f"umask 022 && cat >{path}.new && mv {path}.new {path} && systemctl daemon-reload"
        ran = self._as_root(["sh", "-c", script], stdin=text.encode())
        self._check(ran, f"{path} could not be written")

    def remove(self) -> None:
        """Stop the agent and remove its unit, so that nothing starts it. Raises `Unreachable`."""
        self.stop()
        if self.kind == SYSTEMD:
            path = f"{UNITS}/{self.unit}"
            script = (
                f"systemctl disable --quiet {self.unit}; rm -f {path}; systemctl daemon-reload;"
                f" systemctl reset-failed {self.unit} 2>/dev/null || :"  # systemd remembers a killed unit
            )
            ran = self._as_root(["sh", "-c", script])
            self._check(ran, f"{path} could not be removed")

    def _as_root(self, words: list[str], stdin: bytes = b"", timeout_s: float = RUN_TIMEOUT_S) -> Ran:
        return self.host.run(as_root(words) if self.sudo else words, stdin=stdin, timeout_s=timeout_s)

    def _check(self, ran: Ran, what: str, verb: str = "logs") -> None:
        if ran.code:
            said = ran.err.decode(errors="replace").strip().replace("\n", " | ")
            raise Unreachable(
                f"{self.host.name}: {what}",
                why=said or f"the command exited with {ran.code}",
                next=f"iotctl cluster {verb} {self.node}",
                where=self.host.name,
            )


def kind_of(systemd: bool, user: str, sudo: bool) -> str:
    """How a new agent is kept running on a machine. `systemd`: whether systemd runs there."""
    return SYSTEMD if systemd and (user == "root" or sudo) else SUPERVISED


def files_of(kind: str) -> tuple[File, ...]:
    """The files that this kind of service needs in the node's directory."""
    return (File(SUPERVISOR, SUPERVISE.encode(), 0o755),) if kind == SUPERVISED else ()


def as_root(words: Sequence[str]) -> list[str]:
    return ["sudo", "-n", *words]
