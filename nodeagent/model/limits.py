"""Every bound has a name and lives here; reaching one is backpressure or a named error."""

KIB = 1024
MIB = 1024 * KIB

FRAME_BYTES_MAX = 64 * MIB
"""A longer frame is refused by its announced length."""

ENTRY_BYTES_MAX = FRAME_BYTES_MAX - 1 * MIB
"""One log entry: it must fit a frame with all that travels around it, or no follower would ever get it."""

WRITE_BYTES_MAX = 8 * MIB
"""Encoded size of one write entry's Arrow batch."""

APPEND_BYTES_MAX = 1 * MIB
"""Entries in one append message stop growing past this (one larger entry still travels alone)."""

APPEND_ENTRIES_MAX = 4096
INFLIGHT_APPENDS_MAX = 64
INFLIGHT_BYTES_MAX = 32 * MIB
"""Per follower: replication pauses there until acknowledgements return."""

UNCOMMITTED_BYTES_MAX = 64 * MIB
"""Per group: past this the leader answers `Overloaded`."""

MEMTABLES_MAX = 4
"""Times `memtable_bytes_max`: with more rows of a group waiting for their files the leader answers
`Overloaded`, so that closing sets the pace of writing."""

PRESSED_REFUSAL_MS = 200
"""The leader waits this long before it answers so: each try brings its rows along, and clients that try again
at once would take the processor from the closes that make room."""

APPLY_BYTES_PER_TURN = 4 * MIB
APPLY_ENTRIES_PER_TURN = 1024
"""What one turn of the loop applies, all groups of a node together; the next turn goes on. Heartbeats leave
and requests are taken between them."""

TURN_MS_MAX = 100
"""A longer turn of the loop is counted and named in a log line."""

COMPACT_KEYS_PER_TURN = 128
"""Pairs of table and time partition a leader looks at for one group in one turn, in search of small files."""

COMPACT_KEYS_MAX = 512
"""After so many in turns that follow each other it stops until the next `compact_every_ms`, if it has found
something to merge."""

EXPIRE_PARTITIONS_PER_LOOK = 512
"""Time partitions a leader looks through for rows past their TTL in one turn."""

READS_PENDING_MAX = 4096
CLOCK_SKEW_MAX_MS = 10_000
"""Two members' wall clocks further apart are a problem, and nothing of their group is deleted by its age."""

REQUESTS_PER_CONNECTION_MAX = 8192

CHUNK_BYTES = 1 * MIB
"""One piece of a pulled file."""

PAGE_BYTES = 8 * MIB
"""Rows of one page of a read, in Arrow form. A reader and a worker hold a few times as much."""

PAGE_PARTITIONS = 256
"""Partitions one page of a read spans."""

PARTITIONS_LOOKED_MAX = 16_384
"""Partitions of a storage group that one page looks at, whether they are asked for or not."""

LIST_FILES_MAX = 2_048
"""Files whose sums one page of a list of partitions adds up."""

MANIFEST_FILES = 2_048
"""With so many files one page of a manifest is full; the slot that reaches it is in it as a whole."""

LIGHT_SCAN_BYTES = 4 * MIB
LIGHT_SCAN_ROWS = 1_000
"""A page that opens files of no more bytes, or wants no more rows, does not wait behind larger ones."""

QUARANTINE_FILES_MAX = 256
"""Damaged files kept per group after repairs. Past it repairs are refused; only a person removes them."""

DAMAGED_KEPT_MAX = 256
"""Files of one replica that were found damaged and are remembered until they are replaced."""

REPAIR_SOURCES_MAX = 16
"""Copies named in one repair."""

COMPACT_BYTES_MAX = 64 * MIB
"""Bytes of the files one compaction reads: what a worker holds at a time, and how large files grow by it."""

COMPACT_ROW_BYTES = 24
"""A row counts for at least so many of `COMPACT_BYTES_MAX`: one compaction reads 2.8 million rows at most. A
worker takes some 160 bytes of memory for a row of two columns, whatever the file took."""

COMPACT_INPUTS_MAX = 256
"""Files one compaction reads."""

COMPACTIONS_MAX = 32
"""Compactions of one group under way on its leader; no more are proposed before some of them end."""

