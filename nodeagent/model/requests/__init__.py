"""Requests between clients and nodes, and between nodes, with their replies.

Every request gets exactly one reply: its own kind, or `ErrorReply`. A number in the frame pairs the two; the
sender's identity is that of its certificate. Times are in milliseconds, sizes in bytes.

Tags and field names are the format that is sent: they stay when a class is renamed (`tests/compat`). A field
with a default was added later, or is optional: "earlier releases" are those before 0.2.0.
"""

from nodeagent.model.requests.files import (
    CheckFiles as CheckFiles,
)
from nodeagent.model.requests.files import (
    Chunk as Chunk,
)
from nodeagent.model.requests.files import (
    CloseAll as CloseAll,
)
from nodeagent.model.requests.files import (
    DamagedFile as DamagedFile,
)
from nodeagent.model.requests.files import (
    ExportFiles as ExportFiles,
)
from nodeagent.model.requests.files import (
    FetchChunk as FetchChunk,
)
from nodeagent.model.requests.files import (
    FileRepaired as FileRepaired,
)
from nodeagent.model.requests.files import (
    FilesChecked as FilesChecked,
)
from nodeagent.model.requests.files import (
    GetManifest as GetManifest,
)
from nodeagent.model.requests.files import (
    GetSealedSessions as GetSealedSessions,
)
from nodeagent.model.requests.files import (
    ManifestReply as ManifestReply,
)
from nodeagent.model.requests.files import (
    OpenSource as OpenSource,
)
from nodeagent.model.requests.files import (
    PullUnit as PullUnit,
)
from nodeagent.model.requests.files import (
    RepairFile as RepairFile,
)
from nodeagent.model.requests.files import (
    SealedSessions as SealedSessions,
)
from nodeagent.model.requests.files import (
    SourceOpened as SourceOpened,
)
from nodeagent.model.requests.files import (
    UnitPulled as UnitPulled,
)
from nodeagent.model.requests.meta import (
    BackUpMeta as BackUpMeta,
)
from nodeagent.model.requests.meta import (
    Drain as Drain,
)
from nodeagent.model.requests.meta import (
    DropTable as DropTable,
)
from nodeagent.model.requests.meta import (
    ForceRecover as ForceRecover,
)
from nodeagent.model.requests.meta import (
    Forward as Forward,
)
from nodeagent.model.requests.meta import (
    GetMeta as GetMeta,
)
from nodeagent.model.requests.meta import (
    GroupRecord as GroupRecord,
)
from nodeagent.model.requests.meta import (
    MetaView as MetaView,
)
from nodeagent.model.requests.meta import (
    NodeRecord as NodeRecord,
)
from nodeagent.model.requests.meta import (
    OfferState as OfferState,
)
from nodeagent.model.requests.meta import (
    PutSchema as PutSchema,
)
from nodeagent.model.requests.meta import (
    RaiseLevel as RaiseLevel,
)
from nodeagent.model.requests.meta import (
    RecoverMeta as RecoverMeta,
)
from nodeagent.model.requests.meta import (
    Recovery as Recovery,
)
from nodeagent.model.requests.meta import (
    RecoveryLeader as RecoveryLeader,
)
from nodeagent.model.requests.meta import (
    SchemaInForce as SchemaInForce,
)
from nodeagent.model.requests.meta import (
    SetZones as SetZones,
)
from nodeagent.model.requests.meta import (
    StateOffered as StateOffered,
)
from nodeagent.model.requests.node import (
    Accepted as Accepted,
)
from nodeagent.model.requests.node import (
    CheckStatus as CheckStatus,
)
from nodeagent.model.requests.node import (
    ErrorReply as ErrorReply,
)
from nodeagent.model.requests.node import (
    EventsReply as EventsReply,
)
from nodeagent.model.requests.node import (
    GetEvents as GetEvents,
)
from nodeagent.model.requests.node import (
    GetStatus as GetStatus,
)
from nodeagent.model.requests.node import (
    GroupStatus as GroupStatus,
)
from nodeagent.model.requests.node import (
    Hello as Hello,
)
from nodeagent.model.requests.node import (
    LogPin as LogPin,
)
from nodeagent.model.requests.node import (
    MetaStatus as MetaStatus,
)
from nodeagent.model.requests.node import (
    NodeEvent as NodeEvent,
)
from nodeagent.model.requests.node import (
    NodeStatus as NodeStatus,
)
from nodeagent.model.requests.node import (
    SetFailpoints as SetFailpoints,
)
from nodeagent.model.requests.node import (
    StatusChecked as StatusChecked,
)
from nodeagent.model.requests.operations import (
    AuditReply as AuditReply,
)
from nodeagent.model.requests.operations import (
    BeginChange as BeginChange,
)
from nodeagent.model.requests.operations import (
    ControlOperation as ControlOperation,
)
from nodeagent.model.requests.operations import (
    DropLock as DropLock,
)
from nodeagent.model.requests.operations import (
    GetAudit as GetAudit,
)
from nodeagent.model.requests.operations import (
    GetOperation as GetOperation,
)
from nodeagent.model.requests.operations import (
    GetRuns as GetRuns,
)
from nodeagent.model.requests.operations import (
    LockReply as LockReply,
)
from nodeagent.model.requests.operations import (
    OperationReply as OperationReply,
)
from nodeagent.model.requests.operations import (
    RecordRun as RecordRun,
)
from nodeagent.model.requests.operations import (
    RunsReply as RunsReply,
)
from nodeagent.model.requests.operations import (
    TakeLock as TakeLock,
)
from nodeagent.model.requests.rows import (
    DeleteRows as DeleteRows,
)
from nodeagent.model.requests.rows import (
    GetWriteRates as GetWriteRates,
)
from nodeagent.model.requests.rows import (
    ListPartitions as ListPartitions,
)
from nodeagent.model.requests.rows import (
    OpenSession as OpenSession,
)
from nodeagent.model.requests.rows import (
    PartitionInfo as PartitionInfo,
)
from nodeagent.model.requests.rows import (
    PartitionsListed as PartitionsListed,
)
from nodeagent.model.requests.rows import (
    PendingSlots as PendingSlots,
)
from nodeagent.model.requests.rows import (
    ProbeGroup as ProbeGroup,
)
from nodeagent.model.requests.rows import (
    Propose as Propose,
)
from nodeagent.model.requests.rows import (
    RowsScanned as RowsScanned,
)
from nodeagent.model.requests.rows import (
    ScanRows as ScanRows,
)
from nodeagent.model.requests.rows import (
    SessionOpened as SessionOpened,
)
from nodeagent.model.requests.rows import (
    Write as Write,
)
from nodeagent.model.requests.rows import (
    WriteRatesReply as WriteRatesReply,
)
from nodeagent.model.requests.rows import (
    Written as Written,
)

