"""Machines and the processes on them: today the local fleet; SSH hosts get the same verbs.

Only this room starts or stops agents.
"""
