"""Bugs in the client: what it concludes from answers, and from none; which group it asks; how it puts pages together."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a write that may have happened is told as one that did not",
        "client/attempt.py",
        "        if self._lost is not None:\n            return OutcomeUnknown(",
        "        if self._lost is None:\n            return OutcomeUnknown(",
    ),
    Mutant(
        "a write that may have happened is sent in a new session",
        "client/attempt.py",
        "        if self._lost is not None:\n            raise self._ended(error) from error",
        "        if False:\n            raise self._ended(error) from error",
    ),
    Mutant(
        "every attempt of a write has another number",
        "client/attempt.py",
        "        if self._ticket is None:",
        "        if self._group:",
    ),
    Mutant(
        "an attempt without an answer is forgotten",
        "client/attempt.py",
        "        except OutcomeUnknown as error:\n            self._lost = error\n",
        "        except OutcomeUnknown as error:\n",
    ),
    Mutant(
        "an error nobody knows is taken for a refusal",
        "client/attempt.py",
        "                self._lost = error  # a failure",
        "                pass  # a failure",
    ),
    Mutant(
        "writes without an answer count as settled",
        "client/sessions.py",
        "settled = min(self.open, default=self.next) - 1",
        "settled = self.next - 1",
    ),
    Mutant(
        "more writes are under way than the group remembers",
        "client/sessions.py",
        "        while state.next > state.settled + WINDOW:",
        "        while state.next > state.settled + 4 * WINDOW:",
    ),
    Mutant(
        "an import that failed half way says that nothing was written",
        "client/writer.py",
        "        if not self.unknown and not self.entries:",
        "        if not self.unknown:",
    ),
    Mutant(
        "a bulk writer forgets its failures",
        "client/writer.py",
        "            self._failure = self._failure or error",
        "            pass",
    ),
    Mutant(
        "a change without an answer is asked for again",
        "client/calls.py",
        "                if isinstance(request, _ONCE):",
        "                if isinstance(request, MetaView):",
    ),
    Mutant(
        "a refusal after a change without an answer is believed",
        "client/calls.py",
        "                if lost is not None and not isinstance(error, InvalidInput):",
        "                if lost is not None and isinstance(error, InvalidInput):",
    ),
    Mutant(
        "an older view takes the place of a newer one",
        "client/calls.py",
        "        if old is not None and old.view.applied > view.applied:",
        "        if old is not None and old.view.applied == view.applied:",
    ),
    Mutant(
        "the view of another cluster is taken",
        "client/calls.py",
        "        if old is not None and old.view.cluster_id and old.view.cluster_id != view.cluster_id:",
        "        if old is not None and not old.view.cluster_id and view.cluster_id is None:",
    ),
    Mutant(
        "an older schema takes the place of a newer one",
        "client/calls.py",
        "        if known is None or schema.version >= known.version:",
        "        if known is None or schema.version:",
    ),
    Mutant(
        "an answer counts whatever table it was given by",
        "client/reader.py",
        "        if version == leg.version:",
        "        if version:",
    ),
    Mutant(
        "slots are done after their first page",
        "client/reader.py",
        "    if page.end is not None:\n        pending[page.end]",
        "    if page.end is None:\n        pending[page.start]",
    ),
    Mutant(
        "rows that are still with the group before are left out",
        "client/reader.py",
        "            if not handovers:",
        "            if reply:",
    ),
    Mutant(
        "the first rows are counted before deletes are known",
        "client/reader.py",
        "            if limit:\n                limit = 0",
        "            if not end:\n                limit = 0",
    ),
    Mutant(
        "deletes do not reach what the group before has",
        "client/reader.py",
        "        if not tombstones:\n",
        "        if table:\n",
    ),
    Mutant(
        "rows of the group before lie over newer ones",
        "client/reader.py",
        "            parts.append(((), kept))",
        "            parts.append(((*_NEWEST, 1), kept))",
    ),
    Mutant(
        "what a group lists counts though more is elsewhere",
        "client/reader.py",
        "            if not reread[info.slot]:",
        "            if info.rows:",
    ),
    Mutant(
        "rows of partitions before count as the first of this one",
        "client/reader.py",
        "here = page.rows.num_rows + (here if at.key is not None else 0)",
        "here = page.rows.num_rows + here",
    ),
    Mutant(
        "a list of two tables is taken for one",
        "client/reader.py",
        "            if len({page.table_version for page in pages}) > 1:",
        "            if not pages:",
    ),
    Mutant(
        "the last time partition of a range is left out",
        "client/reader.py",
        "range(first, last + 1)",
        "range(first, max(last, first + 1))",
    ),
    Mutant(
        "a group that dissolves is taken for the one that lives",
        "client/routes.py",
        "key=lambda item: not item[1].dissolving",
        "key=lambda item: item[1].dissolving",
    ),
    Mutant(
        "a sealed slot is looked for where it was",
        "client/routes.py",
        "        if move.source not in operation.sealed:",
        "        if move.source:",
    ),
    Mutant(
        "slots that are taken back count as served",
        "client/routes.py",
        "        if operation.stage is Stage.CANCELLING or move.target not in operation.opened",
        "        if move.target not in operation.opened",
    ),
)
