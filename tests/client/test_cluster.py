"""Statuses while nodes are down, changes, and file transfer."""

import asyncio
import gc

import msgspec
import pytest

from nodeagent.client.cluster import Cluster
from nodeagent.client.views import TABLES_KEPT
from nodeagent.model.errors import (
    FileCorrupt,
    Forbidden,
    InvalidInput,
    NodeAgentError,
    NotLeader,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import (
    Accepted,
    BeginChange,
    Chunk,
    FetchChunk,
    GetManifest,
    GetMeta,
    GetOperation,
    MetaView,
    NodeStatus,
    PutSchema,
    Reply,
    Request,
)
from tests.client.clock import run
from tests.client.fake import NODES, FakeCluster
from tests.client.rows import SCHEMA, SG, TABLE
from tests.client.test_writes import make

CHANGE = BeginChange("add-node", "node5", "someone")


@pytest.mark.parametrize("down", range(5))
@pytest.mark.parametrize("hung", range(5))
def test_statuses_end_in_time_with_dead_and_hung_nodes(down: int, hung: int) -> None:
    """Dead and silent nodes are listed with an error, the others with their status; no leader is needed."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.learn("10.0.0.9:1", "10.0.0.1", 0)  # node1 again, by address
        fake.down, fake.hung = set(NODES[:down]), set(NODES[::-1][:hung])
        loop = asyncio.get_running_loop()
        started = loop.time()
        statuses = await cluster.statuses(2.0)
        assert loop.time() - started <= 2.01
        alive = set(NODES) - fake.down - fake.hung
        assert {n for n, s in statuses.items() if isinstance(s, NodeStatus)} >= alive
        for node in set(NODES) - alive:
            assert isinstance(statuses[node], NodeAgentError) or node == "node1"

    run(scenario())


def test_meta_comes_from_the_first_node_that_answers() -> None:
    """A node that hangs delays the answer by `STAGGER_S`, not by a timeout."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.hung, fake.down = {"node1"}, {"node2"}
        started = asyncio.get_running_loop().time()
        view = await cluster.meta()
        assert view.node in ("node3", "node4")
        assert asyncio.get_running_loop().time() - started < 1

    run(scenario())


def test_refusals_beside_an_answer_cause_no_asyncio_warning() -> None:
    """asyncio would print an exception that is never retrieved on the operator's terminal."""

    async def scenario() -> list[str]:
        fake, cluster = make()
        together, asked, unseen = asyncio.Event(), list[str](), list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: unseen.append(what["message"]))
        ask = fake.call

        async def call(target: str, request: Request, timeout_s: float) -> Reply:
            asked.append(target)
            if len(asked) > 1:
                together.set()
            await together.wait()
            if target == asked[0]:
                return await ask(target, request, timeout_s)
            raise Unavailable("the cluster is not formed yet")

        fake.faults.delay_max_s = 0.0
        fake.call = call  # type: ignore[method-assign]
        await cluster.meta()
        gc.collect()
        return unseen

    for _ in range(8):  # the order of tasks in a set differs from run to run
        assert run(scenario()) == []


@pytest.mark.parametrize("hung", [set(), {"node2", "node3"}])
@pytest.mark.parametrize("elected_s", [0.03, 3.0])
def test_a_node_without_a_view_is_asked_again(hung: set[str], elected_s: float) -> None:
    """Without a leader, or before the cluster is formed, nodes answer at once that they have no view. This
    lasts only briefly."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.hung = hung
        handle, loop = fake.handle, asyncio.get_running_loop()
        at, asked = loop.time() + elected_s, 0

        def answer(target: str, request: Request) -> Reply:
            nonlocal asked
            asked += 1
            if loop.time() < at:
                raise Unavailable("no leader confirmed the read")
            return handle(target, request)

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        await cluster.meta(strong=True)
        assert loop.time() < at + 1
        assert asked < 16 + 8 * elected_s  # the client pauses between requests

    run(scenario())


def test_nodes_without_a_view_are_asked_until_the_deadline() -> None:
    async def scenario() -> None:
        fake, cluster = make()
        handle, started = fake.handle, asyncio.get_running_loop().time()

        def answer(target: str, request: Request) -> Reply:
            raise Unavailable("no leader confirmed the read", next_step="look")

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        with pytest.raises(Unavailable, match="no result from 4 nodes within 10 s: no leader") as caught:
            await cluster.meta(strong=True)
        assert caught.value.next_step == "look"
        assert 10 <= asyncio.get_running_loop().time() - started < 10.5
        fake.down, fake.handle = {"node1"}, handle  # type: ignore[method-assign]
        assert (await cluster.meta()).node != "node1"

    run(scenario())


def test_one_node_that_accepts_this_client_is_enough() -> None:
    """Other nodes may have an expired certificate: the client asks every node before it fails."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.meta()
        handle = fake.handle

        def answer(target: str, request: Request) -> Reply:
            if isinstance(request, GetOperation) and target != NODES[-1]:
                refused = Forbidden(f"{target} has another certificate")
                refused.connected = False
                raise refused
            return Accepted(1) if isinstance(request, GetOperation) else handle(target, request)

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        assert await cluster._calls.ask_meta(GetOperation("op-1")) == Accepted(1)

    run(scenario())


