"""Read levels: how new a replica's state must be before the replica answers."""

from collections.abc import Callable
from functools import partial

import msgspec

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.freshness import confirmed_text
from nodeagent.model.requests import ErrorReply, PartitionsListed, Reply, RowsScanned
from nodeagent.model.requests.rows import BOUNDED, STRONG, WEAK


def with_level(
    effects: EffectQueue, replica: DataReplica, token: int, level: str, then: Callable[[], None]
) -> None:
    """Run `then` once the replica's state is new enough for `level`.

    strong: everything acknowledged before the read (read index). mid (bounded): no older than
    `staleness_max_ms`. weak: any age. Bounded and weak reads need a recovered state, and their answers carry
    its age.
    """
    then = effects.guarded(token, "a read", then)
    if level == STRONG:
        replica.read(then, lambda why: effects.refuse(token, "unavailable", why))
    elif not replica.state.rows.recovered:
        effects.refuse(token, "unavailable", f"group {replica.group} is still recovering on this node")
    elif level == BOUNDED:
        bound_ms = replica.config.staleness_max_ms
        refuse = partial(_refuse_stale, effects, replica, token)
        replica.freshness.within(bound_ms, lambda: _with_age(effects, replica, token, then), refuse)
    elif level == WEAK:
        _with_age(effects, replica, token, then)
    else:
        effects.refuse(token, "invalid_input", f"read level {level!r}", "use strong, bounded or weak")


def _refuse_stale(effects: EffectQueue, replica: DataReplica, token: int, age_ms: int) -> None:
    bound_ms = replica.config.staleness_max_ms
    what = f"the replica of {replica.group} on {replica.raft.node} may be stale: {confirmed_text(age_ms)}; "
    what += f"a bounded read allows {bound_ms} ms"
    helps = "ask another member, or use a weak read, whose answer carries its age"
    effects.reply(token, ErrorReply("unavailable", what, helps, {"age_ms": age_ms}))


def _with_age(effects: EffectQueue, replica: DataReplica, token: int, then: Callable[[], None]) -> None:
    """Run `then`; its answer carries the current age of this replica's state."""
    age_ms = replica.freshness.age_ms

    def aged(reply: Reply) -> Reply:
        is_answer = isinstance(reply, RowsScanned | PartitionsListed)
        return msgspec.structs.replace(reply, age_ms=age_ms) if is_answer else reply

    effects.amend(token, aged)
    then()
