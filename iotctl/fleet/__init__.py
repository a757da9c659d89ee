"""Machines, over SSH or this one, and the processes on them; agents are started in the local fleet alone.

Only this room starts or stops agents.
"""
