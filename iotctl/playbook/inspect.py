"""What a verb would do now, found in the cluster's state; an inspection changes nothing.

Inspections make check mode exact, and make a second run change nothing: the traits of a verb that changes
something name the method here that finds whether its work is done (`iotctl.playbook.traits`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from iotctl.errors import Unreachable
from iotctl.observe.cluster import Cluster
from iotctl.observe.operations import WAITS, open_operations, removed_by
from iotctl.playbook.command_line import command_line
from iotctl.playbook.inspect_agents import AgentInspector
from iotctl.playbook.model import (
    READS,
    WOULD_CHANGE,
    Command,
    Inspection,
    Ran,
    RunnableVerb,
    done,
    unknown,
    would,
)
from iotctl.playbook.uses import Arguments, Use, list_of
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import MetaView


class Inspector:
    """The inspections of changes, operations and files; `agents` has those of agents.

    `cluster` connects when the first verb needs the cluster, which may not exist yet. The traits of commands
    call the public methods.
    """

    def __init__(
        self,
        verbs: Mapping[str, RunnableVerb],
        cluster: Callable[[], Cluster],
        command: Command,
        directory: Path,
        listed: Callable[[], Collection[str]],
    ) -> None:
        """`listed`: the nodes in cluster.yaml as it is now."""
        self._verbs = verbs
        self._cluster = cluster
        self._command = command
        self._directory = directory
        self._listed = listed
        self.agents = AgentInspector(cluster, self._dry_run)

    def __call__(self, verb: str, arguments: Arguments) -> Inspection:
        """Raises `IotctlError` if the state cannot be found."""
        use = Use(self._verbs[verb], arguments)
        inspect = use.verb.traits.inspect
        if inspect is None:
            return (
                Inspection(READS) if use.verb.reads else unknown(f"only a run of {verb} shows what it does")
            )
        try:
            return inspect(self, use)
        except NodeAgentError as error:
            raise Unreachable(error.what, next=error.next_step) from None

    def _meta(self) -> MetaView:
        return self._cluster().meta(strong=True)

    def _changing(self, state: str) -> Inspection | None:
        """The inspection, if a change is in progress: a plan made now would be stale when it ends.

        A change that waits for the operator does not count; it may wait for days.
        """
        found = next((o for o in open_operations(self._meta()) if o.state() not in WAITS), None)
        return Inspection(state, f"{found.id} is in progress", operation=found.id) if found else None

    def add(self, use: Use) -> Inspection:
        meta, nodes = self._meta(), list_of(use.arguments["nodes"])
        new = [n for n in nodes if n not in meta.ring]
        return _open_change(meta, nodes) or (
            would(f"add {', '.join(new)}", new) if new else done("all of them are in the cluster")
        )

    def remove(self, use: Use) -> Inspection:
        meta, nodes = self._meta(), list_of(use.arguments["nodes"])
        there = [n for n in nodes if n in meta.ring]
        if open_change := _open_change(meta, nodes):
            return open_change
        if there:
            return would(f"remove {', '.join(there)}", there)
        return self._incomplete_removal(use, meta, nodes) or done("none of them is in the cluster")

    def replace(self, use: Use) -> Inspection:
        meta = self._meta()
        old, new = use.arguments["old"], use.arguments["new"]
        if open_change := _open_change(meta, [old, new]):
            return open_change
        if new in meta.ring and old not in meta.ring:
            return self._incomplete_removal(use, meta, [old]) or done(f"{new} has replaced {old}")
        return would(f"replace {old} with {new}")

    def _incomplete_removal(self, use: Use, meta: MetaView, nodes: Sequence[str]) -> Inspection | None:
        """The inspection, if a node left the cluster, but its agent and its line in cluster.yaml remain.

        They remain if no iotctl command waited for the end of the removal. With that line, the next `apply`
        would add the node again.
        """
        if use.arguments.get("no_write_spec"):
            return None
        for node in sorted(set(nodes) & set(self._listed())):
            if operation := removed_by(meta, node):
                message = f"{node} left; remove its agent and its line in cluster.yaml"
                return Inspection(WOULD_CHANGE, message, operation=operation.id)
        return None

    def drain(self, use: Use, draining: bool) -> Inspection:
        node = next((n for n in self._meta().nodes if n.node == use.arguments["node"]), None)
        if node is not None and node.draining == draining:
            return done("it is draining" if draining else "it is not draining")
        return would("transfer its leaderships" if draining else "let it lead again")

    def _dry_run(self, use: Use) -> Ran:
        """Run the step's command with `--dry-run`, which shows what it would do."""
        words = len(use.verb.words)
        line = command_line(use.verb, use.arguments)
        return self._command([*line[:words], "--dry-run", *line[words:]])

    def would(self, use: Use) -> Inspection:
        """Inspect a command whose dry run is empty only if nothing is left to do or to wait for."""
        ran = self._dry_run(use)
        if ran.code or not isinstance(ran.document, dict):
            return unknown(ran.stderr)
        changes = ran.document["would"]
        return would("; ".join(changes)) if changes else done("nothing to do")

    def file(self, name: str) -> Inspection:
        is_there = (self._directory / name).exists()
        return done(f"{name} exists") if is_there else would(f"write {name}")

    def trust(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code or not isinstance(ran.document, dict):
            return unknown(ran.stderr)
        new = [h["node"] for h in ran.document["hosts"] if h["state"] != "known"]
        return would(f"accept the host keys of {', '.join(new)}") if new else done("all keys are known")

    def renew(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code:
            return unknown(ran.stderr)
        due = [c["name"] for c in ran.document["certificates"] if c["state"] == "due"]
        if due:
            return would(f"renew the certificates of {', '.join(due)}")
        # A killed run may have uploaded a certificate that its agent has not loaded: the step must run.
        return unknown("no certificate is due; running agents reload theirs")

    def plan(self, use: Use) -> Inspection:
        """A plan reads the cluster, unless `from_status` replaces it."""
        asks = not use.arguments.get("from_status")
        return (asks and self._changing(READS)) or Inspection(READS)

    def apply(self, use: Use) -> Inspection:
        if changing := self._changing(WOULD_CHANGE):
            return changing
        ran = self._dry_run(use)
        if ran.code:
            return unknown(ran.stderr)
        steps = isinstance(ran.document, dict) and ran.document.get("steps")
        return would("execute the plan") if steps else done("nothing to apply")

    def migrate(self, use: Use) -> Inspection:
        there = open_operations(self._meta())
        return would(f"complete {there[0].id}") if there else done("no operation is open")

    def verify(self, use: Use) -> Inspection:
        return would("repair damage") if use.arguments.get("repair") else Inspection(READS)

    def schema(self, use: Use) -> Inspection:
        return self.would(use) if use.arguments.get("set_ttl") else Inspection(READS)

    def program(self, use: Use) -> Inspection:
        creates = use.arguments.get("creates")
        if creates:
            there = (self._directory / creates).exists()
            return done(f"{creates} exists") if there else would(f"create {creates}")
        if use.arguments.get("unless"):
            return unknown("`unless` is checked when the step runs")
        return unknown("`changed_when` is checked after the step has run")


def _open_change(meta: MetaView, nodes: Sequence[str]) -> Inspection | None:
    """The inspection, if a change of one of these nodes is open, no matter which program started it."""
    found = next((o for o in open_operations(meta) if o.node in nodes or o.leaving in nodes), None)
    return Inspection(WOULD_CHANGE, f"{found.id} is in progress", operation=found.id) if found else None
