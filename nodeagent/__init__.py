"""The storage node of an `iotctl` cluster."""

__version__ = "0.1.0"
