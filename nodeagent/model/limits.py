"""Every bound has a name in this module; reaching a bound causes backpressure or a named error."""

KIB = 1024
MIB = 1024 * KIB

FRAME_BYTES_MAX = 64 * MIB
"""Bytes of one frame; a longer frame is refused by its announced length."""

ENTRY_BYTES_MAX = FRAME_BYTES_MAX - 1 * MIB
"""Bytes of one log entry: with its envelope it must fit a frame, or no follower could ever receive it."""

WRITE_BYTES_MAX = 8 * MIB
"""Encoded size of one write entry's Arrow batch."""

APPEND_BYTES_MAX = 1 * MIB
"""Bytes of entries in one append message; a single larger entry is sent alone."""

APPEND_ENTRIES_MAX = 4096
INFLIGHT_APPENDS_MAX = 64
INFLIGHT_BYTES_MAX = 32 * MIB
"""Appends and bytes in flight to one follower; past either, replication to it waits for acknowledgements."""

DIRECT_LEARNERS_MAX = 16
"""Past this number of learners, a leader sends them entries only once these are committed, and each only
`PACED_HEARTBEATS` heartbeats per election timeout, to some learners at a time."""

PACED_HEARTBEATS = 5

UNCOMMITTED_BYTES_MAX = 64 * MIB
"""Bytes of uncommitted entries of one group; past this the leader answers `Overloaded`."""

MEMTABLES_MAX = 4
"""Multiples of `memtable_bytes_max`: if more rows of a group wait for their files, the leader answers
`Overloaded`, so that closing sets the pace of writing."""

OVERLOAD_REPLY_DELAY_MS = 200
"""The leader delays the answer at `MEMTABLES_MAX` by this time: each attempt carries its rows, and clients
that retry at once would take the processor from the closes that free memory."""

APPLY_BYTES_PER_TURN = 4 * MIB
APPLY_ENTRIES_PER_TURN = 1024
"""The most that one turn of the event loop applies, over all groups of a node; the next turn continues.
Between turns the node sends heartbeats and accepts requests."""

TURN_MS_MAX = 100
"""A longer turn of the event loop is counted and logged."""

COMPACT_KEYS_PER_TURN = 128
"""Pairs of table and time partition in which a leader looks for small files of one group in one turn."""

COMPACT_KEYS_MAX = 512
"""Pairs of table and time partition that one pass of several turns checks at most, if it found files to merge
among them; the next pass begins after `compact_every_ms`."""

EXPIRE_PARTITIONS_PER_TURN = 512
"""Time partitions in which a leader looks for rows past their TTL in one turn."""

READS_PENDING_MAX = 4096
"""Reads of one group that wait for a read index."""

CLOCK_SKEW_MAX_MS = 10_000
"""If the wall clocks of two voters of a group differ by more, the group deletes nothing by age; status
reports the voters that differ by more from the group's median."""

REQUESTS_PER_CONNECTION_MAX = 8192

CHUNK_BYTES = 1 * MIB
"""Bytes of one chunk of a pulled file."""

PAGE_BYTES = 8 * MIB
"""Bytes of rows of one page of a read, in Arrow form. A reader and a worker hold a few times as much."""

PAGE_PARTITIONS = 256
"""Partitions that one page of a read spans."""

PARTITIONS_LOOKED_MAX = 16_384
"""Partitions of a storage group that one page examines, whether the read selects them or not."""

LIST_FILES_MAX = 2_048
"""Files whose sums one page of a list of partitions adds up."""

MANIFEST_FILES = 2_048
"""Files that fill one page of a manifest; the slot that reaches this number is listed as a whole."""

LIGHT_SCAN_BYTES = 4 * MIB
LIGHT_SCAN_ROWS = 1_000
"""A page does not wait behind larger pages if at most this many bytes of its files are in the requested
times, or if the `limit` of its read is at most this many rows."""

QUARANTINE_FILES_MAX = 256
"""Damaged files retained per group after repairs; past it repairs are refused. Only an operator removes
them."""

DAMAGED_KEPT_MAX = 256
"""Damaged files of one replica that are remembered until they are replaced."""

REPAIR_SOURCES_MAX = 16
"""Copies named in one repair."""

COMPACT_BYTES_MAX = 64 * MIB
"""Bytes of the files that one compaction reads. It bounds the memory of a worker and the size of outputs."""

COMPACT_ROW_BYTES = 24
"""The least that a row takes of `COMPACT_BYTES_MAX`: one compaction reads at most 2.8 million rows.
A worker needs some 160 bytes of memory for a row of two columns, whatever its size in the file."""

COMPACT_INPUTS_MAX = 256
"""Files that one compaction reads."""

COMPACTIONS_MAX = 32
"""Compactions of one group in progress on its leader; no more are proposed before some of them end."""

SMALL_FILES_MAX = 32
"""Files of one table and time partition that stay apart once compaction has caught up, although they are
smaller than `COMPACT_BYTES_MAX`."""

DELETES_KEPT_MAX = 64
"""Range deletes that mask files of one table and time partition; with more, the files are rewritten at
once."""

TTL_MS_MAX = 1 << 50
"""The longest TTL of a table (ms), some 35 000 years."""

