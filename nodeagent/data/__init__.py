"""The state machine of one data group: what its log entries mean.

<<<<<<< HEAD
`commands` are the entries, `sessions` make a retried write count once, `slots` say who may write
what, `closing` turns memtables into files, `state` applies it all, `checkpoint` saves and restores.
Applying reads nothing outside the group's own log and state.
=======
`commands` are the entries; `state` applies them, `checkpoint` is what is saved of it. `writes` says which
writes count: `slots` tell who may write what, `sessions` make one that is sent again count once. `rows` are
those in no file yet; `closing` turns them into `files`, `compaction` and `turns` many files into one.
`handover` and `adoption` take slots, their sessions and their files from group to group.
Applying reads nothing outside the group's own log and state.
>>>>>>> 2b64165 (Move what is saved of a data group to a module of its own)
"""
