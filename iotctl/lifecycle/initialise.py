"""A new cluster.yaml for machines that are named on the command line."""

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
    """Both are paths."""

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
    """Write `directory`/cluster.yaml with one node a host, and make the authority.

    Args:
        dry_run: only find out whether that can be done, and where they would be.

    Raises:
        RefusedProblem: either is there already.
        UsageProblem: fewer machines than copies, or one that is named twice.
    """
    path = directory / SPEC_NAME
    if path.exists():
        raise RefusedProblem(f"{path} is there already", next="iotctl cluster deploy")
    if len(set(hosts)) != len(hosts):
        raise UsageProblem("a machine is named twice", next="name each once; edit cluster.yaml for more")
    if len(hosts) < replicas:
        raise UsageProblem(
            f"{len(hosts)} machines cannot hold {replicas} copies",
            next=f"name more, or --replicas {len(hosts)}",
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
                f"a cluster {name} was made here before: {authority}",
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
        "# How machines are reached and where nodes live: see docs/reference/files.md.",
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
