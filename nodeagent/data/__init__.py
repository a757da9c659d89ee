"""The state machine of one data group: what its log entries mean.

`commands` are the entries, `sessions` make a retried write count once, `slots` say who may write
what, `closing` turns memtables into files, `state` applies it all, `checkpoint` saves and restores.
Applying reads nothing outside the group's own log and state.
"""
