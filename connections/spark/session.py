"""A local SparkSession that is quiet, finds its Java, and is tuned for small, frequent batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connections.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# What each setting was worth on a 2-core machine is in docs/spark.md.
TUNED: Final[dict[str, str]] = {
    # Look for new events at once; the default waits 10 ms between looks.
    "spark.sql.streaming.pollingDelay": "1ms",
    # No extra empty batch after each batch: there is no state whose watermark must move.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Small batches do not repay many shuffle tasks.
    "spark.sql.shuffle.partitions": "1",
    # Streaming does without adaptive execution; so should the queries inside a batch.
    "spark.sql.adaptive.enabled": "false",
    # A small batch is over before its generated code would be compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One machine: no task waits for a better place.
    "spark.locality.wait": "0s",
    # Plain files instead of FileContext, which starts a chmod process for every file it writes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    # No .crc file beside every file on the local disk.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # No second checksum file beside every checkpoint file.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The fast compiler only: batches this small never earn back what the optimising one takes from
    # the same cores.
    _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1",
}


def spark_session(
    app_name: str,
    *,
    tuned: bool = True,
    driver_memory: str = "1g",
    ui: bool = False,
    local_dir: str | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Build (or get) the SparkSession of this process and register ackgate's formats.

    Outside ``spark-submit`` it is local with all cores, bound to 127.0.0.1, and Java is found by
    :func:`connections.spark.java.find_java`; inside, master and memory stay as submitted.
    ``tuned`` applies :data:`TUNED`; ``local_dir`` is where Spark keeps scratch files; ``master``
    and the settings in ``conf`` win over everything else. Raises JavaNotFoundError.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        find_java()
        # Without this Spark asks the host name's address, which laptops and containers get wrong.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers must run the Python that has this package, not whatever python3 is on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    from pyspark.sql import SparkSession

    from connections.spark import register

    builder = SparkSession.builder.appName(app_name)
    settings = {
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if submitted:
        settings["spark.log.level"] = "ERROR"
    else:
        settings |= {"spark.master": "local[*]", "spark.driver.memory": driver_memory}
    if local_dir is not None:
        settings["spark.local.dir"] = local_dir
    if tuned:
        settings |= TUNED
    if master is not None:
        settings["spark.master"] = master
    settings |= conf or {}
    if not submitted:
        # Spark talks a lot at its start before any setting of its own can stop it.
        quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.json').as_uri()}"
        java = settings.get(_JAVA_OPTIONS)
        settings[_JAVA_OPTIONS] = f"{java} {quiet}" if java else quiet
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
