"""An agent on a machine: started so that it stays up, stopped, asked for its last words.

Where systemd runs and may be told (root, or `sudo -n`), it is a unit; elsewhere a small supervisor in the
node's directory, which starts the agent again when it ends, later and later.
"""

import shlex
from collections.abc import Sequence

from iotctl.errors import Unreachable
from iotctl.fleet.host import Host, Ran
from iotctl.fleet.upload import File

SYSTEMD, SUPERVISED = "systemd", "supervised"
STOP_S = 60
"""An agent hands over what it leads first; then it is killed."""

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
# A shell's `read` leaves out the zeros between the words, and starts no process for each one there is.
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
    pid=$(cat "$home/supervisor.pid" 2>/dev/null) || return 0
    whose "$pid"
    case $words in *"$home/SUPERVISOR$home") echo "$pid" ;; esac
}
""".replace("SUPERVISOR", SUPERVISOR)
"""Defines `agent` and `supervisor`, which print a pid or nothing."""

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
kill $one $two 2>/dev/null
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


_RELOAD = (
    FIND
    + r"""
pid=$(agent)
[ -n "$pid" ] || exit 0
kill -HUP "$pid" && echo told
"""
)


def unit_name(node: str) -> str:
    return f"nodeagent-{node}.service"


def unit(node: str, home: str, user: str) -> str:
    """The text of its systemd unit."""
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
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
"""


def kind_of(systemd: bool, user: str, sudo: bool) -> str:
    """How an agent is kept up on a machine, `systemd`: it runs there."""
    return SYSTEMD if systemd and (user == "root" or sudo) else SUPERVISED


def files_of(kind: str) -> tuple[File, ...]:
    """What it needs in the node's directory."""
    return (File(SUPERVISOR, SUPERVISE.encode(), 0o755),) if kind == SUPERVISED else ()


def start(host: Host, kind: str, node: str, home: str, *, sudo: bool) -> None:
    """Start the agent unless it runs; returns when it was begun, not when it serves.

    Raises:
        Unreachable: it could not be begun; its last words say why.
    """
    if kind == SYSTEMD:
        ran = _systemctl(host, ["enable", "--now", unit_name(node)], sudo=sudo)
    else:
        ran = host.run(["sh", "-c", _START, "start", home])
    _check(host, ran, "its agent did not start", next=f"iotctl cluster logs {node}")


def stop(host: Host, kind: str, node: str, home: str, *, sudo: bool) -> bool:
    """Stop the agent; True when it had to be killed.

    Raises:
        Unreachable: it still runs.
    """
    timeout_s = STOP_S + 30.0
    if kind == SYSTEMD:
        ran = _systemctl(host, ["stop", unit_name(node)], sudo=sudo, timeout_s=timeout_s)
    else:
        ran = host.run(["sh", "-c", _STOP, "stop", home, str(STOP_S)], timeout_s=timeout_s)
    _check(host, ran, "its agent did not stop", next=f"iotctl cluster logs {node}")
    return b"killed" in ran.out


def reload(host: Host, kind: str, node: str, home: str, *, sudo: bool) -> bool:
    """Let the agent load a renewed certificate; False when it does not run.

    Raises:
        Unreachable: it could not be told.
    """
    words = ["sh", "-c", _RELOAD, "reload", home]
    ran = host.run(as_root(words) if sudo and kind == SYSTEMD else words)
    _check(host, ran, "its agent could not be told of its certificate", next=f"iotctl cluster restart {node}")
    return b"told" in ran.out


def log_tail(host: Host, kind: str, node: str, home: str, lines: int, *, sudo: bool) -> str:
    """The last lines its agent wrote."""
    if kind == SYSTEMD:
        words = ["journalctl", "--no-pager", "--output=cat", f"--lines={lines}", f"--unit={unit_name(node)}"]
        ran = host.run(as_root(words) if sudo else words)
    else:
        ran = host.run(["tail", "-n", str(lines), f"{home}/agent.log"])
    return ran.out.decode(errors="replace")


def as_root(words: Sequence[str]) -> list[str]:
    return ["sudo", "-n", *words]


def put_unit(host: Host, node: str, text: str, *, sudo: bool) -> None:
    """Write the unit and let systemd read it."""
    path = f"{UNITS}/{unit_name(node)}"
    script = f"cat >{path}.new && mv {path}.new {path} && systemctl daemon-reload"
    words = ["sh", "-c", script]
    ran = host.run(as_root(words) if sudo else words, stdin=text.encode())
    _check(host, ran, f"{path} could not be written", next=f"sudo -n {shlex.join(['ls', UNITS])}")


def _systemctl(host: Host, words: list[str], *, sudo: bool, timeout_s: float = 60.0) -> Ran:
    command = ["systemctl", *words]
    return host.run(as_root(command) if sudo else command, timeout_s=timeout_s)


def _check(host: Host, ran: Ran, what: str, *, next: str) -> None:
    if ran.code:
        said = ran.err.decode(errors="replace").strip().replace("\n", " | ")
        raise Unreachable(
            f"{host.name}: {what}", why=said or f"ended with {ran.code}", next=next, where=host.name
        )
