"""What a cluster says of itself: its status, layout, operations and events; and the way to ask it.

Nothing here changes a cluster, prints or asks a person. Results are structs whose fields are the JSON keys
that others read.
"""
