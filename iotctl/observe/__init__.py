"""Reads a cluster: its status, layout, operations and events, and the connection to its agents.

Nothing here changes a cluster, prints, or prompts the operator. Results are structs whose fields are the
published JSON keys.
"""
