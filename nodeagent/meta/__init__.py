"""The state machine of the meta group: nodes, partition table, schemas, operations, lock, runs, audit.

`commands` are the edit log's entries, `image` is what they build and what is saved of it; `state` applies
them, each by the part that it concerns: `nodes`, `groups`, `placement`, `operations`, `recovery`, `tables`,
`runs`, `level`, `audit`. `changes` says how an operation goes from stage to stage. All nodes replicate it;
the agents drive operations by looking at it (`scaling`).
"""
