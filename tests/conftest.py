"""Settings of all tests: a failure report includes the last log lines of agents that ran during the test."""

import os
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

LINES = 60
LATER = ("spread", "long")
"""Marks of the tests that `make spread` and `make long` run; a test with both belongs to `make spread`."""

STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--begin-within",
        type=float,
        metavar="SECONDS",
        help="skip tests that would start after this time, so that the run ends within a time limit",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    limit: float | None = item.config.getoption("--begin-within")
    if limit is not None and time.monotonic() - STARTED > limit:
        pytest.skip(f"{limit:.0f} s have passed (--begin-within)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that take too long for `make test`, unless their mark or name is given.

    Long tests also run if their file is named.
    """
    wanted = {mark for mark in LATER if mark in config.option.markexpr}
    wanted |= {"long"} if any(word.endswith(".py") for word in config.args) else set()
    wanted |= set(LATER) if any("::" in word for word in config.args) else set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        later = next((mark for mark in LATER if item.get_closest_marker(mark)), None)
        (left_out if later and later not in wanted else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    made: pytest.TempPathFactory | None = getattr(item.config, "_tmp_path_factory", None)
    if report.failed and made is not None:
        for log in sorted(_logs(made.getbasetemp())):
            with suppress(OSError):  # other tests may delete their logs at the same time
                if log.stat().st_mtime >= call.start:
                    report.sections.append((str(log), _tail(log)))
    return report


def _logs(below: Path) -> Iterator[Path]:
    for directory, _, files in os.walk(below):
        if "agent.log" in files:
            yield Path(directory, "agent.log")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LINES:])
