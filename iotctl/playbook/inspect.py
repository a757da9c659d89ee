"""What a verb would do now, from what the cluster says; it looks and changes nothing.

This is what makes check mode exact and a second run quiet: each verb that changes something names here the
state in which its work is done.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from iotctl.errors import Unreachable, UsageProblem
from iotctl.execute.cluster import Cluster
from iotctl.execute.operations import WAITS, open_operations, removed_by
from iotctl.execute.rolling import left_draining, running_longer
from iotctl.playbook.command_line import command_line, is_true
from iotctl.playbook.model import NO_CHANGE, READS, UNKNOWN, WOULD_CHANGE, Command, Inspection, Ran
from iotctl.spec.playbook import Verb
from iotctl.spec.units import parse_duration_ms
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import MetaView, NodeStatus

Arguments = dict[str, Any]

Would = tuple[str, Arguments]
"""A step that a check found would change something: its verb and what it is given."""

UNDONE_BY = {
    "cluster.start": {"cluster.stop"},
    "cluster.deploy": {"cluster.stop", "cluster.destroy"},
    "cluster.upgrade": {"cluster.stop"},
    "cluster.stop": {"cluster.start", "cluster.deploy"},
    "cluster.drain": {"cluster.undrain"},
    "cluster.undrain": {"cluster.drain"},
    "cluster.add-node": {"cluster.remove-node"},
    "cluster.remove-node": {"cluster.add-node"},
    "local.down": {"local.up"},
    "local.up": {"local.down"},
    "ops.pause": {"ops.resume"},
    "ops.set": {"ops.set"},
    "data.schema": {"data.schema"},
}
"""A check runs no step: what is done now is not done any more after one of these before it."""

TAKEN_BACK_BY = {
    "cluster.start": "cluster.stop",
    "cluster.stop": "cluster.start",
    "cluster.drain": "cluster.undrain",
    "cluster.undrain": "cluster.drain",
    "cluster.add-node": "cluster.remove-node",
}
"""Commands that take a step back. What a removed or replaced node took along (its weight, its address, its
place) a command must be told, so none is named for that."""


ITSELF = ("cert.init", "cluster.finalize-upgrade", "local.down", "local.up", "ops.pause", "ops.set")
"""Commands whose dry run is empty when there is nothing left to do; not those that also wait for an end."""


def after_earlier(found: Inspection, verb: str, arguments: Arguments, earlier: Sequence[Would]) -> Inspection:
    """What a step would do once the `earlier` ones have done theirs, `found` being what it would do now."""
    undoing, nodes = UNDONE_BY.get(verb, ()), _nodes(arguments)

    def meets(others: set[str]) -> bool:
        return not nodes or not others or bool(nodes & others)

    if found.state != NO_CHANGE or not any(v in undoing and meets(_nodes(a)) for v, a in earlier):
        return found
    # How long an agent will have been running then nobody knows, nor whether the same value is set twice.
    state = UNKNOWN if arguments.get("older_than") or verb in undoing else WOULD_CHANGE
    return Inspection(state, "after what an earlier step does")


def undo_of(verb: str, arguments: Arguments, found: Inspection) -> tuple[str, Arguments] | None:
    """The verb and arguments that take back what a step did, `found` being what it was about to do."""
    back = TAKEN_BACK_BY.get(verb)
    if back is None:
        return None
    if "node" in arguments:
        return back, {"node": arguments["node"]}
    nodes = found.left or found.nodes or _list(arguments.get("nodes") or [])
    kept = {k: v for k, v in arguments.items() if k == "no_write_spec"}
    return (back, {"nodes": list(nodes), **kept}) if nodes else None


def can_look_again(verb: str, arguments: Arguments) -> bool:
    """Whether a look at what a step has just done tells that it is done.

    Not where the same would be done again (a restart, a node that replaces itself), where time alone makes
    more of it due, where another cluster's files stay (destroy), and where the step was told to leave before
    the end.
    """
    if verb in ("cluster.destroy", "cluster.restart", "migrate", "verify"):
        return False
    if verb == "cluster.replace-node" and arguments["old"] == arguments["new"]:
        return False
    if not is_true(arguments.get("wait", True)) or is_true(arguments.get("no_migrate", False)):
        return False
    return not any(arguments.get(early) for early in ("older_than", "within", "hold_release"))


def _nodes(arguments: Arguments) -> set[str]:
    """Those a step is about; empty: all of them."""
    return {*_list(arguments.get("nodes") or []), *_list(arguments.get("node") or [])}


class Inspector:
    """`cluster` is opened when the first verb needs it; there may be none yet."""

    def __init__(
        self,
        verbs: Mapping[str, Verb],
        cluster: Callable[[], Cluster],
        command: Command,
        directory: Path,
        now_ms: Callable[[], int],
        listed: Callable[[], Collection[str]],
    ) -> None:
        """`listed`: the nodes in cluster.yaml as it is now."""
        self._now_ms = now_ms
        self._listed = listed
        self._verbs = verbs
        self._cluster = cluster
        self._command = command
        self._directory = directory
        self._known: Mapping[str, Callable[[Arguments], Inspection]] = {
            "cluster.add-node": self._add,
            "cluster.remove-node": self._remove,
            "cluster.replace-node": self._replace,
            "cluster.drain": lambda a: self._drain(a, True),
            "cluster.undrain": lambda a: self._drain(a, False),
            "cluster.start": self._start,
            "cluster.stop": self._stop,
            "cluster.restart": self._restart,
            "cluster.destroy": self._destroy,
            "cluster.deploy": lambda a: self._deploy("cluster.deploy", a),
            "cluster.upgrade": lambda a: self._deploy("cluster.upgrade", a),
            "cluster.init": lambda a: self._file("cluster.yaml"),
            "cluster.trust": self._trust,
            "cert.renew": self._renew,
            "apply": self._apply,
            "approve": lambda a: Inspection(READS),
            "migrate": self._migrate,
            "verify": lambda a: _would("damage is repaired") if a.get("repair") else Inspection(READS),
            "data.schema": lambda a: (
                self._itself("data.schema", a) if a.get("set_ttl") else Inspection(READS)
            ),
            "exec": self._exec,
            **{verb: partial(self._itself, verb) for verb in ITSELF},
        }

    def __call__(self, verb: str, arguments: Arguments) -> Inspection:
        """Raises `IotctlError` when the state cannot be known."""
        known = self._known.get(verb)
        try:
            if self._verbs[verb].reads:
                asks = verb.startswith("plan.") and verb != "plan.show" and not arguments.get("from_status")
                return (asks and self._changing(READS)) or Inspection(READS)
            if known is None:
                return Inspection(UNKNOWN, f"{verb} cannot tell before it runs")
            return known(arguments)
        except NodeAgentError as error:
            raise Unreachable(error.what, next=error.next_step) from None

    def _meta(self) -> MetaView:
        return self._cluster().meta(strong=True)

    def _changing(self, state: str) -> Inspection | None:
        """A change that goes on without anybody: what is planned beside it is stale at its end, and nothing
        is applied before. One that waits for somebody may be waiting for days."""
        found = next((o for o in open_operations(self._meta()) if o.state() not in WAITS), None)
        return Inspection(state, f"{found.id} goes on", operation=found.id) if found else None

    def _add(self, arguments: Arguments) -> Inspection:
        meta, nodes = self._meta(), _list(arguments["nodes"])
        new = [n for n in nodes if n not in meta.ring]
        return _under_way(meta, nodes) or (
            _would(f"{', '.join(new)} come", new) if new else _done("all of them are in the cluster")
        )

    def _remove(self, arguments: Arguments) -> Inspection:
        meta, nodes = self._meta(), _list(arguments["nodes"])
        there = [n for n in nodes if n in meta.ring]
        if under_way := _under_way(meta, nodes):
            return under_way
        if there:
            return _would(f"{', '.join(there)} leave", there)
        half_left = None if arguments.get("no_write_spec") else self._half_left(meta, nodes)
        return half_left or _done("none of them is in the cluster")

    def _replace(self, arguments: Arguments) -> Inspection:
        meta = self._meta()
        old, new = arguments["old"], arguments["new"]
        if under_way := _under_way(meta, [old, new]):
            return under_way
        if new in meta.ring and old not in meta.ring:
            half_left = None if arguments.get("no_write_spec") else self._half_left(meta, [old])
            return half_left or _done(f"{new} is there, {old} is gone")
        return _would(f"{new} takes the place of {old}")

    def _half_left(self, meta: MetaView, nodes: Sequence[str]) -> Inspection | None:
        """A node the agents let go while nobody waited, who would have ended its agent and taken its line out
        of cluster.yaml: with that line the next `apply` would bring it back."""
        for node in sorted(set(nodes) & set(self._listed())):
            if operation := removed_by(meta, node):
                message = f"{node} left; its agent and its line in cluster.yaml go too"
                return Inspection(WOULD_CHANGE, message, operation=operation.id)
        return None

    def _drain(self, arguments: Arguments, draining: bool) -> Inspection:
        node = next((n for n in self._meta().nodes if n.node == arguments["node"]), None)
        if node is not None and node.draining == draining:
            return _done("it is draining" if draining else "it is not draining")
        return _would("it hands over what it leads" if draining else "it may lead again")

    def _start(self, arguments: Arguments) -> Inspection:
        ran = self._dry_run("cluster.start", arguments)
        if ran.code:
            return Inspection(UNKNOWN, ran.told.strip())
        down = [n for wave in ran.document["waves"] for n in wave]
        return _would(f"{', '.join(down)} are started", nodes=down) if down else _done("every agent runs")

    def _restart(self, arguments: Arguments) -> Inspection:
        names = _list(arguments.get("nodes") or []) or list(self._cluster().statuses())
        names = self._long_running(names, arguments)
        if names:
            return _would(f"{', '.join(names)} are restarted one by one")
        return self._left_draining() or _done(f"none has been running for {arguments['older_than']}")

    def _left_draining(self) -> Inspection | None:
        left = left_draining(self._cluster())
        return _would(f"{', '.join(left)} may lead again after a restart that was killed") if left else None

    def _stop(self, arguments: Arguments) -> Inspection:
        running = [n for n, up in self._up(arguments).items() if up]
        if not running:
            return _done("no agent answers")
        names = self._long_running(running, arguments)
        if not names:
            return _done(f"none has been running for {arguments['older_than']}")
        return _would(f"{', '.join(names)} are stopped", nodes=names)

    def _long_running(self, names: list[str], arguments: Arguments) -> list[str]:
        age = arguments.get("older_than")
        if not age:
            return names
        return running_longer(self._cluster(), names, parse_duration_ms(age))

    def _destroy(self, arguments: Arguments) -> Inspection:
        ran = self._dry_run("cluster.destroy", arguments)
        if ran.code:
            return Inspection(UNKNOWN, ran.told.strip())
        there = [n["node"] for n in ran.document["nodes"] if n["there"]]
        return _would(f"{', '.join(there)} are deleted") if there else _done("nothing is there")

    def _up(self, arguments: Arguments) -> dict[str, bool]:
        named = _list(arguments.get("nodes") or [])
        statuses = self._cluster().statuses()
        unknown = [n for n in named if n not in statuses]
        if unknown:
            raise UsageProblem(f"{', '.join(unknown)}: no such node", next="iotctl cluster nodes")
        return {n: isinstance(s, NodeStatus) for n, s in statuses.items() if not named or n in named}

    def _dry_run(self, verb: str, arguments: Arguments) -> Ran:
        """The step's own command with all it is given, which shows what it would do."""
        words = len(self._verbs[verb].words)
        line = command_line(self._verbs[verb], arguments)
        return self._command([*line[:words], "--dry-run", *line[words:]])

    def _itself(self, verb: str, arguments: Arguments) -> Inspection:
        ran = self._dry_run(verb, arguments)
        if ran.code or not isinstance(ran.document, dict):
            return Inspection(UNKNOWN, ran.told.strip())
        would = ran.document["would"]
        return _would("; ".join(would)) if would else _done("there is nothing to do")

    def _deploy(self, verb: str, arguments: Arguments) -> Inspection:
        ran = self._dry_run(verb, arguments)
        if ran.code:
            return Inspection(UNKNOWN, ran.told.strip().splitlines()[0] if ran.told.strip() else "")
        nodes = ran.document.get("nodes", [])
        changing = [
            n["node"]
            for n in nodes
            if n["changes"] or n["start"] or (verb == "cluster.upgrade" and n["later"])
        ]
        if changing:
            return _would(f"{', '.join(changing)} change")
        return (verb == "cluster.upgrade" and self._left_draining()) or _done("nothing differs")

    def _file(self, name: str) -> Inspection:
        return (
            _done(f"{name} is there") if (self._directory / name).exists() else _would(f"{name} is written")
        )

    def _trust(self, arguments: Arguments) -> Inspection:
        ran = self._dry_run("cluster.trust", arguments)
        if ran.code or not isinstance(ran.document, dict):
            return Inspection(UNKNOWN, ran.told.strip())
        new = [h["node"] for h in ran.document["hosts"] if h["state"] != "known"]
        return _would(f"host keys of {', '.join(new)} are accepted") if new else _done("all keys are known")

    def _renew(self, arguments: Arguments) -> Inspection:
        ran = self._dry_run("cert.renew", arguments)
        if ran.code:
            return Inspection(UNKNOWN, ran.told.strip())
        due = [c["name"] for c in ran.document["certificates"] if c["state"] == "due"]
        if due:
            return _would(f"certificates of {', '.join(due)} are renewed")
        # A run that was killed may have brought one that its agent was not told of: it must be run.
        return Inspection(UNKNOWN, "none is due; running agents are told to read theirs again")

    def _apply(self, arguments: Arguments) -> Inspection:
        if changing := self._changing(WOULD_CHANGE):
            return changing
        ran = self._dry_run("apply", arguments)
        if ran.code:
            return Inspection(UNKNOWN, ran.told.strip())
        steps = isinstance(ran.document, dict) and ran.document.get("steps")
        return _would("the plan is carried out") if steps else _done("there is nothing to apply")

    def _migrate(self, arguments: Arguments) -> Inspection:
        there = open_operations(self._meta())
        return _would(f"{there[0].id} is brought to its end") if there else _done("no operation is open")

    def _exec(self, arguments: Arguments) -> Inspection:
        creates = arguments.get("creates")
        if creates:
            there = (self._directory / creates).exists()
            return _done(f"{creates} is there") if there else _would(f"{creates} is made")
        if arguments.get("unless"):
            return Inspection(UNKNOWN, "`unless` is asked when the step is run")
        return Inspection(UNKNOWN, "`changed_when` tells after the step was run")


def _under_way(meta: MetaView, nodes: Sequence[str]) -> Inspection | None:
    """An open change of one of these nodes, begun by whoever it was."""
    found = next((o for o in open_operations(meta) if o.node in nodes or o.leaving in nodes), None)
    return Inspection(WOULD_CHANGE, f"{found.id} goes on", operation=found.id) if found else None


def _would(message: str, left: Sequence[str] | None = None, nodes: Sequence[str] = ()) -> Inspection:
    return Inspection(WOULD_CHANGE, message, None if left is None else tuple(left), nodes=tuple(nodes))


def _done(message: str) -> Inspection:
    return Inspection(NO_CHANGE, message)


def _list(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]