SMALL_FILES_MAX = 32
"""Files of one table and time partition that are too small for `COMPACT_BYTES_MAX` and stay apart all the
same once compaction has caught up."""

DELETES_KEPT_MAX = 64
"""Range deletes that mask files of one table and time partition; with more they are rewritten at once."""

TTL_MS_MAX = 1 << 50
"""The longest TTL of a table, some 35 000 years."""

EXPIRY_STEPS = 32
"""Rows outlive their table's TTL by at most one part in so many, and the time between two looks."""

EXPIRIES_PER_LOOK_MAX = 256
"""Cut-offs one leader logs for a group at a time."""

STOPPED_LOG_BYTES_MAX = 256 * MIB
"""Log that a replica keeps past an entry it cannot apply; then it takes no more, so that it fills neither
memory nor disk of the groups beside it."""

SESSION_WINDOW = 1024
"""Sequences a session may have outstanding per slot."""

SESSIONS_PER_GROUP_MAX = 65536

EXPIRED_PER_ENTRY_MAX = 1024
"""Sessions one log entry ends: what applying it costs follows their number."""

SESSIONS_PART_BYTES = 1 * MIB
"""One part of a table of sessions on its way from the sealed group to the gaining one."""

TABLES_MAX = 10_000
COLUMNS_MAX = 4096

NAME_BYTES_MAX = 255
"""UTF-8 bytes of the name of a storage group, a table or a column."""

TAG_BYTES_MAX = 64 * KIB
"""UTF-8 bytes of one tag value: every file repeats it in its index."""

TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""Times of rows that are written, 0001-01-01 to 9999-12-31: every calendar can show them, and microseconds
taken for milliseconds are noticed."""

TEXT_CHARS_MAX = 4096
"""What a person or a program says in a request, to be shown to people later."""

NODES_MAX = 2000
SLOTS_MAX = 1_000_000

SWAP_TAKERS_MAX = 16
"""Groups a planner looks at for a swap of slots, the emptiest first."""

WRITE_RATES_MAX = 65_536
"""Slots of one group whose write rate is remembered; with more, the slowest half is forgotten."""

RUNS_KEPT = 32
"""Records of runs in the meta group."""

RUN_BYTES_MAX = 256 * 1024
"""All entries of one run together: some hundred steps."""

LOCK_TTL_MS_MAX = 3_600_000

EVENTS_KEPT = 1024
"""Notable notes an agent remembers since its start."""

EVENTS_REPLY_MAX = 4096
"""Events of one kind (own, audit) in one reply."""

DISK_LOW_BYTES = 5 * 10**9
"""With less left an operator should know."""

DISK_REFUSE_SHARE = 12
"""With less than one part in so many of its disk free, but at most `DISK_REFUSE_BYTES_MAX`, a node takes no
rows and pulls no files: what it accepted must still become files and checkpoints."""

DISK_REFUSE_BYTES_MAX = 1024 * MIB

DISK_FLOOR_SHARE = 32
"""With less than this free, but at most `DISK_FLOOR_BYTES_MAX`, a follower takes small entries only."""

DISK_FLOOR_BYTES_MAX = 256 * MIB

DISK_RESUME_PERCENT = 125
"""Of a watermark must be free before what it stopped goes on."""

SMALL_APPEND_BYTES = 16 * KIB
"""Entries of one append that a follower takes whatever room it has."""

GROUP_SHARE = 16
"""Rows of one group in memory, and with them its log, are closed at one part in so many of the disk."""

SEGMENT_SHARE = 16
"""A segment of the log is at most one part in so many of the disk."""

LOG_KEEP_SHARE = 64
LOG_KEEP_BYTES_MAX = 64 * MIB
"""Log of one group that its leader keeps for followers that lag."""

LOG_KEEP_MS_MAX = 600_000
"""A leader keeps log no longer for a follower that makes no headway; it comes back by a snapshot."""

RESERVE_SHARE = 32
RESERVE_BYTES_MAX = 8 * MIB
"""Laid by beside the log, and given back to it when the disk is full."""

ZERO_STEP_SHARE = 256
ZERO_STEP_BYTES_MAX = 4 * MIB
"""The log is filled with zeros so far ahead of writing."""

SUSPECTS_CHECKED_MAX = 64
"""Files that a node is asked to hash, as one pull found its copies of them to be damaged."""
