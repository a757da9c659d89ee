"""All groups of one node, sans-IO: events in, effects out.

`host` assembles the parts and passes events to them; `opening` creates a host from a data directory.
`context` is what the parts share: `effects` is the effect queue, and `outbox` keeps the order "persist, then
send". `cluster` is the meta group's state as this node knows it; `peers` are the other nodes.

`replica` runs one Raft group; `meta_replica` and `data_replica` add what is special to each kind. The parts
of a replica share a `group_context`: `proposals`, `pending_reads`, `checkpoints`, `log_start`,
`snapshot_offers` and `installs`. Its `state_machine` is what the entries mean. A data replica also has
`state_jobs`, `file_reads`, `removals`, `closer` and `session_expiry`. `replicas` are those of this node, and
`lifecycle` creates and removes them as the meta state says.

`handlers` answer requests, `operations` carries out the next actions of the open operation, `slot_copier`
copies slots, and `admission` is the first start and the join. The runtime and the simulator drive the same
`Host`.
"""
