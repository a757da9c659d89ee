"""The next actions of a change of the cluster.

There is no central coordinator. Every node replicates the operation's record in the meta group. The leader of
each affected group compares the record with the group's state, proposes the next commands, and sends a
progress report of what the group's log committed. So a stage's commands are sent only by nodes that applied
the entry that began the stage, and the death of a node, of a leader or of the operator only delays the
operation; before the slots open, a timeout may cancel it instead.

`groups` computes the next actions of one data group and `membership` the next single step of a configuration;
`moving` divides the copies into units. All are pure: the host carries the actions out.
"""
