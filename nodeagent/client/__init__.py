"""The client of a cluster: routes, writes, reads, changes. iotctl and Spark tasks use it.

`cluster.Cluster` is the asynchronous interface, `blocking.BlockingCluster` the same for synchronous code.
This package decides which node to ask, how often, and what follows from an answer or its absence. It leaves
sockets to `transport`, hashing to `partition` and rows to `table`.

Invariants:
    a write keeps its (session, slot, sequence) on every attempt, so it is applied at most once;
    a definite error is raised only if no attempt can have taken effect;
    a read covers every requested slot or fails: an empty result never hides a missing slot;
    every wait for an answer ends by a deadline; the wait for an operation has one only if the caller sets it.
"""
