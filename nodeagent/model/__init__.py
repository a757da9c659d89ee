"""Values every room shares: ids, entries, commands, messages, errors, settings, limits.

Nothing here acts. A type lives here when two rooms exchange it.
"""
