"""What a verb would do now, from what the cluster says; it looks and changes nothing.

This is what makes check mode exact and a second run quiet: the traits of a verb that changes something name
the method here which finds out whether its work is done (`iotctl.playbook.traits`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from iotctl.errors import Unreachable, UsageProblem
from iotctl.lifecycle.rolling import left_draining, running_longer
from iotctl.observe.cluster import Cluster
from iotctl.observe.operations import WAITS, open_operations, removed_by
from iotctl.playbook.command_line import command_line, is_true
from iotctl.playbook.model import (
    NO_CHANGE,
    READS,
    UNKNOWN,
    WOULD_CHANGE,
    Command,
    Inspection,
    Ran,
    RunnableVerb,
)
from iotctl.spec.units import parse_duration_ms
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import MetaView, NodeStatus

Arguments = dict[str, Any]


class Use(NamedTuple):
    """A verb and what it is given."""

    verb: RunnableVerb
    arguments: Arguments


def after_earlier(found: Inspection, use: Use, earlier: Sequence[Use]) -> Inspection:
    """What a step would do after the `earlier` ones, which would change something. `found`: what it would
    do now."""
    undoing, nodes = use.verb.traits.undone_by, _nodes(use.arguments)

    def meets(others: set[str]) -> bool:
        return not nodes or not others or bool(nodes & others)

    undone_by = [e for e in earlier if e.verb.name in undoing and meets(_nodes(e.arguments))]
    if found.state != NO_CHANGE or not undone_by:
        return found
    # How long an agent will have been running then nobody knows, nor whether the same value is set twice.
    is_unknown = use.arguments.get("older_than") or use.verb.name in undoing
    state = UNKNOWN if is_unknown else WOULD_CHANGE
    return Inspection(state, "after what an earlier step does")


def undo_of(use: Use, found: Inspection) -> tuple[str, Arguments] | None:
    """The verb and arguments that take back what a step did, `found` being what it was about to do."""
    back, arguments = use.verb.traits.undo, use.arguments
    if not back:
        return None
    if "node" in arguments:
        return back, {"node": arguments["node"]}
    nodes = found.left or found.nodes or _list(arguments.get("nodes") or [])
    kept = {k: v for k, v in arguments.items() if k == "no_write_spec"}
    return (back, {"nodes": list(nodes), **kept}) if nodes else None


def can_look_again(use: Use) -> bool:
    """Whether a look at what a step has just done tells that it is done. Not if the step was told to leave
    before the end."""
    arguments = use.arguments
    if not is_true(arguments.get("wait", True)) or is_true(arguments.get("no_migrate", False)):
        return False
    if any(arguments.get(early) for early in ("older_than", "within", "hold_release")):
        return False
    return use.verb.traits.is_visible(arguments)


def _nodes(arguments: Arguments) -> set[str]:
    """Those a step is about; empty: all of them."""
    return {*_list(arguments.get("nodes") or []), *_list(arguments.get("node") or [])}


class Inspector:
    """`cluster` is opened when the first verb needs it; there may be none yet. The traits of commands call
    the public methods."""

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

    def __call__(self, verb: str, arguments: Arguments) -> Inspection:
        """Raises `IotctlError` when the state cannot be known."""
        use = Use(self._verbs[verb], arguments)
        inspect = use.verb.traits.inspect
        if inspect is None:
            return Inspection(READS) if use.verb.reads else _unknown(f"{verb} cannot tell before it runs")
        try:
            return inspect(self, use)
        except NodeAgentError as error:
            raise Unreachable(error.what, next=error.next_step) from None

    def _meta(self) -> MetaView:
        return self._cluster().meta(strong=True)

    def _changing(self, state: str) -> Inspection | None:
        """A change that goes on without anybody: what is planned beside it is stale at its end, and nothing
        is applied before. One that waits for somebody may be waiting for days."""
        found = next((o for o in open_operations(self._meta()) if o.state() not in WAITS), None)
        return Inspection(state, f"{found.id} goes on", operation=found.id) if found else None

    def add(self, use: Use) -> Inspection:
        meta, nodes = self._meta(), _list(use.arguments["nodes"])
        new = [n for n in nodes if n not in meta.ring]
        return _under_way(meta, nodes) or (
            _would(f"{', '.join(new)} come", new) if new else _done("all of them are in the cluster")
        )

    def remove(self, use: Use) -> Inspection:
        meta, nodes = self._meta(), _list(use.arguments["nodes"])
        there = [n for n in nodes if n in meta.ring]
        if under_way := _under_way(meta, nodes):
            return under_way
        if there:
            return _would(f"{', '.join(there)} leave", there)
        return self._half_left(use, meta, nodes) or _done("none of them is in the cluster")

    def replace(self, use: Use) -> Inspection:
        meta = self._meta()
        old, new = use.arguments["old"], use.arguments["new"]
        if under_way := _under_way(meta, [old, new]):
            return under_way
        if new in meta.ring and old not in meta.ring:
            return self._half_left(use, meta, [old]) or _done(f"{new} is there, {old} is gone")
        return _would(f"{new} takes the place of {old}")

    def _half_left(self, use: Use, meta: MetaView, nodes: Sequence[str]) -> Inspection | None:
        """A node the agents let go while nobody waited, who would have ended its agent and taken its line out
        of cluster.yaml: with that line the next `apply` would bring it back."""
        if use.arguments.get("no_write_spec"):
            return None
        for node in sorted(set(nodes) & set(self._listed())):
            if operation := removed_by(meta, node):
                message = f"{node} left; its agent and its line in cluster.yaml go too"
                return Inspection(WOULD_CHANGE, message, operation=operation.id)
        return None

    def drain(self, use: Use, draining: bool) -> Inspection:
        node = next((n for n in self._meta().nodes if n.node == use.arguments["node"]), None)
        if node is not None and node.draining == draining:
            return _done("it is draining" if draining else "it is not draining")
        return _would("it hands over what it leads" if draining else "it may lead again")

    def start(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code:
            return _unknown(ran.told)
        down = [n for wave in ran.document["waves"] for n in wave]
        return _would(f"{', '.join(down)} are started", nodes=down) if down else _done("every agent runs")

    def restart(self, use: Use) -> Inspection:
        names = _list(use.arguments.get("nodes") or []) or list(self._cluster().statuses())
        names = self._long_running(names, use)
        if names:
            return _would(f"{', '.join(names)} are restarted one by one")
        return self._left_draining() or _done(f"none has been running for {use.arguments['older_than']}")

    def _left_draining(self) -> Inspection | None:
        left = left_draining(self._cluster())
        return _would(f"{', '.join(left)} may lead again after a restart that was killed") if left else None

    def stop(self, use: Use) -> Inspection:
        running = [n for n, up in self._up(use).items() if up]
        if not running:
            return _done("no agent answers")
        names = self._long_running(running, use)
        if not names:
            return _done(f"none has been running for {use.arguments['older_than']}")
        return _would(f"{', '.join(names)} are stopped", nodes=names)

    def _long_running(self, names: list[str], use: Use) -> list[str]:
        age = use.arguments.get("older_than")
        return running_longer(self._cluster(), names, parse_duration_ms(age)) if age else names

    def destroy(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code:
            return _unknown(ran.told)
        there = [n["node"] for n in ran.document["nodes"] if n["there"]]
        return _would(f"{', '.join(there)} are deleted") if there else _done("nothing is there")

    def _up(self, use: Use) -> dict[str, bool]:
        named = _list(use.arguments.get("nodes") or [])
        statuses = self._cluster().statuses()
        unknown = [n for n in named if n not in statuses]
        if unknown:
            raise UsageProblem(f"{', '.join(unknown)}: no such node", next="iotctl cluster nodes")
        return {n: isinstance(s, NodeStatus) for n, s in statuses.items() if not named or n in named}

    def _dry_run(self, use: Use) -> Ran:
        """The step's own command with all it is given, which shows what it would do."""
        words = len(use.verb.words)
        line = command_line(use.verb, use.arguments)
        return self._command([*line[:words], "--dry-run", *line[words:]])

    def would(self, use: Use) -> Inspection:
        """For a command whose dry run lists nothing when nothing is left to do; not for one that also waits
        for an end."""
        ran = self._dry_run(use)
        if ran.code or not isinstance(ran.document, dict):
            return _unknown(ran.told)
        would = ran.document["would"]
        return _would("; ".join(would)) if would else _done("there is nothing to do")

    def deploy(self, use: Use, *, later: bool = False) -> Inspection:
        """`later`: agents that are to be restarted one by one afterwards change, too."""
        ran = self._dry_run(use)
        if ran.code:
            return _unknown(ran.told.strip().partition("\n")[0])
        nodes = ran.document.get("nodes", [])
        changing = [n["node"] for n in nodes if n["changes"] or n["start"] or (later and n["later"])]
        return _would(f"{', '.join(changing)} change") if changing else _done("nothing differs")

    def upgrade(self, use: Use) -> Inspection:
        found = self.deploy(use, later=True)
        return (found.state == NO_CHANGE and self._left_draining()) or found

    def file(self, name: str) -> Inspection:
        is_there = (self._directory / name).exists()
        return _done(f"{name} is there") if is_there else _would(f"{name} is written")

    def trust(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code or not isinstance(ran.document, dict):
            return _unknown(ran.told)
        new = [h["node"] for h in ran.document["hosts"] if h["state"] != "known"]
        return _would(f"host keys of {', '.join(new)} are accepted") if new else _done("all keys are known")

    def renew(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code:
            return _unknown(ran.told)
        due = [c["name"] for c in ran.document["certificates"] if c["state"] == "due"]
        if due:
            return _would(f"certificates of {', '.join(due)} are renewed")
        # A run that was killed may have brought one that its agent was not told of: it must be run.
        return _unknown("none is due; running agents are told to read theirs again")

    def plan(self, use: Use) -> Inspection:
        """A plan is made of what the cluster says, unless it is told not to ask."""
        asks = not use.arguments.get("from_status")
        return (asks and self._changing(READS)) or Inspection(READS)

    def apply(self, use: Use) -> Inspection:
        if changing := self._changing(WOULD_CHANGE):
            return changing
        ran = self._dry_run(use)
        if ran.code:
            return _unknown(ran.told)
        steps = isinstance(ran.document, dict) and ran.document.get("steps")
        return _would("the plan is carried out") if steps else _done("there is nothing to apply")

    def migrate(self, use: Use) -> Inspection:
        there = open_operations(self._meta())
        return _would(f"{there[0].id} is brought to its end") if there else _done("no operation is open")

    def verify(self, use: Use) -> Inspection:
        return _would("damage is repaired") if use.arguments.get("repair") else Inspection(READS)

    def schema(self, use: Use) -> Inspection:
        return self.would(use) if use.arguments.get("set_ttl") else Inspection(READS)

    def program(self, use: Use) -> Inspection:
        creates = use.arguments.get("creates")
        if creates:
            there = (self._directory / creates).exists()
            return _done(f"{creates} is there") if there else _would(f"{creates} is made")
        if use.arguments.get("unless"):
            return _unknown("`unless` is asked when the step is run")
        return _unknown("`changed_when` tells after the step was run")


def _under_way(meta: MetaView, nodes: Sequence[str]) -> Inspection | None:
    """An open change of one of these nodes, begun by whoever it was."""
    found = next((o for o in open_operations(meta) if o.node in nodes or o.leaving in nodes), None)
    return Inspection(WOULD_CHANGE, f"{found.id} goes on", operation=found.id) if found else None


def _would(message: str, left: Sequence[str] | None = None, nodes: Sequence[str] = ()) -> Inspection:
    return Inspection(WOULD_CHANGE, message, None if left is None else tuple(left), nodes=tuple(nodes))


def _unknown(message: str) -> Inspection:
    return Inspection(UNKNOWN, message.strip())


def _done(message: str) -> Inspection:
    return Inspection(NO_CHANGE, message)


def _list(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]
