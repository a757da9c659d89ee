"""Deterministic simulation of whole clusters: the real `host`, `log` and `storage` on a virtual clock.

`sim` holds clock and network, `machine` a disk with the process on it, `durable` what its log must hold.
`node` is a machine with a whole `Host`, `groups` one with Raft groups alone. `raft_checks` and `checks` are
the invariants; `scenario` is one seeded run of a cluster, with the writers and readers of `workload`, `swarm`
one of groups under many kinds of faults. `mutants` are bugs that these must find. `disk` and
`storage.arrow_format` stand in for the two things that are not ours: the operating system's files and the
TsFile library.
"""
