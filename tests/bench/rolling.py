"""What writers notice when five nodes over SSH are restarted, then upgraded, one after the other."""

import http.client
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import msgspec

from iotctl.fleet.wheelhouse import software
from iotctl.lifecycle import deploy as deploying
from tests.bench.figures import Figure, Report, of, percentile
from tests.bench.registers import EVERY_S, READERS, Seen, clients, gap, losses, streams_of
from tests.fleet.plant import Plant, machines

NODES = 5
GAP_MAX_MS = 2_000.0
DOWN_MAX = 1
"""At most one of five nodes with R = 3 may be down at a time."""

CALM_S = 5.0
LOOK_S = 0.05


class Watch(threading.Thread):
    """Observes the maximum number of agents that do not serve at the same time, from their end until
    ready."""

    def __init__(self, plant: Plant) -> None:
        super().__init__(daemon=True)
        self._plant = plant
        self._ended = threading.Event()
        self.down = 0

    def run(self) -> None:
        serving = self._plant.pids()
        while not self._ended.wait(LOOK_S):
            if (down := self._ask(serving)) > DOWN_MAX:
                down = self._ask(
                    serving
                )  # an agent may have come back before the end of the next was observed
            self.down = max(self.down, down)

    def _ask(self, serving: dict[str, int]) -> int:
        """The number of agents that do not serve. `serving` has the process of each node, 0 until it is ready
        again."""
        for node, pid in serving.items():
            if not pid or not Path(f"/proc/{pid}").is_dir():
                serving[node] = self._plant.pid(node) if self._is_ready(node) else 0
        return sum(not p for p in serving.values())

    def _is_ready(self, node: str) -> bool:
        """Whether the agent serves its groups, as a load balancer would ask."""
        host, port = self._plant.http[node]
        asked = http.client.HTTPConnection(host, port, timeout=1.0)
        try:
            asked.request("GET", "/ready")
            return asked.getresponse().status == 200
        except OSError:
            return False
        finally:
            asked.close()

    def end(self) -> int:
        self._ended.set()
        self.join()
        return self.down


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    verbs = ("restart",) if quick else ("restart", "upgrade")
    names = [f"node{i}" for i in range(1, NODES + 1)]
    place = tempfile.TemporaryDirectory(prefix="bench-rolling-")
    with place as directory, machines(Path(directory), names) as plant:
        deploy_s = _deploy(plant)
        with plant.connect() as cluster:
            streams, by_group = streams_of(cluster)
        with clients(plant.spec(), streams, by_group) as running:
            time.sleep(CALM_S)
            periods = [(verb, *_roll(plant, verb)) for verb in verbs]
            seen = running.stop()
    figures = [
        of("five machines to a healthy cluster, one command", [deploy_s], "s"),
        *(f for verb, start, end, down in periods for f in _figures(verb, start, end, down, by_group, seen)),
        *losses(seen),
    ]
    workload = (
        f"one write of 5 points every {EVERY_S * 1e3:.0f} ms to each of {NODES} groups, {READERS} strong"
        f" readers, TLS on, R=3, {NODES} nodes over SSH on loopback"
    )
    return Report("rolling", workload, tuple(figures), time.monotonic() - started)


def _deploy(plant: Plant) -> float:
    code, out, err = plant.iotctl("cluster", "trust", "--yes")
    assert code == 0, out + err
    started = time.monotonic()
    assert plant.json("cluster", "deploy", "--yes")["healthy"]
    return time.monotonic() - started


def _roll(plant: Plant, verb: str) -> tuple[float, float, int]:
    """(start, end, most agents down at once)"""
    watch = Watch(plant)
    watch.start()
    with _newer() if verb == "upgrade" else nullcontext():
        if verb == "upgrade":
            plant.json("cluster", "deploy", "--yes")  # installs the software, restarts no agent
        start = time.monotonic()
        done = plant.json("cluster", verb, "--yes")
        end = time.monotonic()
    assert len(done["restarted"]) == NODES, done
    down = watch.end()
    time.sleep(CALM_S)
    return start, end, down


@contextmanager
def _newer() -> Iterator[None]:
    """Pretend that this is a later version of iotctl."""
    now = software()
    more = (*now.code, ("nodeagent/newer.py", b"NEWER = True\n"))
    later = msgspec.structs.replace(now, version=now.version + "1", code=more)
    with patch.object(deploying, "software", lambda: later):
        yield


def _figures(
    verb: str, start: float, end: float, down: int, by_group: Sequence[Sequence[int]], seen: Seen
) -> list[Figure]:
    gaps = {f"group {n}": gap(seen, set(own), start, end) for n, own in enumerate(by_group, 1)}
    during = [a.at - a.due for a in seen.acknowledged if start <= a.due <= end]
    details = {
        "writes_per_s_and_group": len(during) / (end - start) / len(by_group),
        **gaps,
        "p99_ms": 1e3 * percentile(during, 0.99),
        "seconds": end - start,
    }
    return [
        of(f"{verb}: longest gap", [max(gaps.values())], "ms", ceiling=GAP_MAX_MS, details=details),
        of(f"{verb}: most agents down at once", [float(down)], "", ceiling=DOWN_MAX),
    ]
