"""A Spark session: quiet, on loopback if local, with the same Python in driver and workers.

Necessary settings:

- `spark.speculation=false`: the refused commit of a losing attempt counts as a failure (SPARK-56564);
- `local[N]` becomes `local[N,3]`: without the second number, a task that dies is never retried;
- `spark.python.worker.faulthandler.enabled`: a native crash leaves a stack in the log;
- workers get our packages through PYTHONPATH (local) or as a zip (elsewhere), because classes are pickled by
  reference. The dependencies of the packages must be installed there.
"""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from iotctl.pipeline.executors import EXECUTOR_WAIT_S, check_master, is_local
from iotctl.pipeline.jobs import await_executors
from iotctl.pipeline.report import Progress, Silent
from nodeagent.model.errors import Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
DEFAULT_MASTER = "local[*]"
TASK_ATTEMPTS = 3
STOP_TIMEOUT_S = 15.0
"""How long Spark, and then its JVM, may take to exit before the JVM is killed."""

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
"""

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def check_java() -> int:
    """The major version of the Java that Spark will use.

    Raises:
        Refused: there is no Java, or it is older than `JAVA_MIN`.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"install a Java runtime {JAVA_MIN} or newer, or set JAVA_HOME to one"
    if not java or not Path(java).exists():
        raise Refused(f"Spark needs Java {JAVA_MIN} or newer; none was found", next_step=advice)
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    version = java_major(done.stderr + done.stdout)
    if version is None or version < JAVA_MIN:
        raise Refused(
            f"Spark needs Java {JAVA_MIN} or newer; {java} has version {version or 'unknown'}",
            next_step=advice,
        )
    return version


def java_major(text: str) -> int | None:
    """Major version in the output of `java -version`; "1.8.0" is 8."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def with_retries(master: str) -> str:
    """`local` and `local[N]` with the number of attempts per task; any other master unchanged."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{found[1] or '1'},{TASK_ATTEMPTS}]" if found else master


@contextlib.contextmanager
def spark_session(
    app: str,
    master: str = DEFAULT_MASTER,
    progress: Progress | None = None,
    executor_wait_s: float = EXECUTOR_WAIT_S,
) -> Iterator["SparkSession"]:
    """A session that can run tasks; at the end of the block it is stopped and its scratch directory deleted.

    Raises:
        Refused: there is no suitable Java.
        Unavailable: no master answers, the master provides no executor that can run iotctl, or Spark did not
            start; in the last case, the message ends with Spark's output.
    """
    check_java()
    progress = progress or Silent()
    progress.update("starting Spark", note=master)
    check_master(master)
    scratch = Path(tempfile.mkdtemp(prefix="iotctl-spark-"))
    try:
        with _quiet_logs():
            session = _start(app, master, scratch)
            try:
                if not is_local(master):
                    await_executors(session, progress, executor_wait_s)
                yield session
            finally:
                _stop(session)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _start(app: str, master: str, scratch: Path) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app).master(with_retries(master))
    for key, value in _settings(master, scratch).items():
        builder = builder.config(key, value)
    log = scratch / "spark.log"
    with _environment(master), _stderr_to(log):
        try:
            session = builder.getOrCreate()
        except Exception as error:  # pyspark, py4j and the JVM each raise their own
            tail = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
            said = [line for line in str(error).splitlines() if line.strip()][:1]
            raise Unavailable(
                f"Spark did not start on master {master}: {'; '.join(said + tail)}",
                next_step="check --master, JAVA_HOME and the free memory",
            ) from error
    if not is_local(master):
        session.sparkContext.addPyFile(str(_zip_packages(scratch)))
    return session


def _stop(session: "SparkSession") -> None:
    """Stop Spark and its JVM: a later session may need another master or other JVM options.

    Never raises and never hangs: a signal during a call leaves the connection to the JVM unusable, and errors
    of Spark must not replace the error that ended the block.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)

    def ask() -> None:
        with contextlib.suppress(Exception):
            session.stop()
        with contextlib.suppress(Exception):
            if gateway is not None:
                gateway.shutdown()

    asking = threading.Thread(target=ask, name="spark-stop", daemon=True)
    asking.start()
    try:
        asking.join(STOP_TIMEOUT_S)
        if process is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Silences py4j, which logs a traceback for every call that a signal interrupts, to stderr if the root
    logger has no handler."""
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silent)


def _settings(master: str, scratch: Path) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    java_options = f"-Dlog4j2.configurationFile={log4j.as_uri()} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.speculation": "false",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": java_options,
    }
    if is_local(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "768m",
        }
    return settings


@contextlib.contextmanager
def _environment(master: str) -> Iterator[None]:
    """Sets the environment that the JVM and, through it, the Python workers inherit at launch."""
    elsewhere = sys.executable if is_local(master) else os.environ.get("PYSPARK_PYTHON", sys.executable)
    wanted = {"PYSPARK_PYTHON": elsewhere, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local(master):
        inherited = os.environ.get("PYTHONPATH", "")
        wanted["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), inherited]))
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Let the JVM inherit a log file as its stderr: it prints warnings before it reads any setting."""
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("ab") as target:
        os.dup2(target.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _zip_packages(scratch: Path) -> Path:
    target = scratch / "iotctl_packages.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("iotctl", "nodeagent"):
            for path in sorted((_PACKAGE_ROOT / package).rglob("*.py")):
                archive.write(path, path.relative_to(_PACKAGE_ROOT))
    return target
