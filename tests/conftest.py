"""What every test has: when it fails, the last words of the agents that wrote meanwhile."""

import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    made: pytest.TempPathFactory | None = getattr(item.config, "_tmp_path_factory", None)
    if report.failed and made is not None:
        for log in sorted(_logs(made.getbasetemp())):
            with suppress(OSError):  # agents run on, and others clear up after theirs
                if log.stat().st_mtime >= call.start:
                    report.sections.append((str(log), _tail(log)))
    return report


def _logs(below: Path) -> Iterator[Path]:
    for directory, _, files in os.walk(below):
        if "agent.log" in files:
            yield Path(directory, "agent.log")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES:])
