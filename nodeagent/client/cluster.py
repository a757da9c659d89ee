"""The asynchronous interface: one object for everything a program does with a cluster.

The modules that handle rows are imported at first use: their import takes longer than most operator commands.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Self

from nodeagent.client.calls import Calls
from nodeagent.client.changes import Changes, OnProgress, Until, has_ended
from nodeagent.client.files import Files
from nodeagent.client.link import Link, NetworkLink
from nodeagent.client.report import (
    IN_FLIGHT_MAX,
    ROWS_MAX,
    TIME_MAX,
    TIME_MIN,
    DeleteReport,
    WriteReport,
)
from nodeagent.client.spec import TIMEOUT_S, ClusterSpec
from nodeagent.model.errors import NodeAgentError, Unavailable
from nodeagent.model.ids import META, GroupId, NodeId
from nodeagent.model.operation import Operation
from nodeagent.model.requests import (
    BeginChange,
    ControlOperation,
    GetStatus,
    MetaView,
    NodeStatus,
    OperationReply,
    Reply,
    Request,
)
from nodeagent.model.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa

    from nodeagent.client.query import OnAge
    from nodeagent.client.reader import Reads
    from nodeagent.client.writer import BulkWriter, Writes
    from nodeagent.table.arrow import Rows

STATUS_TIMEOUT_S = 2.0


class Cluster:
    """See the package for its guarantees. Times of rows are milliseconds, and ranges of them are
    inclusive; `timeout_s` is in seconds, and a slot range excludes its end.

    Every method raises `NodeAgentError`; the modules `writer` and `reader` list the subclasses.
    """

    def __init__(self, link: Link, *, timeout_s: float = TIMEOUT_S, rng: random.Random | None = None) -> None:
        self._link = link
        self._calls = Calls(link, timeout_s, rng or random.Random())
        self._changes = Changes(self._calls)
        self.files = Files(self.call)

    @classmethod
    async def connect(cls, spec: ClusterSpec) -> Self:
        """Opens no connection yet, so it succeeds even if every node is down.

        Raises:
            InvalidInput: the identity cannot be loaded.
        """
        return cls(NetworkLink(spec.endpoints, spec.identity), timeout_s=spec.timeout_s)

    async def close(self) -> None:
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- nodes and groups ------------------------------------------------------------------------

    async def statuses(self, timeout_s: float = STATUS_TIMEOUT_S) -> dict[str, NodeStatus | NodeAgentError]:
        """The status of every known node, or the error of its request, by name (`host:port` while unnamed).

        All nodes are asked in parallel; the call takes at most `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        asked: dict[str, asyncio.Task[NodeStatus | NodeAgentError]] = {}

        def ask_all() -> None:
            for target in self._calls.views.targets():
                if target not in asked:
                    asked[target] = asyncio.create_task(
                        _status(self._link, target, max(0.05, end - loop.time()))
                    )

        ask_all()
        view = self._calls.views.meta(timeout_s=timeout_s / 2, wait=False, any_age=True)
        with suppress(NodeAgentError, TimeoutError):
            await asyncio.wait_for(view, timeout_s / 2)
        ask_all()
        answers = [(target, await task) for target, task in asked.items()]
        found: dict[str, NodeStatus | NodeAgentError] = {}
        for target, answer in answers:
            name = answer.node if isinstance(answer, NodeStatus) else target
            if name not in found or isinstance(answer, NodeStatus):
                found[name] = answer
        return found

    async def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
        """The meta view of the first node that answers. Nodes answer only after a read index (`strong`), or
        if a leader confirmed their state lately, or in any case (`any_age`); see `age_ms` of the view."""
        return await self._calls.views.meta(strong, any_age=any_age)

    async def call(self, node: NodeId, request: Request, timeout_s: float | None = None) -> Reply:
        """Send one request to one node, without a retry. An error reply is raised."""
        if self._link.where(node) is None:
            await self._calls.views.refresh()
        return await self._calls.call(node, request, timeout_s)

    async def call_meta(self, request: Request) -> Reply:
        """Send one request to the meta leader, with retries if they are safe."""
        if isinstance(request, BeginChange):
            return OperationReply(await self._changes.begin(request))
        return await self._calls.ask_meta(request)

    async def call_group(self, group: GroupId, request: Request, read: str = "strong") -> Reply:
        """Send one request to a group, with retries if safe: first to its likely leader (`strong`, or the
        meta group), else to a random member."""
        if group == META:
            return await self._calls.ask_meta(request)
        _, reply = await self._calls.ask_group(group, request, read=read)
        return reply

    # --- rows ------------------------------------------------------------------------------------

    @cached_property
    def _writes(self) -> Writes:
        from nodeagent.client.writer import Writes

        return Writes(self._calls)

    @cached_property
    def _reads(self) -> Reads:
        from nodeagent.client.reader import Reads

        return Reads(self._calls)

    async def put_schema(self, schema: TableSchema, ttl_ms: int | None = None) -> TableSchema:
        """Create a table or add columns, set its TTL if given (0: none); return the schema in force."""
        return await self._writes.put_schema(schema, ttl_ms)

    async def schemas(self) -> list[TableSchema]:
        """All tables, sorted."""
        await self._calls.views.meta(strong=True)
        return self._calls.views.known_schemas()

    async def write(
        self,
        storage_group: str,
        table: str,
        data: Rows,
        *,
        tags: Sequence[str] | None = None,
        rows_max: int = ROWS_MAX,
    ) -> WriteReport:
        """Write rows; return when all are acknowledged (`Writes.write`).

        `tags` names the tag columns and allows the table to be created or extended.
        """
        return await self._writes.write(storage_group, table, data, tags=tags, rows_max=rows_max)

    def writer(self, in_flight: int = IN_FLIGHT_MAX) -> AbstractAsyncContextManager[BulkWriter]:
        """For many small writes: `async with cluster.writer() as w: await w.write(...)`."""
        from nodeagent.client.writer import bulk

        return bulk(self._writes, in_flight)

    async def delete(
        self,
        storage_group: str,
        table: str,
        *,
        tags: Mapping[str, str | None] | None = None,
        time_from: int | None = None,
        time_to: int | None = None,
    ) -> DeleteReport:
        """Delete the rows that have these tags and a time in the range: all that exist when the call begins,
        and possibly rows written during the call. The delete is atomic in each partition, not across
        partitions."""
        query = await self._reads.query(
            storage_group,
            table,
            fields=None,
            tags=tags or {},
            time_from=time_from,
            time_to=time_to,
            read="strong",
        )
        return await self._writes.delete(
            query.spec.schema,
            await self._reads.lists.partitions_in(query),
            tags=query.spec.tags,
            time_from=TIME_MIN if time_from is None else time_from,
            time_to=TIME_MAX if time_to is None else time_to,
        )

    async def scan(
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
        """All rows, or the first `limit` rows, sorted by (tags, time), with the newest value per cell.

        `on_age` is called with the age of each answer to a bounded or weak read (`query.OnAge`). Over the
        limit of 8 parameters because each keyword is an independent, optional part of the query.
        """
        query = await self._reads.query(
            storage_group,
            table,
            fields=fields,
            tags=tags or {},
            time_from=time_from,
            time_to=time_to,
            read=read,
            on_age=on_age,
        )
        return await self._reads.scan(query, limit)

    async def scan_batches(
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
    ) -> AsyncIterator[pa.RecordBatch]:
        """As `scan`, but unordered and with only a few pages in memory."""
        query = await self._reads.query(
            storage_group,
            table,
            fields=fields,
            tags=tags or {},
            time_from=time_from,
            time_to=time_to,
            read=read,
            on_age=on_age,
        )
        async for part in self._reads.pages.read(query):
            for batch in part.to_batches():
                yield batch

    async def aggregate(
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
        """One row with `count, min, max, sum` of the field's values in the rows that `scan` would return.

        The groups compute them where the rows are (`table.aggregate`). Without a value, all except `count`
        are null; so are `sum` of values that are not numbers, and `min` and `max` of texts and blobs. Over
        the limit of 8 parameters for the same reason as `scan`.
        """
        query = await self._reads.query(
            storage_group,
            table,
            fields=[field],
            tags=tags or {},
            time_from=time_from,
            time_to=time_to,
            read=read,
            on_age=on_age,
        )
        return await self._reads.aggregate(query, field.lower())

    async def count(
        self, storage_group: str | None = None, table: str | None = None
    ) -> list[dict[str, object]]:
        """Per table `storage_group, table, rows, time_min_ms, time_max_ms`."""
        return await self._reads.lists.count(storage_group, table)

    # --- changes ---------------------------------------------------------------------------------

    async def begin_change(self, change: BeginChange) -> Operation:
        return await self._changes.begin(change)

    async def control(self, control: ControlOperation) -> Operation:
        return await self._changes.control(control)

    async def operation(self, operation: str) -> Operation:
        return await self._changes.operation(operation)

    async def wait(
        self,
        operation: str,
        *,
        until: Until = has_ended,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> Operation:
        """Wait until `until` holds for the operation (default: it has ended)."""
        return await self._changes.wait(operation, until=until, on_progress=on_progress, timeout_s=timeout_s)


async def _status(link: Link, target: str, timeout_s: float) -> NodeStatus | NodeAgentError:
    try:
        reply = await asyncio.wait_for(link.call(target, GetStatus(), timeout_s), timeout_s)
    except TimeoutError:
        return Unavailable(f"{target} did not answer within {timeout_s:.1f} s")
    except NodeAgentError as error:
        return error
    assert isinstance(reply, NodeStatus), reply
    return reply
