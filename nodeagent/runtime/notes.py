"""Structured log lines on stderr: time, event name, fields. Past a rate they are only counted."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

import msgspec

LINES_PER_S_MAX = 200


class Notes:
    """One JSON object per line: `{"at": "...", "event": "...", ...}`. For the loop's thread only."""

    def __init__(self, out: TextIO | None = None, **always: str) -> None:
        self._out = out
        self._always = always
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._second = 0
        self._lines = 0
        self.dropped = 0

    def write(self, event: str, fields: Mapping[str, object] | None = None) -> None:
        now = time.time()
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
        out.write(self._encoder.encode(line).decode() + "\n")
        out.flush()
