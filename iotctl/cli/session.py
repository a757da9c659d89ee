"""One run of iotctl: its global options, its output, and the cluster as soon as a command needs it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

import typer

from iotctl.errors import RefusedProblem

if TYPE_CHECKING:
    from iotctl.change.lock import HeldLock
    from iotctl.fleet.local import LocalFleet
    from iotctl.observe.cluster import Cluster
    from iotctl.output.progress import Progress
    from iotctl.output.writer import Output
    from iotctl.spec.cluster import ClusterSource
    from nodeagent.client.spec import ClusterSpec
    from nodeagent.model.requests import MetaView

    Connect = Callable[[ClusterSpec], Cluster]

INTERRUPTED = ("operations that the cluster accepted continue", "iotctl ops list")
ANSWER_S = 2.0
CONFIRMED_MS = 30_000
"""A meta view that a leader confirmed no longer ago needs no note."""

FORMATS = ("table", "wide", "json", "jsonl", "yaml", "csv")


@dataclass(slots=True)
class GlobalOptions:
    cluster: str | None = None
    identity: str | None = None
    timeout_s: float | None = None
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    input: bool = True
    debug: bool = False
    format: str = "table"


@dataclass(slots=True)
class Session:
    """The environment of a command: streams, variables, directory, cluster. Tests replace `connect`."""

    out: TextIO
    err: TextIO
    stdin: TextIO
    env: Mapping[str, str]
    cwd: Path
    connect: Connect | None = None
    options: GlobalOptions = field(default_factory=GlobalOptions)
    on_interrupt: Callable[[], tuple[str, str]] = lambda: INTERRUPTED
    """(the state if this run is interrupted now, the next command)."""

    lock: HeldLock | None = None
    """The cluster's lock, while this program holds it; the steps of a playbook share their run's lock."""

    _source: ClusterSource | None = None
    _cluster: Cluster | None = None
    _output: Output | None = None

    @property
    def output(self) -> Output:
        if self._output is None:
            from iotctl.output.writer import Output

            o = self.options
            self._output = Output(self.out, self.err, format=o.format, quiet=o.quiet, verbose=o.verbose)
        return self._output

    @property
    def source(self) -> ClusterSource:
        """Raises `InputProblem` if there is no valid cluster file."""
        if self._source is None:
            from iotctl.spec.find import find_cluster

            self._source, note = find_cluster(self.options.cluster, self.env, self.cwd)
            if note:
                self.output.note(note)
        return self._source

    def use(self, source: ClusterSource) -> None:
        """Use `source` instead of the cluster that the global options name (`local up` has its own)."""
        self._source = source

    @property
    def identity(self) -> Path | None:
        from iotctl.spec.find import find_identity

        return find_identity(self.options.identity, self.env, self.source, self.cwd)

    @property
    def spec(self) -> ClusterSpec:
        """The picklable address of the cluster."""
        from iotctl.observe.cluster import CALL_TIMEOUT_S, cluster_spec

        timeout = min(self.options.timeout_s or CALL_TIMEOUT_S, CALL_TIMEOUT_S)
        return cluster_spec(self.source, self.identity, self.env, timeout_s=timeout)

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            if self.connect is None:
                from iotctl.observe.cluster import connect

                self.connect = connect
            self._cluster = self.connect(self.spec)
        return self._cluster

    def known_view(self) -> MetaView:
        """The meta view that a node has, also without a meta quorum; a note says if it may be outdated."""
        view = self.cluster.meta(any_age=True)
        if view.age_ms > CONFIRMED_MS:
            age = f"was last confirmed {view.age_ms / 1000:.0f} s ago"
        elif view.age_ms < 0 and view.leader is None:
            age = "is not confirmed by a leader"
        else:
            return view
        self.output.note(f"the answer may be outdated: the meta state of {view.node} {age}")
        return view

    @property
    def fleet(self) -> LocalFleet | None:
        """The local fleet, if the cluster is a local fleet."""
        if not self.source.is_local:
            return None
        from iotctl.fleet.local import LocalFleet

        return LocalFleet(self.source.directory)

    @property
    def operator(self) -> str:
        """The operator's name, which is recorded with a change."""
        return self.env.get("USER") or self.env.get("LOGNAME") or "operator"

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold the cluster's lock, so that only one program works on its machines.

        A cluster that does not answer cannot grant its lock; the block then runs without it (to start the
        cluster, for example).

        Raises:
            BusyProblem: another program holds the lock.
            RefusedProblem, Partly: the lock was lost inside the block.
        """
        from iotctl.change.lock import HeldLock
        from nodeagent.model.errors import OutcomeUnknown, Unavailable

        if self.lock is not None:
            self.check_lock()
            yield
            return
        with ExitStack() as held:
            cluster = self._answering()
            if cluster is not None:
                try:
                    self.lock = held.enter_context(HeldLock(cluster, what, self.operator, now_ms()))
                except (Unavailable, OutcomeUnknown) as error:
                    self.output.warn(
                        f"continuing without the cluster's lock, which cannot be taken: {error.what}"
                    )
            try:
                yield
            finally:
                self.lock = None

    def check_lock(self) -> int:
        """Check the lock before each step under `locked`; returns its serial, 0 without a lock.

        Raises:
            RefusedProblem: this program no longer holds the lock.
        """
        return self.lock.check() if self.lock is not None else 0

    def _answering(self) -> Cluster | None:
        """The cluster, if a node answers within `ANSWER_S`."""
        from iotctl.errors import IotctlError
        from nodeagent.model.errors import NodeAgentError

        try:
            answers = list(self.cluster.statuses(ANSWER_S).values())
        except (IotctlError, NodeAgentError):
            answers = []
        if any(not isinstance(a, NodeAgentError) and a.cluster_id for a in answers):
            return self.cluster
        self.close()  # reconnect next time: a playbook may be creating the cluster
        return None

    def binary_out(self) -> BinaryIO:
        """Standard output, opened for bytes.

        Raises:
            RefusedProblem: standard output is a terminal or accepts only text.
        """
        raw = getattr(self.out, "buffer", None)
        if raw is None or self.out.isatty():
            raise RefusedProblem(
                "refusing to write bytes to standard output: it is a terminal or accepts only text",
                next="redirect the output: > FILE, or name a file with --to",
            )
        self.out.flush()
        return cast("BinaryIO", raw)

    def progress(self) -> Progress:
        return self.output.progress()

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # --- consent -----------------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        return self.options.input and self.stdin.isatty()

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for a yes before anything is changed; `--yes` answers it.

        Raises:
            RefusedProblem: declined, or there is no terminal to ask on, or `--no-input` is given.
        """
        if not self.agrees(question, yes=yes):
            raise RefusedProblem("declined; nothing was changed")

    def agrees(self, question: str, *, yes: bool) -> bool:
        """Whether the operator answers yes; `yes` answers for the operator.

        Raises:
            RefusedProblem: there is no terminal to ask on, or `--no-input` is given.
        """
        if yes:
            return True
        if not self.can_ask:
            raise RefusedProblem(
                f"not confirmed: {question}",
                why="--no-input is given, or there is no terminal to ask on",
                next="repeat with --yes",
            )
        self._ask(f"{question} [y/N] ")
        return self.stdin.readline().strip().lower() in ("y", "yes")

    def _ask(self, text: str) -> None:
        from nodeagent.model.text import printable

        self.err.write(printable(text, keep="\n"))
        self.err.flush()

    def confirm_name(self, question: str, *, name: str, given: str | None) -> None:
        """Ask for the cluster's name; `--yes` does not answer it.

        Raises:
            RefusedProblem: another name, or there is no terminal to ask on, or `--no-input` is given.
        """
        if given is None and self.can_ask:
            self._ask(f"{question}\nType the cluster's name ({name}) to continue: ")
            given = self.stdin.readline().strip()
        if given is None:
            raise RefusedProblem(
                f"not confirmed: {question}",
                why="this cannot be undone, so --yes is not enough",
                next=f"repeat with --confirm {name}",
            )
        if given != name:
            raise RefusedProblem(f"{given!r} is not the name of this cluster", next=f"--confirm {name}")


def now_ms() -> int:
    """The wall clock."""
    return int(time.time() * 1000)


def session_of(ctx: typer.Context) -> Session:
    session = ctx.obj
    assert isinstance(session, Session)
    return session


def default_session() -> Session:
    return Session(sys.stdout, sys.stderr, sys.stdin, os.environ, Path.cwd())
