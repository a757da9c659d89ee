"""Which work this node still accepts, by the free space of its disk.

All replicas of a group fill together, so a node must keep working with a full disk: acknowledged rows become
files, checkpoints are written, the log is purged, leaders are elected; and when there is space again, writes
resume automatically. The shell measures the disk now and then; between measurements accepted rows are counted
against the last one: they take their bytes in the log and, until it is purged, once more as a file.
"""

from nodeagent.model.ids import NodeId
from nodeagent.model.limits import DISK_RESUME_PERCENT, MIB
from nodeagent.model.requests import ErrorReply
from nodeagent.model.space import Room, floor_of, log_keep, refuse_below

GO_ON = "writes and copies resume automatically when there is space: free some, or iotctl plan add-node NODE"


class Space:
    """Before the first measurement the space counts as enough."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._spent = self._spent_before = 0
        """Bytes accepted since the last measurement, and between the last two: some of the latter may
        not have been written yet when the last measurement was taken."""

        self._owed = 0
        """Bytes of rows in memory, which become files."""

        self.free = self.total = 0
        self.room = Room.ENOUGH

    def measured(self, free: int, total: int, owed: int) -> None:
        self.free, self.total, self._owed = free, total, owed
        self._spent_before, self._spent = self._spent, 0
        self._judge()

    def spend(self, nbytes: int) -> None:
        """Count `nbytes` of rows as accepted."""
        self._spent += nbytes
        self._judge()

    def _judge(self) -> None:
        if not self.total:
            return
        spent = self._spent + self._spent_before
        if self.free - spent < self._mark(floor_of(self.total), Room.FULL):
            self.room = Room.FULL
        elif self.free - self._owed - 2 * spent < self._mark(refuse_below(self.total), Room.LOW):
            self.room = Room.LOW
        else:
            self.room = Room.ENOUGH

    def _mark(self, mark: int, room: Room) -> int:
        """The watermark; higher on the way back, so that the room does not flip between two values."""
        return mark * DISK_RESUME_PERCENT // 100 if self.room >= room else mark

    @property
    def is_low(self) -> bool:
        return self.room is not Room.ENOUGH

    @property
    def spare(self) -> int:
        """Maximum size of a file that is made to replace others."""
        return max(0, self.free - self._spent - floor_of(self.total)) // 2 if self.total else 1 << 62

    @property
    def log_keep(self) -> int:
        return log_keep(self.total or 1 << 62)

    @property
    def why(self) -> str:
        kept = refuse_below(self.total)
        return (
            f"the disk of {self._node} has {self.free / MIB:.1f} MiB left; {self._owed / MIB:.1f} MiB of "
            f"rows are not in files yet, and {kept / MIB:.1f} MiB are reserved for rows already accepted"
        )

    def refusal(self, short: list[NodeId], voters: int) -> ErrorReply | None:
        """Why rows are not accepted, None if they are.

        Args:
            short: other voters of the group that report a lack of space; they do no harm while they are
                a minority of the voters.
            voters: number of the group's voters.
        """
        if self.is_low:
            return ErrorReply("overloaded", self.why, GO_ON)
        if len(short) > (voters - 1) // 2:
            what = f"no majority has space for rows: the disk of {', '.join(short)} is nearly full"
            return ErrorReply("overloaded", what, GO_ON)
        return None
