"""A node's status and the shell's counters in Prometheus text form."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from nodeagent.model.meta_role import MetaRole
from nodeagent.model.requests import MetaStatus, NodeStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST

_GROUP_GAUGES = (
    ("term", "Current term"),
    ("commit", "Commit index"),
    ("applied", "Applied index"),
    ("last", "Last log index"),
    ("slots", "Slots owned"),
    ("files", "Closed files"),
    ("files_most", "Files of the time partition with the most files"),
    ("compacting", "Compactions that are logged but not done"),
    ("bytes", "Bytes in closed files"),
    ("rows", "Rows in closed files"),
    ("memtable_bytes", "Bytes of rows in memory"),
    ("log_bytes", "Bytes of entries in the log"),
)


def render(status: NodeStatus, counters: dict[str, float]) -> bytes:
    """The metrics page. `counters` are named without prefix; names that end in `_total` only grow."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families((*_node(status), *_groups(status), *_shell(counters))))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _node(status: NodeStatus) -> Iterator[Metric]:
    facts = GaugeMetricFamily("nodeagent_info", "This node", labels=("node", "cluster", "version", "state"))
    facts.add_metric((status.node, status.cluster, status.version, status.state), 1)
    yield facts
    for name, text, value in (
        ("start_time_seconds", "Start of the process", status.started_ms / 1000),
        ("table_version", "Version of the partition table in use", status.table_version),
        ("disk_free_bytes", "Free bytes on the disk with the data", status.disk_free_bytes),
        ("disk_total_bytes", "Size of the disk with the least free space", status.disk_total_bytes),
        (
            "rows_refused",
            "1 while rows are refused because the disk is low or full",
            status.room in ("low", "full"),
        ),
        ("log_bytes", "Bytes of the log on disk", status.log_bytes),
        ("certificate_expiry_seconds", "When the certificate expires", status.cert_expires_ms / 1000),
    ):
        yield GaugeMetricFamily(f"nodeagent_{name}", text, value)
    heard = GaugeMetricFamily(
        "nodeagent_peer_heard_seconds", "Time since the last message of a peer", labels=("peer",)
    )
    for peer, ms in status.heard_ms.items():
        heard.add_metric((peer,), ms / 1000)
    yield heard
    received = CounterMetricFamily(
        "nodeagent_received_bytes", "File bytes pulled from other nodes", labels=("operation",)
    )
    for operation, count in status.received_bytes.items():
        received.add_metric((operation,), count)
    yield received
    if status.meta is not None:
        yield from _meta(status.meta)


def _meta(meta: MetaStatus) -> Iterator[Metric]:
    roles = GaugeMetricFamily(
        "nodeagent_meta_role", "1 for the node's role in the meta group", labels=("role",)
    )
    for role in MetaRole:
        roles.add_metric((role,), float(role == meta.role))
    yield roles
    for name, text, value in (
        ("role_seconds", "Time since the role last changed", meta.since_ms / 1000),
        ("journal_first", "The first entry in the journal", meta.first),
        ("journal_last", "The last entry in the journal", meta.last),
        ("replayed", "The last journal entry in the state", meta.applied),
        ("image", "Journal id of the newest validated image", meta.image),
        ("image_fallback", "Journal id of the validated image before it", meta.fallback),
    ):
        yield GaugeMetricFamily(f"nodeagent_meta_{name}", text, value)
    if meta.age_ms >= 0:  # else no leader has confirmed the state
        text = "The state holds everything acknowledged longer ago than this"
        yield GaugeMetricFamily("nodeagent_meta_age_seconds", text, meta.age_ms / 1000)


def _groups(status: NodeStatus) -> Iterator[Metric]:
    leads = GaugeMetricFamily("nodeagent_group_leader", "1 if this node leads the group", labels=("group",))
    for group in status.groups:
        leads.add_metric((group.group,), float(group.leader == status.node))
    yield leads
    for field, text in _GROUP_GAUGES:
        family = GaugeMetricFamily(f"nodeagent_group_{field}", text, labels=("group",))
        for group in status.groups:
            family.add_metric((group.group,), getattr(group, field))
        yield family


def _shell(counters: dict[str, float]) -> Iterator[Metric]:
    for name, value in counters.items():
        if name.endswith("_total"):
            stem = name.removesuffix("_total")
            yield CounterMetricFamily(f"nodeagent_{stem}", stem.replace("_", " "), value)
        else:
            yield GaugeMetricFamily(f"nodeagent_{name}", name.replace("_", " "), value)
