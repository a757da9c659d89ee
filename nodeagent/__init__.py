"""The storage node of an `iotctl` cluster."""

__version__ = "0.2.0"
"""Of both packages: this is the one place that says it."""
