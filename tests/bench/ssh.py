"""The time to check that ten machines are in the desired state, compared with ansible-core and pyinfra.

Ten sshd on loopback addresses, each with a living agent. `iotctl cluster deploy` checks the machine,
the software, every file, the service and the cluster's health; the other two compare only the same files.
Each runs once before it is timed, so that nothing is left to change. Each run is a new process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

from iotctl.fleet.known_hosts import KnownHosts
from iotctl.fleet.ssh import Connector
from iotctl.fleet.ssh_config import Target
from tests.bench.figures import Report, of, percentile
from tests.bench.raw import timed
from tests.fleet.plant import Plant, machines

HOSTS = 10
NOOP_CEILING_S, EXEC_CEILING_MS = 2.0, 5.0
ANSIBLE_FLOOR, PYINFRA_FLOOR = 10.0, 2.0
ANSIBLE_SSH = "-F none -o UserKnownHostsFile=/dev/null -o ControlMaster=auto -o ControlPersist=60s"
OTHERS = ("ansible-core==2.19.14", "pyinfra==3.10.0")
FILES = ("node.yaml", "tls/ca.pem", "tls/node.pem", "supervise")

PLAYBOOK = """\
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.file: {path: "{{ place }}/tls", state: directory}
    - ansible.builtin.copy: {src: "{{ home }}/{{ item }}", dest: "{{ place }}/{{ item }}"}
      loop: %s
"""

DEPLOY = """\
from pyinfra import host
from pyinfra.operations import files

files.directory(path=f"{host.data.place}/tls")
for name in %r:
    files.put(src=f"{host.data.home}/{name}", dest=f"{host.data.place}/{name}")
"""


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    rounds, commands = (2, 50) if quick else (5, 300)
    with tempfile.TemporaryDirectory(prefix="bench-ssh-") as place, _plant(Path(place)) as plant:
        iotctl = _iotctl(plant, rounds)
        first, once = _commands(plant, commands)
        others = _others(plant, Path(place), rounds)
    bare = median(timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)) for _ in range(5))
    own = median(iotctl)
    figures = (
        of(
            f"iotctl: nothing to change on {HOSTS} hosts",
            iotctl,
            "s",
            ceiling=NOOP_CEILING_S,
            limit=f"python -c pass {bare * 1e3:.0f} ms",
        ),
        *(
            of(
                f"{name}: the files alone, as a multiple of it",
                [t / own for t in times],
                "x",
                floor=floor,
                limit=f"{median(times):.2f} s",
            )
            for name, floor, times in others
        ),
        of("the first command on a new connection", first, "ms"),
        of(
            "one command on an open connection",
            [median(once)],
            "ms",
            ceiling=EXEC_CEILING_MS,
            details={"p99": percentile(once, 0.99)},
        ),
    )
    workload = f"{HOSTS} sshd on loopback, {len(FILES)} files, software and a running agent on each"
    return Report("ssh", workload, figures, time.monotonic() - started)


@contextmanager
def _plant(directory: Path) -> Iterator[Plant]:
    names = [f"node{i}" for i in range(1, HOSTS + 1)]
    with machines(directory, names, options=("Subsystem sftp internal-sftp",)) as plant:
        for words in (("trust", "--yes"), ("deploy", "--yes")):
            code, out, err = plant.iotctl("cluster", *words)
            assert code == 0, out + err
        yield plant


def _iotctl(plant: Plant, rounds: int) -> list[float]:
    words = [sys.executable, "-m", "iotctl", "cluster", "deploy", "-o", "json"]
    env = plant.env | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def once() -> None:
        done = subprocess.run(words, cwd=plant.directory, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["changed"] == 0 and said["healthy"] and len(said["nodes"]) == HOSTS

    once()
    return [timed(once) for _ in range(rounds)]


def _commands(plant: Plant, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of the first command on each host, and of each of `count` more on one."""
    connector = Connector(KnownHosts(plant.directory), plant.env)
    hosts = []
    try:
        for name, sshd in plant.hosts.items():
            target = Target(name, sshd.address, sshd.user, sshd.port, str(plant.directory / "id"))
            hosts.append(connector.open(target))
        first = [1e3 * timed(partial(host.run, ["true"])) for host in hosts]
        return first, [1e3 * timed(lambda: hosts[0].run(["true"])) for _ in range(count)]
    finally:
        for host in hosts:
            host.close()
        connector.close()


def _others(plant: Plant, directory: Path, rounds: int) -> list[tuple[str, float, list[float]]]:
    """(name, floor, seconds of each run)"""
    venv = directory / "others"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", *OTHERS], check=True)
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(directory), "PATH": path, "SSH_AUTH_SOCK": ""}
    found = []
    for name, floor, prepare in zip(
        OTHERS, (ANSIBLE_FLOOR, PYINFRA_FLOOR), (_ansible, _pyinfra), strict=True
    ):
        words, more = prepare(plant, directory)
        once = partial(_call, words, directory, env | more)
        once()
        found.append((name, floor, [timed(once) for _ in range(rounds)]))
    for control in directory.glob("control/*"):
        with suppress(OSError):
            subprocess.run(["ssh", "-O", "exit", "-S", control, "all"], capture_output=True)
    return found


def _call(words: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _ansible(plant: Plant, directory: Path) -> tuple[list[str], dict[str, str]]:
    hosts = {
        name: {
            "ansible_host": sshd.address,
            "ansible_port": sshd.port,
            "ansible_user": sshd.user,
            "ansible_ssh_private_key_file": str(plant.directory / "id"),
            "ansible_python_interpreter": shutil.which("python3", path="/usr/bin:/usr/local/bin"),
            "home": str(plant.home(name)),
            "place": str(directory / "ansible" / name),
        }
        for name, sshd in plant.hosts.items()
    }
    (directory / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (directory / "play.yml").write_text(PLAYBOOK % json.dumps(FILES))
    (directory / "control").mkdir()
    env = {
        "ANSIBLE_HOST_KEY_CHECKING": "false",
        "ANSIBLE_SSH_ARGS": ANSIBLE_SSH,
        "ANSIBLE_PIPELINING": "true",
        "ANSIBLE_FORKS": str(HOSTS),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(directory / "control"),
    }
    return ["ansible-playbook", "-i", "hosts.json", "play.yml"], env


def _pyinfra(plant: Plant, directory: Path) -> tuple[list[str], dict[str, str]]:
    hosts = [
        (
            name,
            {
                "ssh_hostname": sshd.address,
                "ssh_port": sshd.port,
                "ssh_user": sshd.user,
                "ssh_key": str(plant.directory / "id"),
                "ssh_strict_host_key_checking": "off",
                "home": str(plant.home(name)),
                "place": str(directory / "pyinfra" / name),
            },
        )
        for name, sshd in plant.hosts.items()
    ]
    (directory / "inventory.py").write_text(f"machines = {hosts!r}\n")
    (directory / "deploy.py").write_text(DEPLOY % (FILES,))
    return ["pyinfra", "-y", "inventory.py", "deploy.py"], {}
