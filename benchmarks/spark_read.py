"""Benchmark ``spark_read``: a million journal entries as rows of Spark, against Parquet files."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.journal_fill import fill
from benchmarks.measure import Result, Sample, interleave
from benchmarks.processes import REPOSITORY, Lab, Store, python, redis_server, running

ENTRIES = 1_000_000
LONGEST_S = 600.0
SYSTEMS = {
    "spark.read": "batch",
    "spark.readStream": "stream",
    "Parquet": "parquet",
    "plain consumer": "plain",
}


def read(lab: Lab, store: Store, files: str, what: str) -> str:
    """One process that reads everything in one way; what it prints."""
    with tempfile.TemporaryDirectory(dir=lab.folder) as folder:
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": folder,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(REPOSITORY),
        }
        log = Path(lab.folder) / "spark_read.log"
        command = python("-m", "benchmarks.spark_read_job", what, store.url, folder, files)
        with running(command, core=None, log=log, env=environment, output=True) as process:
            return process.finish(LONGEST_S)


def spark_read(lab: Lab, rounds: int, _seconds: float) -> Result:
    """Rows a second and memory; the journal and the Parquet files hold the same rows."""
    result = Result(
        "spark_read",
        f"{ENTRIES:,} journal entries read by Spark (rows are produced and dropped)",
        [],
        ["rows_per_s", "python_mb"],
        notes=[
            "`spark.readStream` catches up with a backlog, 50,000 entries a batch; `plain "
            "consumer` is one Python process that parses the entries and makes no rows.",
            "`python_mb` is the largest Python process of Spark, driver's and executors'.",
        ],
    )
    lab = Lab(lab.folder, None, None, lab.redis)

    def sample(what: str, store: Store, files: str) -> Sample:
        return Sample.from_json(json.loads(read(lab, store, files, what)))

    with (
        redis_server(lab, appendfsync="no") as store,
        tempfile.TemporaryDirectory(dir=lab.folder) as folder,
    ):
        files = f"{folder}/parquet"
        fill(store.url, ENTRIES)
        read(lab, store, files, "write")
        systems = {name: partial(sample, what, store, files) for name, what in SYSTEMS.items()}
        return interleave(result, systems, rounds)
