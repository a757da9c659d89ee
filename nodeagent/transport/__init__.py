"""Connections: TLS, hello, frames, request and reply. Shared by the client and the agent.

Lives here: how two processes talk. Not here: whom to call and what to answer.
"""
