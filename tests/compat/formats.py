"""Every struct that is stored or sent: later releases must read it, and older nodes read current messages.

A package that stores or sends a new struct adds a line to `FORMATS`; `make golden VERSION=…` freezes all.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from iotctl.fleet.process import PidFile
from iotctl.observe.audit import AuditRow
from iotctl.observe.layout import SlotsView
from iotctl.plan.model import Plan
from iotctl.playbook import model as playbook
from nodeagent.data import commands as data
from nodeagent.data import sessions as data_sessions
from nodeagent.data.checkpoint import Checkpoint
from nodeagent.data.packing import Packed
from nodeagent.host.saved import Saved
from nodeagent.log.identity import LogFile, NodeFile
from nodeagent.log.index import Start
from nodeagent.log.record import Row
from nodeagent.meta import commands as meta
from nodeagent.meta import sections
from nodeagent.meta.image import Image
from nodeagent.model.entries import Base, Config, Entry, HardState
from nodeagent.model.files import FileMeta, StagedUnit
from nodeagent.model.image_format import End, Header
from nodeagent.model.raft_messages import RaftMessage, Routed
from nodeagent.model.requests import GroupStatus, Hello, Reply, Request
from nodeagent.runtime.peer_starts import _Seen
from nodeagent.storage.checkpoint import _Delta
from nodeagent.storage.format import Footer
from nodeagent.storage.snapshot import SnapshotIndex

FORMATS: Mapping[str, Any] = {
    "wire.hello": Hello,
    "wire.raft": RaftMessage,
    "wire.routed": Routed,
    "wire.request": Request,
    "wire.reply": Reply,
    "wire.group-status": GroupStatus,
    "log.row": Row,
    "log.entry": Entry,
    "log.hard-state": HardState,
    "log.base": Base,
    "log.config": Config,
    "log.start": Start,
    "data.command": data.Command,
    "data.checkpoint": Checkpoint,
    "data.sessions": Packed,
    "data.session-table": data_sessions.Table,
    "data.session-table-1": data_sessions.Exported,
    "meta.command": meta.Command,
    "meta.image": Image,
    "image.header": Header,
    "image.end": End,
    "image.cluster": sections.ClusterRecord,
    "image.partition": sections.TableRecord,
    "group.checkpoint": Saved,
    "group.checkpoint-delta": _Delta,
    "group.file": FileMeta,
    "group.footer": Footer,
    "group.snapshot": SnapshotIndex,
    "group.staged-unit": StagedUnit,
    "directory.node": NodeFile,
    "directory.log": LogFile,
    "directory.seen": _Seen,
    "iotctl.audit": AuditRow,
    "iotctl.plan": Plan,
    "iotctl.journal": playbook.Entry,
    "iotctl.status": SlotsView,
    "iotctl.process": PidFile,
}
"""Package and name -> a struct, or a union of structs with different tags."""

AS_JSON = frozenset({"directory.node", "directory.log", "directory.seen"}) | {
    name for name in FORMATS if name.startswith("iotctl.")
}


def encode(name: str, value: Any) -> bytes:
    return msgspec.json.encode(value) if name in AS_JSON else msgspec.msgpack.encode(value)


def decode(name: str, content: bytes) -> Any:
    if name in AS_JSON:
        return msgspec.json.decode(content, type=FORMATS[name])
    return msgspec.msgpack.decode(content, type=FORMATS[name])


def structs_of(name: str) -> Iterator[type[msgspec.Struct]]:
    """The struct of a format, or the members of its union."""
    found = FORMATS[name]
    yield from get_args(found) or (found,)


def label(struct: type[msgspec.Struct]) -> str:
    """The module and name of a struct in the current code."""
    return f"{struct.__module__}.{struct.__qualname__}"
