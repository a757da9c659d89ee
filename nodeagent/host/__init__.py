"""All groups of one node, sans-IO: events in, effects out.

`host` puts the parts together, takes events and deals them out, and `opening` makes it of what a directory
holds. `context` is what the parts share: `desk` collects the effects, `outbox` keeps the order "persist, then
send". `cluster` is the meta group's state as this node knows it, `peers` are the other nodes.

`replica` runs one Raft group, `meta_replica` and `data_replica` what is special to each kind; `replicas` are
those of this node, and `lifecycle` makes and removes them as the meta state says. `handlers` answer requests,
`operations` carry out what is due, `mover` copies slots, `admission` is first start and join.
The runtime and the simulator drive the same `Host`.
"""