def test_a_node_that_comes_back_is_asked_while_another_has_no_view() -> None:
    """A node without a view always answers at once; the client must still retry the nodes that were down."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.down = set(NODES[1:])
        handle, loop = fake.handle, asyncio.get_running_loop()

        def answer(target: str, request: Request) -> Reply:
            if target == NODES[0] and isinstance(request, GetMeta):
                raise Unavailable("the meta group of this node is damaged")
            return handle(target, request)

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        loop.call_later(0.5, fake.down.clear)
        assert (await cluster.meta()).node != NODES[0]
        assert loop.time() < 1.5

    run(scenario())


def test_statuses_need_no_formed_cluster() -> None:
    """Nodes of a cluster that is not formed return their statuses without delay."""

    async def scenario() -> None:
        fake, cluster = make()
        handle = fake.handle

        def answer(target: str, request: Request) -> Reply:
            if isinstance(request, GetMeta):
                raise Unavailable("the cluster is not formed yet")
            return handle(target, request)

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        assert all(isinstance(s, NodeStatus) for s in (await cluster.statuses(2.0)).values())
        assert asyncio.get_running_loop().time() < 0.7

    run(scenario())


def test_nodes_that_are_down_are_not_waited_for() -> None:
    """Unlike a node without a view, a node that is down will not answer soon."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.down = set(NODES)
        with pytest.raises(Unavailable, match="no result from 4 nodes: node. refuses connections"):
            await cluster.meta(strong=True)
        assert asyncio.get_running_loop().time() < 1

    run(scenario())


