"""The cluster as iotctl uses it, and how iotctl connects to it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from iotctl.errors import Unreachable
from iotctl.spec.cluster import ClusterSource
from iotctl.spec.find import pem_of
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import Operation, Ranges
from nodeagent.model.requests import (
    BeginChange,
    ControlOperation,
    ManifestReply,
    MetaView,
    NodeStatus,
    Reply,
    Request,
)
from nodeagent.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from nodeagent.client.query import OnAge
    from nodeagent.client.spec import ClusterSpec

CALL_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 2.0


class WriteReport(Protocol):
    @property
    def rows(self) -> int: ...


class DeleteReport(Protocol):
    @property
    def partitions(self) -> int: ...


class Cluster(Protocol):
    """The part of the blocking client that iotctl needs; tests substitute a fake.

    Every call may raise `NodeAgentError`.
    """

    def statuses(self, timeout_s: float = STATUS_TIMEOUT_S) -> Mapping[str, NodeStatus | NodeAgentError]: ...

    def meta(self, strong: bool = False, any_age: bool = False) -> MetaView: ...

    def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply: ...

    def manifest(self, node: str, group: str, slots: Ranges = ()) -> ManifestReply: ...

    def back_up_meta(self, node: str) -> bytes: ...

    def call_meta(self, request: Request) -> Reply: ...

    def begin_change(self, change: BeginChange) -> Operation: ...

    def control(self, control: ControlOperation) -> Operation: ...

    def schemas(self) -> list[TableSchema]: ...

    def put_schema(self, schema: TableSchema, ttl_ms: int | None = None) -> TableSchema: ...

    def write(
        self, storage_group: str, table: str, data: "pa.Table", *, tags: Sequence[str] | None = None
    ) -> WriteReport: ...

    def delete(
        self,
        storage_group: str,
        table: str,
        *,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> DeleteReport: ...

    # Over the limit of 8 parameters because the client takes as many.
    def scan(
        self,
        storage_group: str,
        table: str,
        *,
        fields: Sequence[str] | None = None,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
        read: str = "strong",
        limit: int | None = None,
        on_age: "OnAge | None" = None,
    ) -> "pa.Table": ...

    def scan_batches(
        self,
        storage_group: str,
        table: str,
        *,
        fields: Sequence[str] | None = None,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
        read: str = "strong",
        on_age: "OnAge | None" = None,
    ) -> Iterator["pa.RecordBatch"]: ...

    def count(
        self, storage_group: str | None = None, table: str | None = None
    ) -> list[dict[str, object]]: ...

    def close(self) -> None: ...


def cluster_spec(
    source: ClusterSource, identity: Path | None, env: Mapping[str, str], *, timeout_s: float = CALL_TIMEOUT_S
) -> "ClusterSpec":
    """The picklable address of a cluster.

    The certificate comes from `identity`, else from PEM text in IOTCTL_CERT, IOTCTL_KEY and IOTCTL_CA,
    else the connection is plain, which only a loopback fleet with TLS off accepts.

    Raises:
        Unreachable: the identity directory lacks a file, or only some of the three variables are set.
    """
    from nodeagent.client.identity import identity_in
    from nodeagent.client.spec import ClusterSpec, Endpoint

    endpoints = tuple(Endpoint(n.name, n.host, source.port_of(n)) for n in source.file.nodes)
    if identity is not None:
        files = identity_in(identity)
        for path in (files.cert, files.key, files.ca):
            if not Path(path).is_file():
                raise Unreachable(
                    "no operator certificate",
                    why=f"{path} does not exist",
                    next="use --identity to name the directory that holds ca.pem, node.pem and node.key",
                )
        return ClusterSpec(endpoints, files, timeout_s)
    pem = pem_of(env)
    if any(pem.values()):
        missing = ", ".join(f"IOTCTL_{k.upper()}" for k, text in pem.items() if not text)
        if missing:
            raise Unreachable(
                "no operator certificate",
                why=f"{missing}: not set or empty",
                next="set IOTCTL_CERT, IOTCTL_KEY and IOTCTL_CA to PEM text, or none of them",
            )
        plain = {"endpoints": endpoints, "identity": pem, "timeout_s": timeout_s}
        return msgspec.convert(plain, ClusterSpec)
    return ClusterSpec(endpoints, None, timeout_s)


def connect(spec: "ClusterSpec") -> Cluster:
    """A blocking client; close it after use."""
    from nodeagent.client.blocking import BlockingCluster

    return BlockingCluster.connect(spec)
