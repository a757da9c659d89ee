"""Small scopes, exhaustively: every order of a few events, with the real code.

What a seed finds by luck is found here for certain, as long as it takes no more events than a scope has.
`explore` goes through all states of a world, `raft_world` is one group of the real `raft`, `handover_world` a
hand-over of slots, `scopes` says how much of them is tried, `fork` copies and names states.
"""