Request = (
    CheckStatus
    | GetStatus
    | GetEvents
    | GetMeta
    | OfferState
    | BackUpMeta
    | PutSchema
    | BeginChange
    | ControlOperation
    | SetFailpoints
    | Drain
    | SetZones
    | RaiseLevel
    | RecoverMeta
    | ForceRecover
    | TakeLock
    | DropLock
    | RecordRun
    | GetAudit
    | GetRuns
    | GetOperation
    | Forward
    | ProbeGroup
    | OpenSession
    | Write
    | DeleteRows
    | Propose
    | ScanRows
    | ListPartitions
    | GetManifest
    | GetWriteRates
    | CloseAll
    | CheckFiles
    | RepairFile
    | ExportFiles
    | OpenSource
    | GetSealedSessions
    | FetchChunk
    | PullUnit
    | DropTable
)
OfShell = GetStatus | GetEvents | FetchChunk
"""Requests that the agent's shell answers itself: they change nothing and need what only the shell knows."""

Reply = (
    StatusChecked
    | NodeStatus
    | EventsReply
    | MetaView
    | StateOffered
    | SchemaInForce
    | OperationReply
    | LockReply
    | AuditReply
    | RunsReply
    | Accepted
    | SessionOpened
    | Written
    | RowsScanned
    | PartitionsListed
    | ManifestReply
    | WriteRatesReply
    | FilesChecked
    | FileRepaired
    | SourceOpened
    | SealedSessions
    | Chunk
    | UnitPulled
    | ErrorReply
)
