"""`python -m tests.fleet.killed EVENT:STEP before|after FILE -- WORDS…`: iotctl, killed there.

SIGKILL comes before the record is written anywhere, or once it is; FILE then says so."""

import os
import signal
import sys
from pathlib import Path

from iotctl.cli.main import main
from iotctl.playbook.journal import RunJournal
from iotctl.playbook.model import Entry


def die_at(record: str, when: str, told: Path) -> None:
    append = RunJournal.append

    def or_die(journal: RunJournal, entry: Entry) -> None:
        here = f"{entry.event}:{entry.step}" == record
        if not here or when == "after":
            append(journal, entry)
        if here:
            told.write_text(record)
            os.kill(os.getpid(), signal.SIGKILL)

    RunJournal.append = or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    record, when, told, dashes, *words = sys.argv[1:]
    assert dashes == "--"
    die_at(record, when, Path(told))
    sys.argv[1:] = words
    main()
