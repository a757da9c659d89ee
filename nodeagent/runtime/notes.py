"""Structured log lines on stderr: time, event name, fields. Lines above a rate are counted, not written.

Notable events are also retained in memory, for `iotctl cluster events`.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TextIO

import msgspec

from nodeagent.model.limits import EVENTS_KEPT
from nodeagent.model.requests import NodeEvent

LINES_PER_S_MAX = 200
REPEAT_MS = 600_000
"""An event that equals the last one retained for its name and group is retained again only after this time: a
failing job may fail every second."""

RETAINED_EVENTS = frozenset(
    (
        *("started", "handed_over", "log_failed", "invariant_broken"),
        *("certificate_loaded", "certificate_not_loaded", "disk_low", "disk_enough"),
        *("writes_refused", "writes_taken_again"),
        *("peer_unreachable", "peer_connected", "connection_refused"),
        *("job_failed", "install_failed", "installed", "replica_removed", "not_removed", "handing_over"),
        *("compaction_waits", "clock_skew", "group_stopped", "parking", "copied_instead"),
        *("recovered", "recover_later", "sessions_later"),
    )
)


class EventLog:
    """One JSON object per line: `{"at": "...", "event": "...", ...}`. For the loop's thread only."""

    def __init__(self, out: TextIO | None = None, **always: str) -> None:
        self._out = out
        self._always = always
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._second = 0
        self._lines = 0
        self.dropped = 0
        self.recent: deque[NodeEvent] = deque(maxlen=EVENTS_KEPT)
        """The retained notable events, oldest first."""

        self._last: dict[tuple[str, str], NodeEvent] = {}
        """(event, group) -> the last retained event"""

    def write(self, event: str, fields: Mapping[str, object] | None = None) -> None:
        now = time.time()
        self._maybe_remember(int(now * 1000), event, fields or {})
        if int(now) != self._second:
            self._second = int(now)
            self._lines = 0
        self._lines += 1
        if self._lines > LINES_PER_S_MAX:
            self.dropped += 1
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        line = {"at": at, "event": event, **self._always, **(fields or {})}
        out = self._out or sys.stderr
        try:
            out.write(self._encoder.encode(line).decode() + "\n")
            out.flush()
        except OSError:  # the line cannot be written (a full disk); the agent continues
            self.dropped += 1

    def _maybe_remember(self, now_ms: int, event: str, fields: Mapping[str, object]) -> None:
        if event == "role" and fields.get("role") == "leader":
            event, fields = "leader", {"group": fields.get("group", ""), "term": fields.get("term", 0)}
        elif event not in RETAINED_EVENTS:
            return
        group = str(fields.get("group", ""))
        message = ", ".join(f"{k} {v}" for k, v in fields.items() if k != "group" and v not in ("", [], None))
        last = self._last.get((event, group))
        if last is not None and last.message == message and now_ms - last.time_ms < REPEAT_MS:
            return
        if len(self._last) >= EVENTS_KEPT:
            self._last.clear()
        found = NodeEvent(now_ms, event, group, message)
        self._last[event, group] = found
        self.recent.append(found)
