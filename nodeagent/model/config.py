"""Settings of the cluster, which are fixed when it is created, and settings of one node."""

import msgspec

WEEK_MS = 604_800_000


class ClusterSettings(msgspec.Struct, frozen=True):
    """Chosen once at bootstrap; a node that is configured with other values is refused."""

    name: str
    replicas: int = 3
    """Members of each data group, if there are enough nodes."""

    slots: int = 10_000
    shards: int = 8
    """Shards that the devices of a time partition are spread over."""

    time_partition_interval_ms: int = WEEK_MS
    meta_voters: int = 5
    """Voters of the meta group, if there are enough nodes."""

    hash_mode: str = "murmur3"
    """`murmur3` (standard MurmurHash3) or `legacy` (repeats errors of IoTDB's Java code, for imports)."""


class RaftSettings(msgspec.Struct, frozen=True):
    """Times in milliseconds. The election timeout is drawn from [t, 2t)."""

    heartbeat_ms: int = 150
    election_timeout_ms: int = 1500
    commit_news_ms: int = 30
    """Delay after which followers of a data group learn of a commit, if no append tells them; 0: no delay."""


class Seed(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of a new cluster's first nodes; `weight` is its share of the slots relative to the others. `zone`:
    see `requests.NodeRecord`."""

    node: str
    host: str
    port: int
    weight: float = 1.0
    zone: str = ""


class NodeConfig(msgspec.Struct, frozen=True):
    """The settings in `node.yaml` in a node's directory."""

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
    """If one data group has more bytes of unclosed rows in memory than this, the leader closes all partitions
    of the group."""

    partition_bytes_max: int = 8 * 1024 * 1024
    """If one partition has more bytes of rows in memory than this, the leader closes it."""

    log_bytes_max: int = 512 * 1024 * 1024
    """If the log of one data group has more bytes than this, the leader closes all partitions of the group,
    so that the log can be purged."""

    segment_bytes: int = 64 * 1024 * 1024
    """Bytes of one segment of the log."""

    idle_close_ms: int = 10_000
    """The leader closes a partition that has had no writes for this long."""

    compact_files_min: int = 4
    """Least number of small files, adjacent in age, that are merged into one."""

    compact_files_min_in_change: int = 8
    """The same while a change moves nodes or slots; changes that wait or have ended do not count."""

    compact_every_ms: int = 2_000
    """How often a leader looks for files to compact."""

    compact_deletes_ms: int = 600_000
    """After this time, files with rows that a range delete masks are rewritten, even if they are few."""

    expire_every_ms: int = 60_000
    """How often a leader looks for rows past their table's TTL."""

    staleness_max_ms: int = 10_000
    """A replica answers bounded reads if a leader confirmed its state no longer ago than this."""

    meta_staleness_max_ms: int = 30_000
    """A node answers reads of the meta state if a leader confirmed its copy no longer ago than this."""

    meta_confirm_every_ms: int = 10_000
    """How often a node asks the meta leader to confirm its copy; at most half of `meta_staleness_max_ms`."""

    session_ttl_ms: int = 3_600_000
    """A session that is not used for this long expires."""

    snapshot_ttl_ms: int = 600_000
    """An offered snapshot that is not read for this long is dropped."""

    worker_timeout_ms: int = 120_000
    """A worker process that takes longer for one job is killed."""
