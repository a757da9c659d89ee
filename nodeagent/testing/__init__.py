"""Deterministic simulation of whole clusters: the real `host`, `log` and `storage` on a virtual clock.

`sim` is the clock and the network, `machine` is a disk and the process that runs on it, and `durable` models
what the machine's log must contain. `node` is a machine that runs a whole `Host`; `groups` is a machine that
runs Raft groups only. `raft_checks` and `checks` check the invariants. `scenario` is one seeded run of a
cluster with clients that write and read; `swarm` runs Raft groups under many kinds of faults. `mutants` are
planted bugs that these runs must find. `disk` and `storage.arrow_format` replace the two external
dependencies: the operating system's files and the TsFile library.
"""
