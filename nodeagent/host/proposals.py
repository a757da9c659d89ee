"""Proposals of one group, and the requests that wait until they are applied."""

from collections.abc import Sequence

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model import limits
from nodeagent.model.entries import Config, Entry
from nodeagent.model.errors import InvalidInput, InvariantBroken, NodeAgentError, Refused
from nodeagent.model.ids import GroupId
from nodeagent.model.requests import ErrorReply, Reply
from nodeagent.raft.core import Raft


class Proposals:
    """Every token is answered once: when its entry is applied, or when that can no longer be awaited."""

    def __init__(self, group: GroupId, raft: Raft, effects: EffectQueue) -> None:
        self._group = group
        self._raft = raft
        self._effects = effects
        self._tokens: dict[int, tuple[int, list[int]]] = {}
        """index -> (term, tokens) of proposals not applied yet"""

    def propose(self, commands: list[bytes], token: int | None = None) -> int | None:
        """Propose; the token is answered when the last command is applied.

        Returns:
            The index of the first entry; None if the proposal was refused (and answered).
        """
        try:
            check_entries(commands)
            first = self._raft.propose(commands, self._effects.now)
        except NodeAgentError as error:
            if token is not None:
                self._effects.reply(token, as_reply(error))
            elif isinstance(error, InvalidInput):
                self._effects.note("entry_refused", group=self._group, why=error.what)
            return None
        except Exception as error:
            raise InvariantBroken(f"a proposal in {self._group} stopped half way") from error
        if token is not None:
            last = first + len(commands) - 1
            self._tokens.setdefault(last, (self._raft.term, []))[1].append(token)
        return first

    def force(self, config: Config, term: int, command: bytes, token: int) -> bool:
        """Lead the group without votes (`Raft.force`, also as an observer); log the command with the config.

        Returns:
            Whether it was not refused; a refusal is answered.
        """
        try:
            index = self._raft.force(config, term, self._effects.now, (command,), observer=True)
        except Refused as error:
            self._effects.reply(token, as_reply(error))
            return False
        self._tokens.setdefault(index, (self._raft.term, []))[1].append(token)
        return True

    def answer(self, first: int, entries: list[Entry], replies: Sequence[tuple[int, Reply]]) -> None:
        """Answer the proposals of these entries, which are applied."""
        if not self._tokens:
            return
        for index, reply in replies:
            waiting = self._tokens.pop(index, None)
            if waiting is None:
                continue
            term, tokens = waiting
            if entries[index - first].term != term:
                reply = ErrorReply("not_leader", "another leader's entry took this place in the log")
            for token in tokens:
                self._effects.reply(token, reply)
        last = first + len(entries) - 1
        if self._tokens and min(self._tokens) <= last:  # overwritten by entries that answer nothing
            self._refuse([i for i in self._tokens if i <= last], "not_leader", "the proposal was dropped")

    def refuse_all(self, code: str, what: str) -> None:
        """Answer all that wait with this error."""
        self._refuse(list(self._tokens), code, what)

    def _refuse(self, indexes: list[int], code: str, what: str) -> None:
        for index in indexes:
            for token in self._tokens.pop(index)[1]:
                self._effects.refuse(token, code, what)


def check_entries(commands: list[bytes]) -> None:
    """
    Raises:
        InvalidInput: an entry is too large for a frame to the other members.
    """
    size = max(map(len, commands), default=0)
    if size > limits.ENTRY_BYTES_MAX:
        raise InvalidInput(f"an entry of {size} bytes; the limit is {limits.ENTRY_BYTES_MAX}")


def as_reply(error: NodeAgentError) -> ErrorReply:
    details = {k: v for k, v in error.details.items() if isinstance(v, str | int | bool) or v is None}
    return ErrorReply(error.code, error.what, error.next_step, details)
