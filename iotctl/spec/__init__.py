"""Reads and edits the files that an operator writes, `cluster.yaml` and playbooks; errors have exact places.

The lowest package of iotctl: it handles files and values, and calls no cluster.
"""
