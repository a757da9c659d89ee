"""The state machine of one data group: what its log entries mean.

`commands` are the entries; `state` applies them, `checkpoint` is what is saved of it. `writes` says which
writes count: `slots` tell who may write what, `sessions` make one that is sent again count once. `rows` are
those in no file yet; `closing` turns them into `files`, `compaction` and `turns` many files into one.
`handover` and `adoption` take slots, their sessions and their files from group to group. Applying reads
nothing outside the group's own log and state.
"""
