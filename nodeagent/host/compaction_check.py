"""The check before a compaction is logged: every member that is up has all inputs, and they are intact.

A damaged copy could not be repaired once the other members have merged theirs. First the members only say
which inputs they have, which costs next to nothing: a member that is behind makes or copies files for a
while, and is asked again soon. Only inputs that all of them have are hashed.
"""

from collections.abc import Callable, Sequence

from nodeagent.data.compaction import Key
from nodeagent.host.context import Context
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.peers import Peers
from nodeagent.host.replicas import Replicas
from nodeagent.model.errors import LogCorrupt
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import FilesHashed, HashFiles, JobResult
from nodeagent.model.requests import CheckFiles, ErrorReply, FilesChecked, Reply
from nodeagent.partition.ranges import from_slots

CHECK_AGAIN_MS = 10_000
"""After a check that found damage or got no answer, before the same files are checked again: the next check
would read all of them again."""

ABSENT_AGAIN_MS = 500
"""The same if a member only said that it lacks a file, because it still makes or copies the file."""

UP_TIMEOUTS = 5
"""A check does not wait for a member that sent nothing for this many election timeouts."""

Runs = dict[Key, Sequence[FileMeta]]
Answers = dict[NodeId, Reply | JobResult]
Take = Callable[[NodeId, Reply | JobResult], None]


class CompactionCheck:
    """See the module. At most one check runs per group; a restart loses only how long keys have waited."""

    def __init__(self, context: Context, replicas: Replicas, peers: Peers) -> None:
        self._node = context.node
        self._config = context.config
        self._effects = context.effects
        self._replicas = replicas
        self._peers = peers
        self._running: set[GroupId] = set()
        self._not_before: dict[tuple[GroupId, Key], int] = {}

    def is_running(self, group: GroupId) -> bool:
        return group in self._running

    def is_due(self, group: GroupId, key: Key) -> bool:
        """Whether the files of `key` do not wait after an earlier check."""
        return self._effects.now >= self._not_before.get((group, key), 0)

    def postpone(self, group: GroupId, key: Key, wait_ms: int) -> None:
        """Do not check the files of `key` for so long."""
        now = self._effects.now
        self._not_before = {k: until for k, until in self._not_before.items() if until > now}
        self._not_before[group, key] = now + wait_ms

    def begin(self, replica: DataReplica, runs: Runs, then: Callable[[Runs], None]) -> None:
        """Check the runs, then call `then` with the intact ones if the replica still leads."""
        group, term = replica.group, replica.raft.term
        recent = self._effects.now - UP_TIMEOUTS * self._config.raft.election_timeout_ms
        others = [n for n in replica.raft.log.config.members if n != self._node]
        up = [n for n in others if self._peers.heard.get(n, 0) > recent]
        self._running.add(group)

        def leads() -> bool:
            return self._replicas.data.get(group) is replica and replica.leads and replica.raft.term == term

        def listed(answers: Answers) -> None:
            present = self._present(replica, runs, answers) if leads() else {}
            if not present:
                self._running.discard(group)
                return
            files = _files_of(present)

            def hashed(answers: Answers) -> None:
                self._running.discard(group)
                if leads():
                    then(self._intact(replica, present, answers))

            take = _gathered(len(up) + 1, hashed)
            replica.files.read(HashFiles(group, tuple(files)), files, lambda r: take(self._node, r))
            self._ask(up, _request(group, files), take)

        if up:
            self._ask(up, _request(group, _files_of(runs), lists_only=True), _gathered(len(up), listed))
        else:
            listed({})

    def _ask(self, nodes: Sequence[NodeId], request: CheckFiles, take: Take) -> None:
        for node in nodes:
            self._effects.call(node, request, lambda r, n=node: take(n, r))  # type: ignore[misc]

    def _present(self, replica: DataReplica, runs: Runs, answers: Answers) -> Runs:
        """The runs whose files every member that is up has. A member without an answer has none for now."""
        listed = [
            {f.name for f in r.files} if isinstance(r, FilesChecked) else set[str]() for r in answers.values()
        ]
        # A member of an earlier release hashes its files to answer.
        is_cheap = all(isinstance(r, FilesChecked) and not r.found for r in answers.values())
        present: Runs = {}
        for key, run in runs.items():
            if all(f.name in names for names in listed for f in run):
                present[key] = run
            else:
                self.postpone(replica.group, key, ABSENT_AGAIN_MS if is_cheap else CHECK_AGAIN_MS)
        return present

    def _intact(self, replica: DataReplica, runs: Runs, answers: Answers) -> Runs:
        """The runs whose files are intact on every member that is up. A file that a member removed since, or
        could not check, counts as not intact for now. Damage is reported until a check finds all copies of
        the run intact."""
        intact: Runs = {}
        found = {
            n: dict(r.found) if isinstance(r, FilesChecked | FilesHashed) else {} for n, r in answers.items()
        }
        for key, run in runs.items():
            bad = [(n, f.name) for n, names in found.items() for f in run if names.get(f.name) != f.xxh3]
            damaged = [(n, name) for n, name in bad if name in found[n]]
            if damaged:
                node, name = damaged[0]
                what = f"{name} on {node} is damaged or missing"
                replica.damaged[key] = f"{what}: the files of its table and partition are not merged"
                self._effects.note("compaction_waits", group=replica.group, node=node, file=name)
            if bad:
                self.postpone(replica.group, key, CHECK_AGAIN_MS)
            else:
                replica.damaged.pop(key, None)
                intact[key] = run
        return intact


def _gathered(count: int, then: Callable[[Answers], None]) -> Take:
    """A function that takes answers, and passes them to `then` once there are `count`, without those of
    members with a lost log: they have no files."""
    answers: Answers = {}

    def take(node: NodeId, reply: Reply | JobResult) -> None:
        answers[node] = reply
        if len(answers) == count:
            lost = {n for n, r in answers.items() if isinstance(r, ErrorReply) and r.code == LogCorrupt.code}
            then({n: r for n, r in answers.items() if n not in lost})

    return take


def _files_of(runs: Runs) -> list[FileMeta]:
    return [f for run in runs.values() for f in run]


def _request(group: GroupId, files: Sequence[FileMeta], *, lists_only: bool = False) -> CheckFiles:
    return CheckFiles(group, from_slots(f.slot for f in files), tuple(f.name for f in files), lists_only)
