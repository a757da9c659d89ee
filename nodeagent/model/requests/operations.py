"""Operations, the cluster's lock, and the records of runs: asked of the meta group's leader."""

from typing import ClassVar

from nodeagent.model.bounds import Count, Name, Port, Rate, Slots, Text, Weight
from nodeagent.model.operation import Operation, Options
from nodeagent.model.requests.base import ADMINS, MEMBERS, READERS, Message, Repeat, Traits
from nodeagent.model.runs import Lock, Run


class BeginChange(Message, frozen=True, tag="BeginChange"):
    """`kind`: add-node, remove-node, or rebalance (`node` "", `gains` required).

    For an add, where the newcomer listens and which disk it has.
    """

    traits: ClassVar = Traits(MEMBERS, Repeat.NEVER)

    kind: Name
    node: Name
    by: Text
    options: Options = Options()
    after: Name | None = None
    host: Name = ""
    port: Port = 0
    http_port: Port = 0
    incarnation: Name = ""
    weight: Weight = 1.0
    table_version: Count = 0
    """The version the caller planned for; 0 skips the check."""

    gains: tuple[tuple[Name, Slots], ...] = ()
    """Slots each group (by header) gains, as the caller planned and showed them; () lets the leader plan."""

    replaces: Name = ""
    """replace-node: whose place on the ring `node` takes."""

    lock: Count = 0
    """Serial of the cluster's lock; refused when it is not held any more. 0 works without it."""


class Steer(Message, frozen=True, tag="Steer"):
    """Act on an open operation.

    `verb`: go (migrate), sign-off, release, pause, resume, cancel, lease, unlease, set, dead.
    `dead`: `node` died during the operation and will not return.

    """

    traits: ClassVar = Traits(MEMBERS, Repeat.UNLESS_FAILED)

    operation: Name
    verb: Name
    by: Text
    owner: Text = ""
    ttl_ms: Count = 0
    rate_bytes_per_s: Rate = -1
    report: Text = ""
    node: Name = ""


class GetOperation(Message, frozen=True, tag="GetOperation"):
    """The whole record of an operation, open or ended; `not_found` when it is not kept any more."""

    traits: ClassVar = Traits(READERS)

    operation: str


class OperationReply(Message, frozen=True, tag="OperationReply"):
    operation: Operation


class TakeLock(Message, frozen=True, tag="TakeLock"):
    """The cluster's lock, for `ttl_ms` from the last time its owner asked; `serial` when it is renewed.

    `owner` names the process for people (user@host, pid) and is no other's. Answered by `LockReply`, `busy`
    when another holds it, `refused` when what is to be renewed is lost.
    """

    traits: ClassVar = Traits(ADMINS)

    owner: Text
    what: Text
    by: Text
    ttl_ms: Count
    serial: Count = 0


class DropLock(Message, frozen=True, tag="DropLock"):
    """Give the lock up, also another's; `outcome` goes to the audit log. `not_found` when it is not held."""

    traits: ClassVar = Traits(ADMINS)

    serial: Count
    by: Text
    outcome: Text


class LockReply(Message, frozen=True, tag="LockReply"):
    lock: Lock


class RecordRun(Message, frozen=True, tag="RecordRun"):
    """Entry `number` of a run's record, counted from 0; may be sent twice. `serial` is of the lock held."""

    traits: ClassVar = Traits(ADMINS)

    run: Name
    name: Text
    number: Count
    entry: bytes
    serial: Count
    by: Text
    ended: bool = False


class GetRuns(Message, frozen=True, tag="GetRuns"):
    """The lock and the runs, newest last; entries only of the run that is named."""

    traits: ClassVar = Traits(READERS)

    run: Name = ""


class RunsReply(Message, frozen=True, tag="RunsReply"):
    lock: Lock | None
    runs: tuple[Run, ...]
