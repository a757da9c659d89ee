"""Reads a cluster: its status, layout, operations and events. It also makes the connection to the agents.

Nothing here prints or prompts the operator. Only `operations.control`, and callers with their `Cluster`,
change a cluster; `facts.plan_facts` makes its groups write their rows in memory to files.
Results are structs whose fields are the published JSON keys.
"""
