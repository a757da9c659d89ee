"""An unreachable, idle, incomplete or lost Spark cluster is reported soon."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from iotctl.output.failure import describe
from iotctl.pipeline.executors import Patience, check_master, first_line
from iotctl.pipeline.session import spark_session
from nodeagent.model.errors import Unavailable

SPARK = Path(pyspark.__file__).parent
PATIENCE_S = 180
"""Spark starts slowly on a busy machine."""


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that is bound without a listener, so that connections are refused."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_an_unreachable_master_is_reported_at_once() -> None:
    """No JVM is started; the error has each address, the reason, the next step and exit code 4."""
    with closed_port() as one, closed_port() as two:
        master = f"spark://127.0.0.1:{one},127.0.0.1:{two}"
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught, spark_session("none", master):
            raise AssertionError("there is no master")
    assert time.monotonic() - started < 15
    failure = describe(caught.value)
    for address in (one, two):
        assert f"127.0.0.1:{address}: Connection refused" in failure.what
    assert failure.code == 4 and "--master" in failure.next


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:99999", "no-such-host.invalid:7077", "127.0.0.1", "127.0.0.1:port", f"{64 * 'a'}:7077"],
)
def test_a_master_without_a_valid_address_is_reported(address: str) -> None:
    with pytest.raises(Unavailable, match=re.escape(address)):
        check_master(f"spark://{address}")


def test_one_of_several_masters_suffices_and_other_urls_are_left_to_spark() -> None:
    with closed_port() as closed, socket.create_server(("127.0.0.1", 0)) as there:
        check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{there.getsockname()[1]}")
    for master in ("local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        check_master(master)


def test_every_executor_resets_the_patience() -> None:
    """A worker that comes back in time does not fail the job."""
    patience = Patience(60, now=0)
    assert patience.waits(0, now=59) and not patience.over(now=59)
    assert not patience.waits(1, now=59.5)
    assert patience.waits(0, now=100) and not patience.over(now=119)
    assert patience.over(now=120)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'Job aborted\n\tat x\nCaused by: java.io.IOException: Cannot run program "/v/python": error=2\n',
            'Cannot run program "/v/python"',
        ),
        (
            "Traceback:\n  File x\nModuleNotFoundError: No module named 'msgspec'\n\n\tat org.apache\n",
            "No module named 'msgspec'",
        ),
        (
            "x\nPySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version\n",
            "different version",
        ),
    ],
)
def test_workers_without_our_environment_are_reported(text: str, told: str) -> None:
    """The error says what is missing and what to do, without a stack."""
    line = first_line(RuntimeError(text))
    assert line.startswith("a Spark worker cannot run iotctl: ") and told in line and "PYSPARK_PYTHON" in line


def test_a_failed_task_is_reported_by_its_exception() -> None:
    text = "An error occurred\n  File x\nValueError: odd\n\n\tat org.apache"
    assert first_line(RuntimeError(text)) == "ValueError: odd"


@contextmanager
def spark_process(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's daemons in the foreground; killed at the end."""
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    env |= {"SPARK_DAEMON_JAVA_OPTS": options, "SPARK_WORKER_DIR": str(log.parent / "work")}
    with log.open("wb") as out:
        words = (str(SPARK / "bin" / "spark-class"), *words)
        process = subprocess.Popen(words, stdout=out, stderr=out, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(log: Path, pattern: str) -> str:
    """Return the first group of `pattern` once the output of the daemon matches."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := re.search(pattern, log.read_text(errors="replace"))):
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)
    return found[1]


@contextmanager
def on_master(conf: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program with the jobs; at the end the program and its JVM have ended in any case."""
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(conf)}
    program = [sys.executable, "-m", "tests.pipeline.on_master", *words]
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(program, stdout=out, stderr=err, text=True, env=env, start_new_session=True) as run:
        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.spark
def test_a_real_master_without_workers_with_one_and_after_its_loss(tmp_path: Path) -> None:
    """Without a worker the lack is reported; with a worker jobs run, a missing Python is named, and the loss
    of the worker ends its job. The cluster only provides executors for tasks."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.dynamicAllocation.enabled true\nspark.dynamicAllocation.shuffleTracking.enabled true\n"
    )
    master_log, worker_log, started = tmp_path / "master.log", tmp_path / "worker.log", tmp_path / "started"
    with ExitStack() as stack:
        address = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        stack.enter_context(spark_process(master_log, "org.apache.spark.deploy.master.Master", *address))
        master = said(master_log, r"Starting Spark master at (spark://\S+)")
        alone = stack.enter_context(on_master(tmp_path, master))
        lines = alone.communicate(timeout=PATIENCE_S)[0].splitlines()
        assert "waiting for Spark executors (no executor yet; waiting up to 3 s)" in lines
        assert lines[-1].startswith(f"unavailable: Spark master {master} provided no executor for 3 s: ")

        size = ("--cores", "1", "--memory", "1g")
        worker = stack.enter_context(
            spark_process(worker_log, "org.apache.spark.deploy.worker.Worker", *address, *size, master)
        )
        busy = stack.enter_context(on_master(tmp_path, master, str(started)))
        deadline = time.monotonic() + PATIENCE_S
        while not started.exists():
            assert busy.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        worker.kill()
        lines = busy.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert "works: ([b'A', b'B'], None)" in lines
    lacks = next(line for line in lines if line.startswith("lacks: "))
    assert 'a Spark worker cannot run iotctl: Cannot run program "/no/such/python"' in lacks
    assert "losing (no executor yet; waiting up to 3 s)" in lines
    assert f"the Spark job failed: Spark master {master} provided no executor for 3 s" in lines[-1]
