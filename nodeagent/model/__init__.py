"""Values that several packages exchange: ids, entries, messages, requests, errors, settings, limits.

This package has no behaviour beyond its values. A type belongs here if two packages exchange it.
"""
