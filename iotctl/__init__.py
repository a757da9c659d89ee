"""Operate, scale and migrate clusters of time-series storage nodes."""

__version__ = "0.1.0"
