"""The files an operator writes: `cluster.yaml`, its loader with exact error places, its edits.

Lowest room of iotctl: it knows files and values, no cluster.
"""
