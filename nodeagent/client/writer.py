"""Writes and deletes: split by slot, numbered, sent until their outcome is decided.

Every attempt of one write carries the same (session, slot, sequence), also after its slot moved to another
group: the new group takes over the sessions of the slot, so the write is applied once. The answers decide the
outcome:

    Written                           the write is done
    only definite refusals            the write did not take effect: route it again and retry, or raise
    any attempt without an answer     the write may have taken effect: from then on only Written decides it;
                                      the deadline or an expired session raises `OutcomeUnknown`
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from nodeagent.client.attempt import Attempt, Build
from nodeagent.client.calls import Calls
from nodeagent.client.report import IN_FLIGHT_MAX, ROWS_MAX, DeleteReport, WriteReport
from nodeagent.client.sessions import Sessions, Ticket
from nodeagent.client.tasks import run_bounded
from nodeagent.model.errors import (
    InvalidInput,
    NodeAgentError,
    NotFound,
    OutcomeUnknown,
)
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.limits import WRITE_BYTES_MAX
from nodeagent.model.requests import (
    DeleteRows,
    PutSchema,
    Request,
    SchemaInForce,
    Write,
    Written,
)
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import slot_of
from nodeagent.partition.rows import split_rows
from nodeagent.table.arrow import Rows, encode, infer_schema, normalise


class Writes:
    """Writes rows and deletes (see the module). Entries of one partition within one `write` keep their order;
    concurrent calls have no order."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._sessions = Sessions(calls)

    # --- rows ------------------------------------------------------------------------------------

    async def put_schema(self, schema: TableSchema, ttl_ms: int | None = None) -> TableSchema:
        """Create the table or add its new columns, and set its TTL if given (0: none); return the schema in
        force."""
        reply = await self._calls.ask_meta(PutSchema(schema, ttl_ms))
        assert isinstance(reply, SchemaInForce), reply
        self._calls.views.learn_schema(reply.schema)
        return reply.schema

    async def write(
        self,
        storage_group: str,
        table: str,
        rows: Rows,
        *,
        tags: Sequence[str] | None = None,
        rows_max: int = ROWS_MAX,
        room: asyncio.Semaphore | None = None,
    ) -> WriteReport:
        """Write rows and wait until all are acknowledged.

        Args:
            tags: the names of the tag columns; if given, the table may be created or extended.
            rows_max: rows per entry.

        Raises:
            SchemaMismatch, InvalidInput: no row is written; with `tags`, the table may have been created or
                extended.
            NotFound: there is no such table, and `tags` is None.
            OutcomeUnknown: `details["rows_acknowledged"]` rows (0 if absent) are written, the others may be
                missing.
            NodeAgentError: after any other error no row is written.
        """
        started = time.monotonic()
        schema = await self._schema(storage_group.lower(), table.lower(), rows.schema, tags)
        batch = normalise(rows, schema)
        settings = (await self._calls.views.current()).view.settings
        pieces = split_rows(batch, schema.tags, settings)
        room = room or asyncio.Semaphore(IN_FLIGHT_MAX)
        tally = _Tally()

        async def write_piece(at: tuple[int, int], piece: pa.RecordBatch) -> None:
            partition = PartitionKey(schema.storage_group, *at)
            slot = slot_of(schema.storage_group, *at, settings)
            entries = _entries(piece, rows_max)
            while tally.error is None:
                async with room:
                    try:
                        entry = next(entries, None)
                    except InvalidInput as error:
                        tally.fail(error)
                        return
                    if entry is None:
                        return
                    await tally.watch(entry[0], self._write(slot, partition, schema, entry[1]))

        await run_bounded((write_piece(at, piece) for at, piece in pieces), 2 * IN_FLIGHT_MAX)
        if tally.error is not None and tally.error.details.get("dropped"):
            self._calls.views.forget_schema(schema.storage_group, schema.table)
        tally.check(batch.num_rows)
        return WriteReport(tally.rows, tally.entries, time.monotonic() - started)

    async def delete(
        self,
        schema: TableSchema,
        partitions: Iterable[tuple[int, PartitionKey]],
        *,
        tags: tuple[tuple[str, str | None], ...],
        time_from: int,
        time_to: int,
    ) -> DeleteReport:
        """Send a range delete to each (slot, partition). Raises as `write`; `rows_acknowledged` then counts
        partitions."""
        started = time.monotonic()
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        tally = _Tally()

        async def delete_in(slot: int, partition: PartitionKey) -> None:
            def build(group: GroupId, ticket: Ticket) -> Request:
                return DeleteRows(
                    group=group,
                    slot=slot,
                    partition=partition,
                    table=schema.table,
                    session=ticket.session.name,
                    sequence=ticket.sequence,
                    acknowledged_through=ticket.acknowledged_through,
                    tags=tags,
                    time_from=time_from,
                    time_to=time_to,
                    schema_version=schema.version,
                )

            async with room:
                if tally.error is None:
                    await tally.watch(1, self.submit(slot, build))

        await run_bounded((delete_in(slot, p) for slot, p in partitions), 2 * IN_FLIGHT_MAX)
        tally.check(tally.started)
        return DeleteReport(tally.entries, time.monotonic() - started)

    async def _write(self, slot: int, partition: PartitionKey, schema: TableSchema, ipc: bytes) -> None:
        def build(group: GroupId, ticket: Ticket) -> Request:
            routes = self._calls.views.routes
            return Write(
                group=group,
                slot=slot,
                partition=partition,
                table=schema.table,
                schema_version=schema.version,
                session=ticket.session.name,
                sequence=ticket.sequence,
                acknowledged_through=ticket.acknowledged_through,
                table_version=routes.version if routes else 0,
                ipc=ipc,
            )

        await self.submit(slot, build)

    async def _schema(
        self, storage_group: str, table: str, source: pa.Schema, tags: Sequence[str] | None
    ) -> TableSchema:
        """The table's schema, created or extended if `tags` allows it."""
        if tags is None:
            return await self._calls.views.schema(storage_group, table)
        try:
            known = await self._calls.views.schema(storage_group, table)
        except NotFound:
            offered = infer_schema(source, storage_group=storage_group, table=table, tags=tags)
            return await self.put_schema(offered)
        have = {c.name for c in known.columns} | {"time"}
        if have.issuperset(name.lower() for name in source.names):
            return known
        offered = infer_schema(source, storage_group=storage_group, table=table, tags=tags, known=known)
        added = tuple(c for c in offered.columns if c.name not in have)
        return await self.put_schema(
            msgspec.structs.replace(known, version=known.version + 1, columns=known.columns + added)
        )

    # --- one entry -------------------------------------------------------------------------------

    async def submit(self, slot: int, build: Build) -> Written:
        """Send one write until its outcome is decided (see the module)."""
        attempt = Attempt(self._calls, self._sessions, slot)
        try:
            while True:
                written = await attempt.once(build)
                if written is not None:
                    return written
        finally:
            attempt.finish()


