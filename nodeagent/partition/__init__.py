"""Where rows live: slots, the ring, the partition table, and how a table changes. Pure.

Bottom up: `hash` and `rows` (row -> time partition and shard -> slot), `ranges`, `ring` (node order and
group members), `table` (slot -> group header), `balance` (which slots move, by number), `loads` (the same by
bytes or write rate), `change` (two tables and
everything that follows from them), `cost` (bytes that cross the network) and `planner` (add, remove, move).

Nothing here knows a clock, a disk or a peer; equal arguments give equal results on every node.
"""
