"""The state machine of the meta group: nodes, partition table, schemas, operations, lock, runs, audit.

`commands` are the edit log's entries, `state` what they build, `changes` how an operation goes from
stage to stage, `image` its checkpoint. All nodes replicate it; the agents drive operations by
looking at it (`scaling`).
"""
