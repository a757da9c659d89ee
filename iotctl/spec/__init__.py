"""The files that an operator writes: `cluster.yaml` and playbooks, read with exact error places, and edited.

The lowest package of iotctl: it handles files and values, and calls no cluster.
"""
