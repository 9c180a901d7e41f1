"""A Spark session with the settings that were measured to matter, and with our format registered.

Most of what a small job costs is waiting that these settings take away: Unix sockets instead of TCP between the JVM and
Python (40 ms per task), a checkpoint manager that starts no process for each file (80 ms per micro-batch), and an
interpreter that finds PySpark compiled (0.6 s for each of its processes). docs/operations.md says what each is.
"""

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping

from pyspark.sql import SparkSession

from .datasource import TailraceDataSource
from .java import find_java, install

SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

#: Arrow checks every access in the JVM, and asks twice whether a value is there. What comes is from our own processes,
#: and Spark has asked before. That is a sixth of a scan.
JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_JAVA = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

_PYTHON = """#!/bin/sh
# Spark puts an archive with PySpark's sources first on the path, which every worker process would compile anew.
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -v '/pyspark\\.zip$' | paste -sd : -)
export PYTHONPATH
exec {python} "$@"
"""


def session(
    name: str = "tailrace",
    *,
    master: str = "local[*]",
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session, with the format `tailrace` registered. `memory` is the driver's; `settings` go over ours, and options
    of Java are added to them.

    `master`: this machine by default. On a cluster every machine needs this Python environment under the same path (or
    set PYSPARK_PYTHON to where it is) and the world's folder under the same path.
    """
    folder = tempfile.mkdtemp(prefix="tailrace-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAVA_HOME"] = install(find_java(os.environ), folder)
    local = master.startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", _worker_python(folder) if local else sys.executable)
    builder = SparkSession.builder.appName(name).master(master).config("spark.driver.memory", memory)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    if local:
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", str(os.cpu_count() or 1))
    given = dict(settings or {})
    for key in _JAVA:
        given[key] = f"{JAVA_OPTIONS} {given.get(key, '')}".strip()
    for key, value in given.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Make the format `tailrace` known to a session of your own."""
    spark.dataSource.register(TailraceDataSource)
    return spark


def _worker_python(folder: str) -> str:
    path = os.path.join(folder, "python")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PYTHON.format(python=shlex.quote(sys.executable)))
    os.chmod(path, 0o755)
    return path
