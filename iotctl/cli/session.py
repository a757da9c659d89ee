"""One run of iotctl: its global options, its output, and the cluster once a command needs it."""

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

    Connect = Callable[[ClusterSpec], Cluster]

INTERRUPTED = ("what the cluster has accepted goes on", "iotctl ops list")
ANSWER_S = 2.0
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
    """`connect` is replaced by tests; everything that reads the world goes through here."""

    out: TextIO
    err: TextIO
    stdin: TextIO
    env: Mapping[str, str]
    cwd: Path
    connect: Connect | None = None
    options: GlobalOptions = field(default_factory=GlobalOptions)
    on_interrupt: Callable[[], tuple[str, str]] = lambda: INTERRUPTED
    """What is true when this run is interrupted now, and the next command."""

    lock: HeldLock | None = None
    """The cluster's, while this program holds it; steps of a playbook work under that of their run."""

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
        """Raises `InputProblem` when there is no cluster file or it is invalid."""
        if self._source is None:
            from iotctl.spec.find import find_cluster

            self._source, note = find_cluster(self.options.cluster, self.env, self.cwd)
            if note:
                self.output.note(note)
        return self._source

    def use(self, source: ClusterSource) -> None:
        """Work on `source` whatever the global options say (`local up` knows its own spec)."""
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

    @property
    def fleet(self) -> LocalFleet | None:
        """The local fleet when the cluster is one."""
        if not self.source.is_local:
            return None
        from iotctl.fleet.local import LocalFleet

        return LocalFleet(self.source.directory)

    @property
    def operator(self) -> str:
        """Who is recorded with a change."""
        return self.env.get("USER") or self.env.get("LOGNAME") or "operator"

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold the cluster's lock: who goes over its machines step by step does so alone. A cluster that does
        not answer has none to give; what can be done then (to start it) is done.

        Raises:
            BusyProblem: another program holds it.
            RefusedProblem, Partly: it was lost meanwhile.
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
                        f"working without the cluster's lock, for it cannot be had: {error.what}"
                    )
            try:
                yield
            finally:
                self.lock = None

    def check_lock(self) -> int:
        """Before each step under `locked`; the lock's serial, 0 without one.

        Raises:
            RefusedProblem: it is not ours any more.
        """
        return self.lock.check() if self.lock is not None else 0

    def _answering(self) -> Cluster | None:
        """The cluster, if some node of it answers at once."""
        from iotctl.errors import IotctlError
        from nodeagent.model.errors import NodeAgentError

        try:
            answers = list(self.cluster.statuses(ANSWER_S).values())
        except (IotctlError, NodeAgentError):
            answers = []
        if any(not isinstance(a, NodeAgentError) and a.cluster_id for a in answers):
            return self.cluster
        self.close()  # connected anew next time: a playbook may just be making it
        return None

    def binary_out(self) -> BinaryIO:
        """Standard output for bytes.

        Raises:
            RefusedProblem: it is a terminal, or takes text only.
        """
        raw = getattr(self.out, "buffer", None)
        if raw is None or self.out.isatty():
            raise RefusedProblem(
                "no bytes are written to a terminal",
                next="redirect the output: > FILE, or name one with --to",
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
        """Grade one: `--yes` answers it.

        Raises:
            RefusedProblem: declined, or nobody to ask.
        """
        if yes:
            return
        if not self.can_ask:
            raise RefusedProblem(
                f"not confirmed: {question}", why="no terminal to ask on", next="repeat with --yes"
            )
        self._ask(f"{question} [y/N] ")
        if self.stdin.readline().strip().lower() not in ("y", "yes"):
            raise RefusedProblem("declined; nothing changed")

    def _ask(self, text: str) -> None:
        from nodeagent.model.text import printable

        self.err.write(printable(text, keep="\n"))
        self.err.flush()

    def confirm_name(self, question: str, *, name: str, given: str | None) -> None:
        """Grade two: the cluster's name must be given; `--yes` never replaces it.

        Raises:
            RefusedProblem: another name, or nobody to ask.
        """
        if given is None and self.can_ask:
            self._ask(f"{question}\nType the cluster's name ({name}) to go on: ")
            given = self.stdin.readline().strip()
        if given is None:
            raise RefusedProblem(
                f"not confirmed: {question}",
                why="this cannot be undone and --yes does not answer it",
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
