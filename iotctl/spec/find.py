"""Find the cluster file: `--cluster`, then IOTCTL_CLUSTER, `./cluster.yaml`, `./iotctl-local`."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from iotctl.errors import InputProblem
from iotctl.spec.cluster import ClusterSource, load_cluster

LOCAL_DIR = "iotctl-local"
SPEC_NAME = "cluster.yaml"


def find_cluster(explicit: str | None, env: Mapping[str, str], cwd: Path) -> tuple[ClusterSource, str]:
    """(the cluster, a note for the operator if it was found in `./iotctl-local`, else "").

    Raises:
        InputProblem: no file was found (names the places), or it is invalid.
    """
    if explicit:
        return load_cluster(_spec_of(cwd / explicit)), ""
    if named := env.get("IOTCTL_CLUSTER"):
        return load_cluster(_spec_of(cwd / named)), ""
    here = cwd / SPEC_NAME
    if here.is_file():
        return load_cluster(here), ""
    local = cwd / LOCAL_DIR / SPEC_NAME
    if local.is_file():
        return load_cluster(local), f"using the local fleet in ./{LOCAL_DIR}"
    raise InputProblem(
        "no cluster file",
        why=f"looked at --cluster, IOTCTL_CLUSTER, {here} and {local}",
        next="iotctl local up",
        where=str(here),
    )


def find_identity(
    explicit: str | None, env: Mapping[str, str], source: ClusterSource, cwd: Path
) -> Path | None:
    """The directory with the operator's certificate; None if there is none, or if PEM text replaces it.

    An option takes precedence over the environment, and the environment over the file: a CI secret (PEM text
    in IOTCTL_CERT) is used even if the file names an `identity`. PEM text does not count for a local fleet,
    which has its own certificate.
    """
    if explicit:
        return cwd / explicit
    if named := env.get("IOTCTL_IDENTITY"):
        return cwd / named
    if any(pem_of(env).values()) and not source.is_local:
        return None
    if source.file.identity:
        return source.directory / source.file.identity
    own = operator_dir(source, env)
    return own if own.is_dir() else None


def pem_of(env: Mapping[str, str]) -> dict[str, str]:
    """`cert`, `key` and `ca` as PEM text, for the secrets of a CI; "" if unset."""
    return {part: env.get(f"IOTCTL_{part.upper()}", "") for part in ("cert", "key", "ca")}


def operator_dir(source: ClusterSource, env: Mapping[str, str]) -> Path:
    """The directory of the certificate that `local up` or `deploy` made for this user."""
    return _kept(source, env) / "operator"


def authority_dir(source: ClusterSource, env: Mapping[str, str]) -> Path:
    """The directory of the cluster's certificate authority; only a local fleet has it next to its file."""
    return _kept(source, env) / "authority"


def _kept(source: ClusterSource, env: Mapping[str, str]) -> Path:
    return source.directory if source.is_local else credentials_dir(source.name, env)


def credentials_dir(cluster: str, env: Mapping[str, str]) -> Path:
    """The directory of this user's credentials for `cluster`."""
    return _own(env, "XDG_DATA_HOME", ".local/share") / cluster


def cache_dir(env: Mapping[str, str]) -> Path:
    """The directory of files that can be recreated."""
    return _own(env, "XDG_CACHE_HOME", ".cache")


def runs_dir(explicit: str | None, env: Mapping[str, str], cwd: Path) -> Path:
    """The directory of the playbook runs against this cluster; every cluster has its own.

    A cluster is identified by the path of its file; without a valid file, by the path that `init` would
    write.
    """
    try:
        place = find_cluster(explicit, env, cwd)[0].path
    except InputProblem:
        place = cwd / SPEC_NAME
    key = hashlib.sha256(str(place.absolute()).encode()).hexdigest()[:12]
    return state_dir(env) / "runs" / key


def state_dir(env: Mapping[str, str]) -> Path:
    """The directory of state that outlives a command."""
    return _own(env, "XDG_STATE_HOME", ".local/state")


def _own(env: Mapping[str, str], variable: str, default: str) -> Path:
    home = Path(env.get("HOME") or Path.home())
    return Path(env.get(variable) or home / default) / "iotctl"


def _spec_of(path: Path) -> Path:
    """The path; for a directory, the spec inside."""
    return Path(os.path.join(path, SPEC_NAME)) if path.is_dir() else path
