"""A writer and a reader that run during a change, and what they observe.

The writer sends one row at a time to slots with data, in turn to each storage group, and records every
acknowledged row. The reader reads strongly and checks that no row acknowledged before the read is
missing.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from iotctl.observe.cluster import Cluster
from nodeagent.model.errors import Definite, NodeAgentError

DEVICE = "probe"
FIELD = "probe"

Connect = Callable[[], Cluster]


@dataclass(slots=True)
class Seen:
    """What the writer and the reader observed: acknowledged rows, and per data group the longest write."""

    acked: dict[tuple[str, int], float] = field(default_factory=dict)
    """(storage group, time) -> value"""

    pauses: dict[str, float] = field(default_factory=dict)
    """Group owner -> seconds of the longest write."""

    failed: list[str] = field(default_factory=list)
    reads: int = 0
    missing: list[str] = field(default_factory=list)


class Load:
    """Runs until `stop`. It writes to `places`: (storage group, time) pairs, each in its own time
    partition.

    The writer pauses for `pause_s` after each row.
    """

    def __init__(
        self,
        connect: Connect,
        table: str,
        tag: str,
        places: Mapping[tuple[str, int], str],
        pause_s: float = 0.0,
    ) -> None:
        self._connect = connect
        self._table = table
        self._tag = tag
        self._places = dict(places)
        self._pause_s = pause_s
        self.seen = Seen()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._write, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> Seen:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        return self.seen

    def _write(self) -> None:
        cluster = self._connect()
        value = 0.0
        try:
            while not self._stop.is_set():
                for (storage_group, at), owner in self._places.items():
                    if self._stop.wait(self._pause_s):
                        return
                    value += 1.0
                    self._write_one(cluster, storage_group, at, owner, value)
        finally:
            cluster.close()

    def _write_one(self, cluster: Cluster, storage_group: str, at: int, owner: str, value: float) -> None:
        rows = pa.table({"time": [at], self._tag: [DEVICE], FIELD: [value]})
        began = time.monotonic()
        try:
            cluster.write(storage_group, self._table, rows, tags=[self._tag])
        except Definite as error:
            self.seen.failed.append(f"{storage_group}@{at}: {error.what}")
            return
        except NodeAgentError as error:
            # The outcome is unknown until the next write to this place succeeds.
            self.seen.failed.append(f"{storage_group}@{at}: {error.what}")
            self.seen.acked.pop((storage_group, at), None)
            return
        took = time.monotonic() - began
        self.seen.acked[storage_group, at] = value
        self.seen.pauses[owner] = max(self.seen.pauses.get(owner, 0.0), took)

    def _read(self) -> None:
        cluster = self._connect()
        try:
            while not self._stop.wait(0.2):
                for place in list(self._places)[:: max(1, len(self._places) // 8)]:
                    if self._stop.is_set():
                        return
                    before = self.seen.acked.get(place)
                    self._read_one(cluster, place, before)
        finally:
            cluster.close()

    def _read_one(self, cluster: Cluster, place: tuple[str, int], before: float | None) -> None:
        storage_group, at = place
        try:
            rows = cluster.scan(
                storage_group,
                self._table,
                fields=[FIELD],
                tags={self._tag: DEVICE},
                time_from=at,
                time_to=at,
            )
        except NodeAgentError:
            return  # briefly unavailable; the final check reads all rows
        self.seen.reads += 1
        found = rows.column(FIELD).to_pylist()
        if before is not None and (not found or found[0] is None or found[0] < before):
            self.seen.missing.append(f"{storage_group}@{at}: acknowledged {before}, read {found}")
