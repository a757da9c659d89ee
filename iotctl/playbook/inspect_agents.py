"""What a verb that starts, stops or deploys agents would do now."""

from collections.abc import Callable

from iotctl.errors import UsageProblem
from iotctl.lifecycle.rolling import left_draining, running_longer
from iotctl.observe.cluster import Cluster
from iotctl.playbook.model import NO_CHANGE, Inspection, Ran, done, unknown, would
from iotctl.playbook.uses import Use, list_of
from iotctl.spec.units import parse_duration_ms
from nodeagent.model.requests import NodeStatus


class AgentInspector:
    """The inspections of agents. `dry_run` runs a step's own command with `--dry-run`."""

    def __init__(self, cluster: Callable[[], Cluster], dry_run: Callable[[Use], Ran]) -> None:
        self._cluster = cluster
        self._dry_run = dry_run

    def start(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code:
            return unknown(ran.stderr)
        down = [n for wave in ran.document["waves"] for n in wave]
        return would(f"start {', '.join(down)}", nodes=down) if down else done("every agent runs")

    def restart(self, use: Use) -> Inspection:
        names = list_of(use.arguments.get("nodes") or []) or list(self._cluster().statuses())
        names = self._long_running(names, use)
        if names:
            return would(f"restart {', '.join(names)}")
        return self._left_draining() or done(_none_since(use))

    def _left_draining(self) -> Inspection | None:
        left = left_draining(self._cluster())
        return would(f"let {', '.join(left)} lead again after an interrupted restart") if left else None

    def stop(self, use: Use) -> Inspection:
        running = [n for n, up in self._up(use).items() if up]
        if not running:
            return done("no agent answers")
        names = self._long_running(running, use)
        if not names:
            return done(_none_since(use))
        return would(f"stop {', '.join(names)}", nodes=names)

    def _long_running(self, names: list[str], use: Use) -> list[str]:
        age = use.arguments.get("older_than")
        return running_longer(self._cluster(), names, parse_duration_ms(age)) if age else names

    def destroy(self, use: Use) -> Inspection:
        ran = self._dry_run(use)
        if ran.code:
            return unknown(ran.stderr)
        there = [n["node"] for n in ran.document["nodes"] if n["there"]]
        return would(f"delete the data of {', '.join(there)}") if there else done("no data is left")

    def _up(self, use: Use) -> dict[str, bool]:
        named = list_of(use.arguments.get("nodes") or [])
        statuses = self._cluster().statuses()
        missing = [n for n in named if n not in statuses]
        if missing:
            raise UsageProblem(f"{', '.join(missing)}: no such node", next="iotctl cluster nodes")
        return {n: isinstance(s, NodeStatus) for n, s in statuses.items() if not named or n in named}

    def deploy(self, use: Use, *, later: bool = False) -> Inspection:
        """`later`: also count agents whose only changes take effect at a later restart."""
        ran = self._dry_run(use)
        if ran.code:
            return unknown(ran.stderr.strip().partition("\n")[0])
        nodes = ran.document.get("nodes", [])
        changing = [n["node"] for n in nodes if n["changes"] or n["start"] or (later and n["later"])]
        return would(f"deploy {', '.join(changing)}") if changing else done("nothing differs")

    def upgrade(self, use: Use) -> Inspection:
        found = self.deploy(use, later=True)
        return (found.state == NO_CHANGE and self._left_draining()) or found


def _none_since(use: Use) -> str:
    return f"no agent has been running for longer than {use.arguments['older_than']}"
