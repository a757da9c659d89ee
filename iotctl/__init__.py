"""Operate, scale and migrate clusters of time-series storage nodes."""

from nodeagent import __version__ as __version__
