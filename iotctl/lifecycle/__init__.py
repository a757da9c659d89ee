"""Agents on machines from `init` and `deploy` to `destroy`: hosts, settings and certificates."""
