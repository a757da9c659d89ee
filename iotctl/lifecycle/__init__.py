"""Agents on machines: from `init` and `deploy` to `destroy`, with their hosts, settings and certificates."""
