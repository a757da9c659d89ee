"""The state machine of one data group: it defines what the group's log entries do.

`commands` defines the entries, `state` applies them, `checkpoint` defines what is saved of the state.
`writes` decides which writes take effect: `slots` records which slots the group may write, `sessions` makes a
retried write take effect once. `rows` holds the rows that are in no file yet; `closing` turns them into
`files`; `compaction` and `turns` merge many files into one. `slot_migration` and `adoption` move slots,
with their sessions and files, from group to group. Applying an entry reads nothing but the group's own log
and state.
"""