EXPIRY_STEPS = 32
"""Rows outlive their table's TTL by at most TTL / `EXPIRY_STEPS` plus `expire_every_ms`, plus any time
during which expiry waits: while clocks differ or are unknown, or the rows' slot is in a change."""

EXPIRIES_PER_TURN_MAX = 256
"""Cut-offs that a leader logs for one group at a time."""

STOPPED_LOG_BYTES_MAX = 256 * MIB
"""Bytes of log that a replica retains past an entry that it cannot apply; then it accepts no more entries, so
that it leaves memory and disk to the other groups."""

SESSION_WINDOW = 1024
"""Sequences a session may have outstanding per slot."""

SESSIONS_PER_GROUP_MAX = 65536

EXPIRED_PER_ENTRY_MAX = 1024
"""Sessions that one log entry ends: the cost of applying it grows with their number."""

SESSIONS_PART_BYTES = 1 * MIB
"""Bytes of one part of a session table that a gaining group fetches from the losing group."""

TABLES_MAX = 10_000
COLUMNS_MAX = 4096

NAME_BYTES_MAX = 255
"""UTF-8 bytes of the name of a storage group, a table or a column."""

TAG_BYTES_MAX = 64 * KIB
"""UTF-8 bytes of one tag value: every file repeats it in its index."""

TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""Times of rows that are written (ms), 0001-01-01 to 9999-12-31: every calendar can show them, and
microseconds given as milliseconds are refused."""

TEXT_CHARS_MAX = 4096
"""Characters of a text in a request that is later shown to operators."""

NODES_MAX = 2000
SLOTS_MAX = 1_000_000

SWAP_TAKERS_MAX = 16
"""Groups that a planner considers for a swap of slots, the emptiest first."""

WRITE_RATES_MAX = 65_536
"""Slots of one group whose write rate is remembered; with more, the slower half is forgotten."""

RUNS_KEPT = 32
"""Unfinished playbook runs that the meta group records, and ended ones that it retains."""

RUN_BYTES_MAX = 256 * 1024
"""Bytes of all entries of one run but the last: some hundred steps."""

RUN_END_BYTES = 1024
"""Bytes by which the last entry of a run may exceed `RUN_BYTES_MAX`."""

LOCK_TTL_MS_MAX = 3_600_000

EVENTS_KEPT = 1024
"""Notable events since its start that an agent remembers."""

EVENTS_REPLY_MAX = 4096
"""Events of one kind (own, audit) in one reply."""

DISK_LOW_BYTES = 5 * 10**9
"""With fewer bytes free, status warns the operator."""

DISK_REFUSE_SHARE = 12
"""With less than 1 / `DISK_REFUSE_SHARE` of its disk free (and less than `DISK_REFUSE_BYTES_MAX`), a node
accepts no rows and pulls no files: what it has accepted must still become files and checkpoints."""

DISK_REFUSE_BYTES_MAX = 1024 * MIB

DISK_FLOOR_SHARE = 32
"""With less than 1 / `DISK_FLOOR_SHARE` of its disk free (and less than `DISK_FLOOR_BYTES_MAX`), a follower
accepts small entries only."""

DISK_FLOOR_BYTES_MAX = 256 * MIB

DISK_RESUME_PERCENT = 125
"""Percent of a watermark that must be free before the work that it stopped resumes."""

SMALL_APPEND_BYTES = 16 * KIB
"""Bytes of entries in one append that a follower accepts however little room it has."""

GROUP_SHARE = 16
"""Rows of one group in memory are closed once they take 1 / `GROUP_SHARE` of the disk, or the group's log
takes twice as much (`space.fitted`)."""

SEGMENT_SHARE = 16
"""A segment of the log takes at most 1 / `SEGMENT_SHARE` of the disk."""

LOG_KEEP_SHARE = 64
LOG_KEEP_BYTES_MAX = 64 * MIB
"""Bytes of log of one group that its leader retains for followers that lag: 1 / `LOG_KEEP_SHARE` of the disk,
at most `LOG_KEEP_BYTES_MAX`."""

LOG_ENTRIES_MAX = 1 << 18
META_ENTRIES_MAX = 50_000
"""Entries of log that the leader of a data group, or of the meta group, retains for followers that lag: each
takes some 500 bytes of memory in addition to its content."""

LOG_KEEP_MS_MAX = 600_000
"""Time for which a leader retains log for a follower without progress; that follower then needs a
snapshot."""

RESERVE_SHARE = 32
RESERVE_BYTES_MAX = 8 * MIB
"""Bytes reserved in a file beside the log, and given to the log when the disk is full: 1 / `RESERVE_SHARE` of
the disk, at most `RESERVE_BYTES_MAX`."""

ZERO_STEP_SHARE = 256
ZERO_STEP_BYTES_MAX = 4 * MIB
"""Bytes by which the log is filled with zeros ahead of writing: 1 / `ZERO_STEP_SHARE` of the disk, at most
`ZERO_STEP_BYTES_MAX`."""

SUSPECTS_CHECKED_MAX = 64
"""Files that one request asks a node to hash, because what was pulled of them differs from the manifest."""
