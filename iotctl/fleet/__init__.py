"""Machines, over SSH or the local machine, and the agent processes on them.

Only this package starts and stops agents.
"""
