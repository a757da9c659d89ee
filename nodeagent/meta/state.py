"""The meta state and how entries change it. Pure: the same log gives the same state on every node.

Each part owns some fields of the image and their rules; this module passes each entry to its part.
"""

import msgspec

from nodeagent.meta import changes, commands
from nodeagent.meta.audit import Audit
from nodeagent.meta.commands import Begin, Command
from nodeagent.meta.groups import Groups
from nodeagent.meta.image import Image
from nodeagent.meta.level import FeatureLevel, check_level
from nodeagent.meta.nodes import Nodes
from nodeagent.meta.operations import Operations
from nodeagent.meta.placement import Placement
from nodeagent.meta.recovery import ForceRecovery
from nodeagent.meta.runs import Runs
from nodeagent.meta.sections import image_of
from nodeagent.meta.tables import Tables
from nodeagent.model import features
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import EntryFailed
from nodeagent.model.features import Levels
from nodeagent.model.image_format import ImageBytes, is_image
from nodeagent.model.requests import Accepted, ErrorReply, Reply


class MetaState:
    """See the module. A part refers only to parts that were made before it, never to the `MetaState`."""

    def __init__(self, image: Image | None = None, levels: Levels = features.SPOKEN) -> None:
        self.image = image or Image()
        self.levels = levels
        """Feature levels that this node supports: it applies no entry of another level."""

        self.audit = Audit(self.image)
        self.runs = Runs(self.image, self.audit)
        self.level = FeatureLevel(self.image, levels, self.runs, self.audit)
        self.tables = Tables(self.image, self.audit)
        self.nodes = Nodes(self.image, self.runs, self.audit)
        self.groups = Groups(self.image)
        self.placement = Placement(self.image)
        self.operations = Operations(
            self.image, self.nodes, self.groups, self.placement, self.runs, self.audit
        )
        self.recovery = ForceRecovery(
            self.image, self.nodes, self.groups, self.placement, self.operations, self.audit
        )

    @property
    def applied(self) -> int:
        return self.image.applied

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    def apply(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        """Apply committed entries from log index `first`; return (log index, reply) of each command.

        Raises:
            EntryFailed: an entry cannot be applied. The state must not be used or saved any more.
        """
        replies: list[tuple[int, Reply]] = []
        for index, entry in enumerate(entries, first):
            try:
                assert index == self.image.applied + 1, (index, self.image.applied)
                self.image.applied = index
                if entry.kind == EntryKind.COMMAND:
                    replies.append((index, self._apply(index, commands.decode(entry.data))))
            except MemoryError:
                raise  # transient: a retry may succeed
            except Exception as error:  # applying is deterministic: the entry would fail at every retry
                raise EntryFailed.of(index, error, replies) from error
        return replies

    def _apply(self, index: int, command: Command) -> Reply:
        match command:
            case commands.Bootstrap():
                return self._bootstrap(index, command)
            case commands.PutSchema():
                return self.tables.put(command)
            case commands.DropTable():
                return self.tables.drop(index, command)
            case commands.SetDraining():
                return self.nodes.drain(index, command)
            case commands.SetZones():
                return self.nodes.set_zones(index, command)
            case commands.RaiseLevel():
                return self.level.raise_to(index, command)
            case commands.ForceRecover():
                return self.recovery.begin(index, command)
            case commands.RecoverMeta():
                return self.recovery.of_meta(index, command)
            case commands.TakeLock():
                return self.runs.take(index, command)
            case commands.DropLock():
                return self.runs.drop(index, command)
            case commands.RecordRun():
                return self.runs.record(index, command)
            case commands.RecoveryCompleted():
                return self.recovery.complete(index, command)
            case Begin():
                return self.operations.begin(index, command)
            case _:
                return self.operations.apply_report(index, command)

    def _bootstrap(self, index: int, b: commands.Bootstrap) -> Reply:
        if self.image.cluster_id:
            what = f"no cluster was created: cluster {self.image.cluster_id} exists already"
            return ErrorReply("refused", what, "iotctl cluster status")
        self.level.begin(b.level)
        self.image.cluster_id = b.cluster_id
        self.image.settings = b.settings
        self.nodes.begin(b.nodes)
        table = self.placement.put(index, b.table)
        for owner in table.ring.names:
            members = table.ring.members(owner, b.settings.replicas)
            self.groups.create(index, owner, members, table.slots_of(owner))
        self.audit.note(b.now, "bootstrap", f"cluster {b.cluster_id} of {len(b.nodes)} nodes")
        return Accepted(index)

    def encode(self) -> bytes:
        """The state as releases without `Feature.IMAGES` store it."""
        return msgspec.msgpack.encode(self.image)

    @classmethod
    def decode(cls, payload: bytes, levels: Levels = features.SPOKEN) -> "MetaState":
        """Decode an image, or the result of `encode`; raise `Refused` if its feature level is not in
        `levels`."""
        if is_image(payload):
            return cls(image_of(ImageBytes(payload), levels), levels)
        image = msgspec.msgpack.decode(payload, type=Image)
        check_level(levels, image.level)
        for op in image.operations:
            changes.drop_reports(op)  # the first release stored all progress reports
        return cls(image, levels)
