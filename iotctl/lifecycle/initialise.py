"""Writes a new cluster.yaml for machines named on the command line."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import yaml

from iotctl.errors import RefusedProblem, UsageProblem
from iotctl.fleet.ssh_config import jump_target
from iotctl.lifecycle import credentials
from iotctl.spec.cluster import API_VERSION, load_cluster
from iotctl.spec.find import SPEC_NAME, authority_dir


class Initialised(msgspec.Struct, frozen=True):
    """Paths of cluster.yaml and of the authority."""

    file: str
    authority: str


def initialise(
    directory: Path,
    hosts: Sequence[str],
    *,
    name: str,
    replicas: int,
    env: Mapping[str, str],
    dry_run: bool = False,
) -> Initialised:
    """Write `directory`/cluster.yaml with one node per host, and create the authority.

    Args:
        dry_run: only check whether that is possible, and return the paths.

    Raises:
        RefusedProblem: the file or the authority already exists.
        UsageProblem: there are fewer machines than replicas, or a machine is named twice.
    """
    path = directory / SPEC_NAME
    if path.exists():
        raise RefusedProblem(f"{path} already exists; nothing was changed", next="iotctl cluster deploy")
    if len(set(hosts)) != len(hosts):
        raise UsageProblem(
            "a machine is named twice; nothing was changed",
            next="name each machine once; for several nodes on one machine, "
            "add the others to the new cluster.yaml afterwards",
        )
    if len(hosts) < replicas:
        raise UsageProblem(
            f"{replicas} replicas need {replicas} machines, not {len(hosts)}; nothing was changed",
            next=f"name more machines, or set --replicas {len(hosts)}",
        )
    with ExitStack() as after:
        beside = Path(after.enter_context(TemporaryDirectory())) if dry_run else directory
        temporary = beside / f".{SPEC_NAME}.{os.getpid()}"
        after.callback(temporary.unlink, missing_ok=True)
        temporary.write_text(_text(hosts, name, replicas), encoding="utf-8")
        source = load_cluster(temporary)
        authority = authority_dir(source, env)
        if credentials.has_authority(source, env):
            raise RefusedProblem(
                f"a cluster {name} was created here before: {authority} exists; nothing was changed",
                next="choose another --name, or move that directory away",
            )
        if not dry_run:
            credentials.make_authority(source, env)
            temporary.rename(path)
    return Initialised(str(path), str(authority))


def _text(hosts: Sequence[str], name: str, replicas: int) -> str:
    lines = [
        f"apiVersion: {API_VERSION}",
        "cluster:",
        f"  name: {_plain(name)}",
        f"  replicas: {replicas}",
        "# Settings for SSH and for the nodes' directories: see docs/reference/files.md.",
        "nodes:",
    ]
    for number, word in enumerate(hosts, 1):
        target = jump_target(word)
        ssh = [f"user: {_plain(target.user)}"] if target.user else []
        ssh += [f"port: {target.port}"] if target.port else []
        reach = f", ssh: {{{', '.join(ssh)}}}" if ssh else ""
        lines.append(f"  - {{name: node{number}, host: {_plain(target.host)}{reach}}}")
    return "\n".join(lines) + "\n"


def _plain(value: str) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n").removesuffix("\n...")
