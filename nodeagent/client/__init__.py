"""The client of a cluster: routes, writes, reads, changes. What iotctl and Spark tasks use.

`cluster.Cluster` is the asynchronous front, `blocking.BlockingCluster` the same for plain code. Lives
here: whom to ask, how often, and what an answer (or none) allows to conclude. Not here: sockets
(`transport`), hashing (`partition`), rows (`table`).

Invariants:
    a write keeps its (session, slot, sequence) on every attempt, so it counts at most once;
    a definite error is raised only when no attempt can have had an effect;
    a read covers every slot it was asked for, or is an error: an empty result is never a missing slot;
    every wait ends by a deadline.
"""
