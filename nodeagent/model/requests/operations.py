"""Requests to the leader of the meta group about operations, the cluster lock, and the records of runs."""

from typing import ClassVar

from nodeagent.model.audit_chain import AuditLine
from nodeagent.model.bounds import Count, Name, Port, Rate, Slots, Text, Weight
from nodeagent.model.operation import Operation, Options
from nodeagent.model.requests.base import ADMINS, MEMBERS, READERS, Message, Repeat, Traits
from nodeagent.model.runs import Lock, Run


class BeginChange(Message, frozen=True, tag="BeginChange"):
    """Begin a change. The reply is `OperationReply`.

    `kind`: add-node, remove-node, replace-node, or rebalance (`node` is "" and `gains` required). For a node
    that joins: `host`, `port` and `http_port` are its addresses, `incarnation` is that of its directory.
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
    """Version of the table that the caller planned for; refused if it has changed, 0 skips the check."""

    gains: tuple[tuple[Name, Slots], ...] = ()
    """(group owner, slots that its group gains), as the caller planned and showed them; () lets the leader
    plan."""

    replaces: Name = ""
    """replace-node: the node whose place on the ring `node` takes."""

    lock: Count = 0
    """Serial of the cluster lock that the sender holds; refused if that lock is not held. 0 for none."""

    zone: Name = ""
    """The zone of the node that joins, as in `NodeRecord`; ignored before `Feature.ZONES`."""


class ControlOperation(Message, frozen=True, tag="Steer"):
    """Control an open operation.

    `verb` is one of:

    - go: start the copies of an operation with `Options.no_migrate`;
    - sign-off: approve the verified copies; `report` goes to the audit log;
    - release: end the hold of `Options.hold_release_ms`;
    - pause, resume, cancel: as named;
    - lease, unlease: take or renew for `ttl_ms`, or release, the lease of `owner` on the order of pulls;
    - set: change the rate to `rate_bytes_per_s`;
    - dead: `node` died during the operation and will not return.
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
    """Read the whole record of an operation, open or ended; `not_found` if it is not retained any more."""

    traits: ClassVar = Traits(READERS)

    operation: str


class OperationReply(Message, frozen=True, tag="OperationReply"):
    """The operation, after the request was carried out."""

    operation: Operation


class TakeLock(Message, frozen=True, tag="TakeLock"):
    """Take the cluster lock for `ttl_ms`, or renew the lock `serial` for as long.

    `owner` identifies the process (user@host, pid) and is unique. The reply is `LockReply`, `busy` if another
    owner holds the lock, or `refused` if the lock to renew is lost.
    """

    traits: ClassVar = Traits(ADMINS)

    owner: Text
    what: Text
    by: Text
    ttl_ms: Count
    serial: Count = 0


class DropLock(Message, frozen=True, tag="DropLock"):
    """Release the cluster lock `serial`, whoever holds it; `outcome` goes to the audit log. `not_found` if it
    is not held."""

    traits: ClassVar = Traits(ADMINS)

    serial: Count
    by: Text
    outcome: Text


class LockReply(Message, frozen=True, tag="LockReply"):
    lock: Lock


class RecordRun(Message, frozen=True, tag="RecordRun"):
    """Store entry `number` (from 0) of the record of a run; a repeat has no effect.

    `serial` is that of the cluster lock that the sender holds. `ended` marks the last entry.
    """

    traits: ClassVar = Traits(ADMINS)

    run: Name
    name: Text
    number: Count
    entry: bytes
    serial: Count
    by: Text
    ended: bool = False


class GetRuns(Message, frozen=True, tag="GetRuns"):
    """Read the cluster lock and the runs, newest last; entries only of the run with the id `run`."""

    traits: ClassVar = Traits(READERS)

    run: Name = ""


class GetAudit(Message, frozen=True, tag="GetAudit"):
    """Read the cluster's audit log."""

    traits: ClassVar = Traits(READERS)


class AuditReply(Message, frozen=True, tag="AuditReply"):
    """The lines that the cluster retains, oldest first. `first` is the number of the first line, `base` the
    digest before it (`model.audit_chain`); 0 and "" below `Feature.AUDIT_CHAIN`."""

    first: int
    base: str
    lines: tuple[AuditLine, ...]


class RunsReply(Message, frozen=True, tag="RunsReply"):
    lock: Lock | None
    runs: tuple[Run, ...]
