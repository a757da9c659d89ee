"""A node's directory and what makes it this node's.

    LOCK         held by the running agent
    node.yaml    settings
    node.id      node and incarnation, made once with the directory
    tls/         ca.pem node.pem node.key
    log/         the log of all groups
    data/        files, checkpoints, snapshots, staging, quarantine

An empty directory under a known name is a new incarnation, and the cluster refuses it (architecture 2).
Therefore `node.id` is never made beside data that is already there.
"""

import secrets
from pathlib import Path

import msgspec
import xxhash

from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged, Refused
from nodeagent.transport.tls import Identity

CONFIG_FILE, ID_FILE, TLS_DIR, LOG_DIR, DATA_DIR = "node.yaml", "node.id", "tls", "log", "data"


class NodeFile(msgspec.Struct, frozen=True):
    """`node.id` as JSON; `check` is XXH3-64 of the other fields."""

    node: str
    incarnation: str
    check: str


def identity_of(directory: Path) -> Identity:
    tls = directory / TLS_DIR
    return Identity(str(tls / "node.pem"), str(tls / "node.key"), str(tls / "ca.pem"))


def open_incarnation(disk: Disk, node: str) -> str:
    """The incarnation of this directory, made at the first start.

    Raises:
        Damaged: the file is unreadable, or missing beside data.
        Refused: the directory belongs to another node.
    """
    if not disk.exists(ID_FILE):
        for name in (LOG_DIR, DATA_DIR):
            if disk.exists(name) and disk.listdir(name):
                raise Damaged(
                    f"{ID_FILE} is missing but {name}/ holds data",
                    next_step="restore node.id; an empty directory needs `iotctl cluster replace-node`",
                )
        incarnation = secrets.token_hex(8)
        fresh = NodeFile(node, incarnation, _check(node, incarnation))
        disk.write_atomic(ID_FILE, msgspec.json.encode(fresh))
        return incarnation
    try:
        found = msgspec.json.decode(disk.read(ID_FILE), type=NodeFile)
    except msgspec.DecodeError as error:
        raise Damaged(f"{ID_FILE} is unreadable: {error}", next_step="restore it from a backup") from error
    if found.check != _check(found.node, found.incarnation):
        raise Damaged(f"{ID_FILE} does not match its checksum", next_step="restore it from a backup")
    if found.node != node:
        raise Refused(
            f"this directory belongs to node {found.node}, {CONFIG_FILE} says {node}",
            next_step=f"correct `node` in {CONFIG_FILE} or use another directory",
        )
    return found.incarnation


def _check(node: str, incarnation: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"{node}\0{incarnation}".encode())
