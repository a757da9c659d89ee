"""Deterministic simulation of whole clusters: the real `host`, `log` and `storage` on a virtual clock.

`sim` holds clock, network and nodes, `workload` writers and readers with their history, `checks` the
invariants, `scenario` one seeded run of everything. `disk` and `format` stand in for the two things that
are not ours: the operating system's files and the TsFile library.
"""
