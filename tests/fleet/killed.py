"""`python -m tests.fleet.killed EVENT:STEP before|after|during FILE -- WORDS…`: runs iotctl and kills it.

`before`, `after`: SIGKILL before or after the record is written. `during`: SIGINT while the recorded action
runs. FILE then records the kill."""

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
"""A run ends in seconds. A run that hangs prints its stack to stderr and exits: the limit of the test would
only end the test, without a stack."""


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