def test_an_older_view_never_replaces_a_newer_one() -> None:
    """The returned view and the routes never go back, whichever node answers."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.plan({0}, "node1.1", "node2.1")
        newest = await cluster.meta()
        fake.faults.stale_meta = 1.0
        fake.down = {"node1"}
        assert (await cluster.meta()).applied == newest.applied
        assert cluster._calls.views.routes is not None
        assert cluster._calls.views.routes.view.applied == newest.applied

    run(scenario())


def test_the_newest_table_versions_are_retained() -> None:
    """A page may be answered by a table version that became current, or was replaced, during the read."""

    async def scenario() -> None:
        fake, cluster = make()
        for _ in range(TABLES_KEPT + 2):
            fake.version += 1
            fake.publish()
            await cluster.meta()
        views = cluster._calls.views
        known = [views.at_version(fake.version - age) is not None for age in range(TABLES_KEPT + 2)]
        assert known == [True] * TABLES_KEPT + [False, False]

    run(scenario())


def test_a_former_leader_without_a_successor_is_not_always_asked_first() -> None:
    """A former leader that is cut off or removed always answers at once with the same old view: a client that
    asked it first each time would wait indefinitely for new routes or the end of an operation."""

    async def scenario() -> None:
        fake, cluster = make()
        assert (await cluster.meta()).leader == "node1"
        handle, old = fake.handle, msgspec.structs.replace(fake.views[-1], leader=None)

        def answer(target: str, request: Request) -> Reply:
            return old if target == "node1" and isinstance(request, GetMeta) else handle(target, request)

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        fake.publish()
        seen = [(await cluster.meta()).applied for _ in range(20)]
        assert seen[-1] == fake.applied, seen

    run(scenario())


def test_a_change_whose_answer_was_lost_is_looked_up_not_repeated() -> None:
    """The change is sent once; then the client asks the meta group for its operation."""

    async def scenario() -> None:
        fake, cluster = make()
        handle = fake.handle

        def lose(target: str, request: Request) -> Reply:
            reply = handle(target, request)
            if isinstance(request, BeginChange):
                raise OutcomeUnknown("no answer")
            return reply

        fake.handle = lose  # type: ignore[method-assign]  # the fault of this test
        operation = await cluster.begin_change(CHANGE)
        assert operation.id == fake.operations[0].id
        assert len([r for t, r in fake.log if isinstance(r, BeginChange) and t == "node1"]) == 1
        with pytest.raises(Refused):
            await cluster.begin_change(CHANGE)

    run(scenario())


@pytest.mark.parametrize("then,told", [(Refused, OutcomeUnknown), (InvalidInput, InvalidInput)])
def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown(
    then: type[NodeAgentError], told: type[NodeAgentError]
) -> None:
    """The first attempt may have taken effect, and the second may have been refused because of that. An
    invalid request can never have taken effect."""

    async def scenario() -> None:
        fake, cluster = make()
        handle, heard = fake.handle, 0

        def answer(target: str, request: Request) -> Reply:
            nonlocal heard
            reply = handle(target, request)
            if not isinstance(request, PutSchema):
                return reply
            heard += 1
            raise OutcomeUnknown("no answer") if heard == 1 else then("no")

        fake.handle = answer  # type: ignore[method-assign]  # the fault of this test
        with pytest.raises(told):
            await cluster.call_meta(PutSchema(SCHEMA))
        assert heard == 2

    run(scenario())


def test_a_view_of_another_cluster_is_refused() -> None:
    """The view neither changes the routes nor reaches the caller."""

    async def scenario() -> None:
        fake, cluster = make()
        before = await cluster.meta()
        fake.publish()
        fake.views[-1] = msgspec.structs.replace(fake.views[-1], cluster_id="other")
        with pytest.raises(Forbidden, match="belongs to cluster other, not c"):
            await cluster.meta()
        routes = cluster._calls.views.routes
        assert routes is not None and routes.view.applied == before.applied

    run(scenario())


def test_an_abandoned_refresh_causes_no_asyncio_warning() -> None:
    """The task that needed newer routes was cancelled, and the answer came from another cluster."""

    async def scenario() -> list[str]:
        fake, cluster = make()
        await cluster.meta()
        fake.publish()
        fake.views[-1] = msgspec.structs.replace(fake.views[-1], cluster_id="other")
        unseen = list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: unseen.append(what["message"]))
        asking = asyncio.create_task(cluster._calls.views.refresh())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.sleep(1)
        gc.collect()
        return unseen

    assert run(scenario()) == []


def test_an_older_schema_never_replaces_a_newer_one() -> None:
    """A lagging node may still send the older schema. Of two schemas with the same version the later one
    counts, because its TTL may differ."""

    async def scenario() -> None:
        _, cluster = make()
        calls = cluster._calls
        newer = msgspec.structs.replace(SCHEMA, version=SCHEMA.version + 1)
        with_ttl = msgspec.structs.replace(newer, ttl_ms=1000)
        for told, known in [(SCHEMA, SCHEMA), (newer, newer), (SCHEMA, newer), (with_ttl, with_ttl)]:
            calls.views.learn_schema(told)
            assert calls.views.known_schema(SG, TABLE) == known

    run(scenario())


def test_a_second_view_has_only_the_tables_that_changed() -> None:
    """The caller gets all of them. A view of an earlier release has no digest and all tables."""

    async def scenario() -> None:
        fake, cluster = make()
        handle, sent = fake.handle, list[MetaView]()
        old_release = False

        def noted(target: str, request: Request) -> Reply:
            if isinstance(request, GetMeta) and old_release:
                request = msgspec.structs.replace(request, held="")
            reply = handle(target, request)
            if isinstance(reply, MetaView):
                sent.append(msgspec.structs.replace(reply, schemas_digest="") if old_release else reply)
                return sent[-1]
            return reply

        fake.handle = noted  # type: ignore[method-assign]  # it shows what is sent

        async def view() -> tuple[list[str], list[str]]:
            whole = await cluster.meta(strong=True)
            assert not whole.schemas_base and not whole.dropped
            return sorted(s.table for s in sent[-1].schemas), sorted(s.table for s in whole.schemas)

        other = msgspec.structs.replace(SCHEMA, table="other")
        assert await view() == ([TABLE], [TABLE])
        assert await view() == ([], [TABLE])
        fake.add_table(other)
        assert await view() == (["other"], sorted([TABLE, "other"]))
        fake.drop_table(SG, TABLE)
        assert await view() == ([], ["other"]) and sent[-1].dropped == ((SG, TABLE),)
        fake.add_table(SCHEMA)
        old_release = True
        for _ in range(2):
            assert await view() == (sorted([TABLE, "other"]), sorted([TABLE, "other"]))
        old_release = False
        fake.publish()
        assert await view() == (sorted([TABLE, "other"]), sorted([TABLE, "other"]))
        fake.publish()
        assert await view() == ([], sorted([TABLE, "other"]))

    run(scenario())


def test_a_change_that_never_arrived_is_unknown() -> None:
    """The request may still arrive after the deadline."""

    async def scenario() -> None:
        fake, cluster = make()
        handle = fake.handle

        def swallow(target: str, request: Request) -> Reply:
            if isinstance(request, BeginChange):
                raise OutcomeUnknown("no answer")
            return handle(target, request)

        fake.handle = swallow  # type: ignore[method-assign]  # the fault of this test
        with pytest.raises(OutcomeUnknown):
            await cluster.begin_change(CHANGE)

    run(scenario())


def test_a_refused_change_is_not_retried_without_time_for_an_answer() -> None:
    """Otherwise the last attempt gets no answer, and a change that never took effect is reported as
    unknown."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.meta()
        call = fake.call

        async def refuses(target: str, request: Request, timeout_s: float) -> Reply:
            if not isinstance(request, BeginChange):
                return await call(target, request, timeout_s)
            if timeout_s < 0.001:
                raise OutcomeUnknown("no answer in time")
            raise NotLeader("this node does not lead", leader=None)

        fake.call = refuses  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="does not lead"):
            await cluster.begin_change(CHANGE)

    run(scenario())