class BulkWriter:
    """Keeps many writes in flight; `write` returns as soon as there is room.

    The first failure is raised by the next call, or by `drain`.
    """

    def __init__(self, writes: Writes, in_flight: int = IN_FLIGHT_MAX) -> None:
        self._writes = writes
        self._room = asyncio.Semaphore(in_flight)
        self._calls_max = in_flight
        self._running: set[asyncio.Task[WriteReport]] = set()
        self._failure: BaseException | None = None
        self._started = time.monotonic()
        self.rows = 0
        self.entries = 0

    async def write(
        self, storage_group: str, table: str, rows: Rows, *, tags: Sequence[str] | None = None
    ) -> None:
        self._check()
        while len(self._running) >= self._calls_max:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        self._check()
        task = asyncio.create_task(self._writes.write(storage_group, table, rows, tags=tags, room=self._room))
        self._running.add(task)
        task.add_done_callback(self._on_done)

    async def drain(self) -> WriteReport:
        """Wait for all writes; return what was acknowledged since the start."""
        await self.wait()
        self._check()
        return WriteReport(self.rows, self.entries, time.monotonic() - self._started)

    async def wait(self) -> None:
        """Wait for all writes, without raising their errors."""
        while self._running:
            await asyncio.wait(self._running)

    def _on_done(self, task: asyncio.Task[WriteReport]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.rows += task.result().rows
            self.entries += task.result().entries
        else:
            self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


@asynccontextmanager
async def bulk(writes: Writes, in_flight: int = IN_FLIGHT_MAX) -> AsyncIterator[BulkWriter]:
    """A `BulkWriter` that is drained at the end of the block."""
    writer = BulkWriter(writes, in_flight)
    try:
        yield writer
    finally:
        await writer.wait()
    await writer.drain()


@dataclass(slots=True)
class _Tally:
    """The outcomes of the entries of one call. After the first error no further entry is started, except
    entries of a write that wait for room already."""

    started: int = 0
    rows: int = 0
    entries: int = 0
    error: NodeAgentError | None = None
    unknown: bool = False

    async def watch(self, rows: int, entry: Awaitable[object]) -> None:
        self.started += 1
        try:
            await entry
        except NodeAgentError as error:
            self.fail(error)
        else:
            self.rows += rows
            self.entries += 1

    def fail(self, error: NodeAgentError) -> None:
        self.error = self.error or error
        self.unknown = self.unknown or isinstance(error, OutcomeUnknown)

    def check(self, rows: int) -> None:
        """Raise the error of the whole call, if any: a definite error only if no entry took effect."""
        if self.error is None:
            return
        if not self.unknown and not self.entries:
            raise self.error
        raise OutcomeUnknown(
            f"{self.rows} of {rows} rows are acknowledged, the others are not: {self.error.what}",
            next_step="write them again (equal rows overwrite each other)",
            rows_acknowledged=self.rows,
            rows=rows,
            cause=self.error.code,
        ) from self.error


def _entries(piece: pa.RecordBatch, rows_max: int) -> Iterator[tuple[int, bytes]]:
    """(rows, Arrow stream) of consecutive parts, each within `rows_max` and `WRITE_BYTES_MAX`."""
    start, size = 0, max(1, rows_max)
    while start < piece.num_rows:
        part = piece.slice(start, size)
        ipc = encode(part)
        if len(ipc) > WRITE_BYTES_MAX:
            if part.num_rows == 1:
                raise InvalidInput(
                    f"a row of {len(ipc)} bytes exceeds the limit of {WRITE_BYTES_MAX} bytes", row=start
                )
            size = part.num_rows // 2
            continue
        yield part.num_rows, ipc
        start += part.num_rows
