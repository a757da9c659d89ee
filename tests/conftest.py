"""What every test has: when it fails, the last words of the agents that wrote meanwhile."""

import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LINES = 60


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make spread` runs, unless it is asked for: by its mark, or by the name of a test."""
    if "spread" in config.option.markexpr or any("::" in word for word in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("spread")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("spread")]


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