def test_wait_reports_each_state_once_and_survives_an_outage() -> None:
    """The wait continues while the cluster does not answer."""

    async def scenario() -> None:
        fake, cluster = make()
        operation = await cluster.begin_change(CHANGE)
        shown: list[Operation] = []
        task = asyncio.create_task(cluster.wait(operation.id, on_progress=shown.append))
        await asyncio.sleep(1)
        fake.down = set(NODES)
        await asyncio.sleep(20)
        fake.down = set()
        fake.operations = [_at(fake.operations[0], Stage.DONE)]
        fake.publish()
        assert (await task).stage is Stage.DONE
        assert [o.stage for o in shown] == [Stage.PLANNED, Stage.DONE]

    run(scenario())


def test_a_wait_ends_by_its_own_timeout() -> None:
    """The error names the command that continues the wait."""

    async def scenario() -> None:
        _, cluster = make()
        operation = await cluster.begin_change(CHANGE)
        with pytest.raises(Unavailable) as caught:
            await cluster.wait(operation.id, timeout_s=3)
        assert caught.value.next_step.endswith(operation.id)

    run(scenario())


class _Files(FakeCluster):
    content = bytes(range(256)) * 9000
    size = len(content)

    def handle(self, target: str, request: Request) -> Reply:
        if isinstance(request, FetchChunk):
            end = request.offset + min(request.length, 1_000_000)
            return Chunk(self.content[request.offset : end], self.size)
        return super().handle(target, request)


def test_a_file_is_fetched_in_pieces_and_a_short_one_is_an_error() -> None:
    """The reported size decides where the file ends, not an empty chunk."""

    async def scenario() -> None:
        fake = _Files()
        cluster = Cluster(fake)
        assert await cluster.files.fetch("node1", "ab", "f") == fake.content
        fake.size += 1
        with pytest.raises(FileCorrupt):
            await cluster.files.fetch("node1", "ab", "f")

    run(scenario())


def test_a_reply_of_another_kind_is_an_error_that_names_the_node() -> None:
    """A verification can then continue with the other replicas."""

    class Odd(FakeCluster):
        def handle(self, target: str, request: Request) -> Reply:
            return Chunk(b"", 0) if isinstance(request, GetManifest) else super().handle(target, request)

    async def scenario() -> None:
        with pytest.raises(Unavailable, match="node1 answered with Chunk instead of ManifestReply"):
            await Cluster(Odd()).files.manifest("node1", "g.1")

    run(scenario())


def _at(operation: Operation, stage: Stage) -> Operation:
    operation.stage = stage
    return operation
