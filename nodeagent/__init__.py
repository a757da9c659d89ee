"""The storage node of an `iotctl` cluster."""

__version__ = "0.2.0"
"""The version of both packages, defined only here."""
