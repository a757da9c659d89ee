"""`python -m tests.fleet.killed EVENT:STEP before|after|during FILE -- WORDS…`: iotctl, ended there.

SIGKILL comes before the record is written anywhere, or once it is; `during`: SIGINT comes while what the
record speaks of is done. FILE then says so."""

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

from iotctl.cli.main import main
from iotctl.playbook.journal import RunJournal
from iotctl.playbook.model import Entry

DURING_S = 0.3
HUNG_S = 240.0
"""Ours end in seconds. One that hangs says where it stands, on stderr, and ends: its test's own limit would
end the test alone, and say nothing of it."""


def die_at(record: str, when: str, told: Path) -> None:
    append = RunJournal.append

    def or_die(self: RunJournal, entry: Entry) -> None:
        here = f"{entry.event}:{entry.step}" == record
        if not here or when != "before":
            append(self, entry)
        if not here:
            return
        told.write_text(record)
        if when == "during":
            threading.Timer(DURING_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    RunJournal.append = or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    record, when, told, dashes, *words = sys.argv[1:]
    assert dashes == "--"
    faulthandler.dump_traceback_later(HUNG_S, exit=True)
    die_at(record, when, Path(told))
    sys.argv[1:] = words
    main()
