"""Drives a change of the cluster: which commands are due now.

There is no central conductor. Every node replicates the operation's record in the meta group; the
leader of each affected group looks at it and at its own state and proposes what is due, and reports
what its log committed as evidence. So a stage's commands are sent only by nodes that applied the
entry that entered the stage, and the death of any node, of any leader or of the operator changes
nothing but the time it takes.

`groups` is that look for one data group, `membership` the next single step of a configuration,
`moving` cuts the copies into units. All pure: the host carries the actions out.
"""
