"""Connections: TLS, hello, frames, request and reply. Shared by the client and the agent.

This package implements how two processes communicate, not which node to call or what to answer.
"""
