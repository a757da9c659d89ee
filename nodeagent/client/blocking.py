"""The blocking interface: the methods of `Cluster` for synchronous code, threads and Spark tasks.

One daemon thread runs an event loop; each call submits its coroutine and waits. Safe to use from any thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from nodeagent.client.changes import OnProgress, Until, has_ended
from nodeagent.client.cluster import STATUS_TIMEOUT_S, Cluster
from nodeagent.client.report import IN_FLIGHT_MAX, ROWS_MAX, DeleteReport, WriteReport
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown, Unavailable
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Ranges
from nodeagent.model.requests import (
    Accepted,
    BeginChange,
    CloseAll,
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
    from nodeagent.table.arrow import Rows

CLOSED = "the client was closed before the call ended"
END_S = 2.0
"""How long cancelled tasks may take to end."""

_T = TypeVar("_T")


class BlockingCluster:
    """See `Cluster` for each method. Close it, or use it in a `with` block.

    Over the limit of 25 methods because it offers every request, each in one line.
    """

    def __init__(self, cluster: Cluster, loop: LoopThread) -> None:
        """`cluster` must belong to `loop`."""
        self._cluster = cluster
        self._loop = loop

    @classmethod
    def connect(cls, spec: ClusterSpec) -> Self:
        """Raises `InvalidInput` if the identity cannot be loaded."""
        loop = LoopThread()
        try:
            return cls(loop.run(Cluster.connect(spec)), loop)
        except BaseException:
            loop.stop()
            raise

    def close(self) -> None:
        """End running calls and close the connections. A second call has no effect."""
        if self._loop.running:
            with contextlib.suppress(Unavailable):  # another thread is closing it
                self._loop.run(self._cluster.close())
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- nodes and groups ------------------------------------------------------------------------

    def statuses(self, timeout_s: float = STATUS_TIMEOUT_S) -> dict[str, NodeStatus | NodeAgentError]:
        return self._loop.run(self._cluster.statuses(timeout_s))

    def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
        return self._loop.run(self._cluster.meta(strong, any_age))

    def call(self, node: NodeId, request: Request, timeout_s: float | None = None) -> Reply:
        return self._loop.run(self._cluster.call(node, request, timeout_s))

    def call_meta(self, request: Request) -> Reply:
        return self._loop.run(self._cluster.call_meta(request))

    def call_group(self, group: GroupId, request: Request, read: str = "strong") -> Reply:
        return self._loop.run(self._cluster.call_group(group, request, read))

    # --- rows ------------------------------------------------------------------------------------

    def put_schema(self, schema: TableSchema, ttl_ms: int | None = None) -> TableSchema:
        return self._loop.run(self._cluster.put_schema(schema, ttl_ms))

    def schemas(self) -> list[TableSchema]:
        return self._loop.run(self._cluster.schemas())

    def write(
        self,
        storage_group: str,
        table: str,
        data: Rows,
        *,
        tags: Sequence[str] | None = None,
        rows_max: int = ROWS_MAX,
    ) -> WriteReport:
        return self._loop.run(self._cluster.write(storage_group, table, data, tags=tags, rows_max=rows_max))

    def write_many(
        self,
        batches: Iterable[tuple[str, str, Rows]],
        *,
        tags: Sequence[str] | None = None,
        in_flight: int = IN_FLIGHT_MAX,
    ) -> WriteReport:
        """Write batches of (storage group, table, rows), many at a time; return what was acknowledged.

        The iterable is read in the client's thread and must not call this client.
        """

        async def run() -> WriteReport:
            async with self._cluster.writer(in_flight) as writer:
                for storage_group, table, rows in batches:
                    await writer.write(storage_group, table, rows, tags=tags)
                return await writer.drain()

        return self._loop.run(run())

    def delete(
        self,
        storage_group: str,
        table: str,
        *,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> DeleteReport:
        return self._loop.run(
            self._cluster.delete(storage_group, table, tags=tags, time_from=time_from, time_to=time_to)
        )

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
        on_age: OnAge | None = None,
    ) -> pa.Table:
        """As `Cluster.scan`; `on_age` is called in the client's thread. Over the limit of 8 parameters
        because `Cluster.scan` has as many."""
        return self._loop.run(
            self._cluster.scan(
                storage_group,
                table,
                fields=fields,
                tags=tags,
                time_from=time_from,
                time_to=time_to,
                read=read,
                limit=limit,
                on_age=on_age,
            )
        )

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
        on_age: OnAge | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """As `scan`, but unordered and with only a few pages in memory; `on_age` is called in the client's
        thread."""
        batches = self._cluster.scan_batches(
            storage_group,
            table,
            fields=fields,
            tags=tags,
            time_from=time_from,
            time_to=time_to,
            read=read,
            on_age=on_age,
        )

        async def following() -> pa.RecordBatch | None:
            return await anext(batches, None)

        while (batch := self._loop.run(following())) is not None:
            yield batch

    def aggregate(
        self,
        storage_group: str,
        table: str,
        field: str,
        *,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
        read: str = "strong",
        on_age: OnAge | None = None,
    ) -> pa.Table:
        """As `Cluster.aggregate`; `on_age` is called in the client's thread."""
        return self._loop.run(
            self._cluster.aggregate(
                storage_group,
                table,
                field,
                tags=tags,
                time_from=time_from,
                time_to=time_to,
                read=read,
                on_age=on_age,
            )
        )

    def count(self, storage_group: str | None = None, table: str | None = None) -> list[dict[str, object]]:
        return self._loop.run(self._cluster.count(storage_group, table))

    # --- changes ---------------------------------------------------------------------------------

    def begin_change(self, change: BeginChange) -> Operation:
        return self._loop.run(self._cluster.begin_change(change))

    def control(self, control: ControlOperation) -> Operation:
        return self._loop.run(self._cluster.control(control))

    def operation(self, operation: str) -> Operation:
        return self._loop.run(self._cluster.operation(operation))

    def wait(
        self,
        operation: str,
        *,
        until: Until = has_ended,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> Operation:
        """`until` and `on_progress` are called in the client's thread and must not call this client."""
        return self._loop.run(
            self._cluster.wait(operation, until=until, on_progress=on_progress, timeout_s=timeout_s)
        )

    # --- files -----------------------------------------------------------------------------------

    def manifest(self, node: NodeId, group: GroupId, slots: Ranges = ()) -> ManifestReply:
        return self._loop.run(self._cluster.files.manifest(node, group, slots))

    def back_up_meta(self, node: NodeId) -> bytes:
        return self._loop.run(self._cluster.files.back_up_meta(node))

    def close_all(self, group: GroupId, slots: Ranges = ()) -> int:
        """Close the group's open partitions of `slots` (() for all); return the log index of the close."""
        reply = self.call_group(group, CloseAll(group, slots))
        assert isinstance(reply, Accepted), reply
        return reply.index


class LoopThread:
    """An event loop in a daemon thread. `stop` ends every waiting `run` with an error: a thread that waited
    indefinitely would keep the process from ending."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._stopping = False
        self._submitting = threading.Lock()
        """Held while a coroutine is submitted: `_end` sees every task, and none comes after it."""

        self._handed: set[concurrent.futures.Future[Any]] = set()
        """The futures that callers wait for."""

        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster-client", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        """Run the coroutine in the thread and wait. An interrupt of the waiting thread cancels it.

        Raises:
            Unavailable: the loop had been stopped; the coroutine did not start.
            OutcomeUnknown: the loop was stopped before the coroutine ended.
        """
        with self._submitting:
            if self._stopping:
                coroutine.close()
                raise Unavailable(CLOSED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._handed.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise OutcomeUnknown(CLOSED) from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._handed.discard(future)

    def stop(self) -> None:
        """Cancel the running tasks, then end the thread. A second call has no effect."""
        with self._submitting:
            if self._stopping:
                return
            self._stopping = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join()
        for future in tuple(self._handed):  # those whose task did not end in time
            future.cancel()
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        try:
            if others:
                await asyncio.wait(others, timeout=END_S)
        finally:
            self._loop.stop()
