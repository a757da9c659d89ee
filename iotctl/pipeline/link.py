"""The cluster as jobs use it: a small interface, rebuilt inside a Spark task from a picklable spec."""

from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from nodeagent.model.errors import BY_CODE, Unavailable
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import ErrorReply, ManifestReply, MetaView, Reply, Request

R = TypeVar("R", bound=Reply)


class Cluster(Protocol):
    """Thread-safe and blocking. Errors are `NodeAgentError`s."""

    def meta(self, strong: bool = False) -> MetaView: ...

    def call(self, node: NodeId, request: Request, timeout_s: float | None = None) -> Reply: ...

    def manifest(self, node: NodeId, group: GroupId, slots: Ranges = ()) -> ManifestReply: ...

    def call_meta(self, request: Request) -> Reply: ...

    def call_group(self, group: GroupId, request: Request) -> Reply: ...

    def close(self) -> None: ...


class Spec(Protocol):
    """Identifies a cluster; picklable."""


@runtime_checkable
class Opens(Protocol):
    """A spec that opens its own cluster; tests use it to substitute a fake."""

    def open(self) -> Cluster: ...


def connect(spec: Spec) -> Cluster:
    """Open the cluster that `spec` names: a `nodeagent.client` spec, or one that opens itself."""
    if isinstance(spec, Opens):
        return spec.open()
    from nodeagent.client.blocking import BlockingCluster
    from nodeagent.client.spec import ClusterSpec

    assert isinstance(spec, ClusterSpec), f"not a cluster spec: {type(spec).__name__}"
    return BlockingCluster.connect(spec)


_open: dict[bytes, Cluster] = {}


def connect_cached(spec: Spec) -> Cluster:
    """One link per worker process and spec: Spark reuses its Python workers from task to task."""
    import pickle

    key = pickle.dumps(spec)
    if key not in _open:
        _open[key] = connect(spec)
    return _open[key]


def expect(reply: Reply, kind: type[R]) -> R:
    """The reply as the expected kind; an error reply is raised as its error."""
    if isinstance(reply, ErrorReply):
        error = BY_CODE.get(reply.code, Unavailable)
        raise error(reply.what, next_step=reply.next_step, **reply.details)
    if not isinstance(reply, kind):
        raise Unavailable(f"expected {kind.__name__}, got {type(reply).__name__}")
    return reply


def encode(value: msgspec.Struct) -> bytes:
    """The encoding of units and results between driver and tasks."""
    return msgspec.msgpack.encode(value)
