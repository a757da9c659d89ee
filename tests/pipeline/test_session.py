"""Spark sessions: the check of Java, retries of local masters, and their end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iotctl.pipeline.executors import is_local
from iotctl.pipeline.session import check_java, java_major, with_retries
from nodeagent.model.errors import Refused
from tests.waiting import until


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_java_version_is_read(text: str, major: int | None) -> None:
    """Both the old and the new numbering are understood."""
    assert java_major(text) == major


@pytest.mark.parametrize("version", ["1.8.0", "11.0.2"])
def test_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The error has the version and the fix."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Refused, match="17 or newer"):
        check_java()


def test_no_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is a sentence instead of a stack trace."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    with pytest.raises(Refused, match="none was found"):
        check_java()


def test_local_masters_get_retries() -> None:
    """A task of a local master is tried more than once; other masters are left alone."""
    assert with_retries("local[*]") == "local[*,3]"
    assert with_retries("local") == "local[1,3]"
    assert with_retries("local[2,5]") == "local[2,5]"
    assert with_retries("spark://h:7077") == "spark://h:7077"
    assert is_local("local[2]") and not is_local("yarn")


@pytest.mark.spark
@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_spark_silently(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The signal decides the exit code, whatever Spark reports when it is stopped during a call; no JVM stays
    and no traceback is printed. Ctrl-C goes to the whole process group, as from a terminal."""
    started = tmp_path / "started"
    program = [sys.executable, "-m", "tests.pipeline.ended_by_signal", str(started)]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        until(lambda: started.exists() or process.poll() is not None, 60)
        assert process.poll() is None
        (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "")
    until(lambda: _is_gone(process.pid), 60)  # Spark's workers end when they notice that the JVM has ended


def _is_gone(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return True
    return False
