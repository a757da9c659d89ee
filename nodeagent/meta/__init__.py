"""The state machine of the meta group: nodes, partition table, schemas, operations, lock, runs, audit.

`commands` defines the entries of the log, `image` the state that they build and that is saved. `state`
applies each entry through the part that it concerns: `nodes`, `groups`, `placement`, `operations`,
`recovery`, `tables`, `runs`, `level`, `audit`. `changes` defines how an operation proceeds from stage to
stage. All nodes replicate this state; the agents read it to drive operations (`scaling`).
"""
