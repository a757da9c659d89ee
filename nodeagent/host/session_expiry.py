"""When the leader of a data group ends sessions that nobody uses."""

from nodeagent.data import commands
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.model import limits


class SessionExpiry:
    """
    Args:
        ttl_ms: a session that is unused for longer ends.
    """

    def __init__(self, context: GroupContext, held: HeldState, ttl_ms: int) -> None:
        self._context = context
        self._held = held
        self._ttl_ms = ttl_ms
        self._used: dict[str, int] = {}
        """When this leader last saw a request of a session."""

    def on_used(self, session: str) -> None:
        self._used[session] = self._context.effects.now

    def expire(self) -> None:
        """Leader: end the sessions that have been unused for too long, by log entries."""
        if not self._context.leads:
            self._used.clear()
            return
        now = self._context.effects.now
        self._used = {s: self._used.get(s, now) for s in self._held.state.sessions.known()}
        old = tuple(sorted(s for s, at in self._used.items() if at < now - self._ttl_ms))
        size = limits.EXPIRED_PER_ENTRY_MAX
        parts = [old[i : i + size] for i in range(0, len(old), size)]
        if parts:
            self._context.proposals.propose([commands.encode(commands.ExpireSessions(p)) for p in parts])
