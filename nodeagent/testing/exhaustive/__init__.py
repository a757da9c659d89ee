"""Exhaustive exploration of small scopes: every order of a few events, with the real code.

A bug that a seed finds by chance is certainly found here if it needs no more events than a scope has.
`explore` visits all states of a world, `raft_world` is one group of the real `raft`, `migration_world` is a
slot migration, `scopes` defines what is explored, and `fork` copies and digests states.
"""
