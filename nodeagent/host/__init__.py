"""All groups of one node, sans-IO: events in, effects out.

`host` takes events and deals them out, `desk` collects the effects, `outbox` keeps the order "persist,
then send", `replica` runs one Raft group, `meta_replica` and `data_replica` what is special to each
kind, `handlers` answer requests, `mover` copies slots, `admission` is first start and join.
The runtime and the simulator drive the same `Host`.
"""
