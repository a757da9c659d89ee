"""A node's directory.

    LOCK         held by the running agent
    node.yaml    settings
    node.id      node, incarnation, log and start (`log.identity`)
    peers.seen   the newest known start of every other node (`host/starts.py`)
    tls/         ca.pem node.pem node.key
    log/         the log of all groups, and log.id, which names the directory that the log belongs to
    data/        files, checkpoints, snapshots, staging, quarantine

A node that starts with an empty directory under a known name is a new incarnation: the cluster refuses it.
"""

from pathlib import Path

from nodeagent.transport.tls import Identity

CONFIG_FILE, TLS_DIR, DATA_DIR = "node.yaml", "tls", "data"


def identity_of(directory: Path) -> Identity:
    tls = directory / TLS_DIR
    return Identity(str(tls / "node.pem"), str(tls / "node.key"), str(tls / "ca.pem"))
