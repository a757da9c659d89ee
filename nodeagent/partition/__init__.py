"""The placement of rows: slots, the ring, the partition table, and how a table changes. Pure.

Bottom up: `hash` and `rows` (row -> time partition and shard -> slot), `ranges`, `ring` (order of nodes and
members of groups), `table` (slot -> group owner), `balance` (which slots move, by number), `loads` (the same
by bytes or write rate), `change` (two tables and everything that follows from them), `cost` (bytes that cross
the network) and `planner` (add, remove, replace nodes; move slots).

No module uses a clock, a disk or a peer; equal arguments give equal results on every node.
"""
