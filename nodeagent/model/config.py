"""Settings: those of the cluster (fixed when it is created) and those of one node."""

import msgspec

WEEK_MS = 604_800_000


class ClusterSettings(msgspec.Struct, frozen=True):
    """Chosen once at bootstrap; a node that holds other values is refused."""

    name: str
    replicas: int = 3
    slots: int = 10_000
    shards: int = 8
    time_partition_interval_ms: int = WEEK_MS
    meta_voters: int = 5
    hash_mode: str = "murmur3"
    """`murmur3` (textbook) or `legacy` (repeats errors of IoTDB's Java code, for imports)."""


class RaftSettings(msgspec.Struct, frozen=True):
    """Times in milliseconds. The election timeout is drawn from [t, 2t)."""

    heartbeat_ms: int = 150
    election_timeout_ms: int = 1500
    commit_news_ms: int = 30
    """So long followers of a data group may learn of a commit later than they could; 0 tells them at once."""


class Seed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a new cluster's first nodes; `weight` is its share of the slots."""

    node: str
    host: str
    port: int
    weight: float = 1.0


class NodeConfig(msgspec.Struct, frozen=True):
    """`node.yaml` in a node's directory."""

    node: str
    host: str
    port: int
    http_port: int
    seeds: tuple[Seed, ...]
    cluster: ClusterSettings
    join: bool = False
    """True on a node that is added to a running cluster: it waits to be admitted."""

    tls: bool = True
    raft: RaftSettings = RaftSettings()
    memtable_bytes_max: int = 64 * 1024 * 1024
    """Rows of one data group kept in memory before the leader closes the largest partitions."""

    partition_bytes_max: int = 8 * 1024 * 1024
    log_bytes_max: int = 512 * 1024 * 1024
    segment_bytes: int = 64 * 1024 * 1024
    idle_close_ms: int = 10_000
    """A partition without writes for this long is closed."""

    compact_files_min: int = 4
    """So many small files in a row are made into one."""

    compact_files_min_in_change: int = 8
    """The same while nodes or slots move; ended or waiting changes do not count."""

    compact_every_ms: int = 2_000
    """How often a leader looks for files to compact."""

    compact_deletes_ms: int = 600_000
    """Files that a range delete masks are rewritten after this long, however few they are."""

    expire_every_ms: int = 60_000
    """How often a leader looks for rows past their table's TTL."""

    staleness_max_ms: int = 10_000
    """A replica answers `mid` reads while a leader confirmed what it holds no longer ago than this."""

    session_ttl_ms: int = 3_600_000
    snapshot_ttl_ms: int = 600_000
    worker_timeout_ms: int = 120_000
