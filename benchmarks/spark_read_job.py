"""Reads everything once and says how long that took: ``python -m benchmarks.spark_read_job``.

Arguments: what (``batch``, ``stream``, ``parquet``, ``plain`` or ``write``, which makes the Parquet
files), address of the store, a folder to work in, the folder of the Parquet files. Prints a Sample
as JSON. Every system does the same with its rows: nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import orjson
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from acks.journal import DEFAULT_PREFIX, DEFAULT_SHARDS, EntryMeta, journal_key
from benchmarks.processes import family
from connections.spark import spark_session

PAGE = 1000
TRIGGER = "50000"
WARM = 20_000


class Largest:
    """The most memory of one Python process of this family while the block runs, in MB."""

    def __init__(self) -> None:
        self.mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.mb = max([self.mb, *map(_resident_mb, family(os.getpid()))])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _resident_mb(pid: int) -> float:
    """``VmRSS`` of a Python process, 0 for another."""
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith("python"):
            return 0
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    kib = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
    return kib[0] * 1024 / 1e6 if kib else 0


def journal(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("ackgate").option("redisUrl", url).options(**options).load()


def drop(table: DataFrame) -> None:
    """Make Spark produce every row, and throw it away."""
    table.write.format("noop").mode("overwrite").save()


def batch(spark: SparkSession, url: str, _folder: str, _files: str) -> None:
    drop(journal(spark, url))


def stream(spark: SparkSession, url: str, folder: str, _files: str) -> None:
    """Catch up with a backlog."""
    source = spark.readStream.format("ackgate").option("redisUrl", url)
    table = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=TRIGGER).load()
    writer = table.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


def parquet(spark: SparkSession, _url: str, _folder: str, files: str) -> None:
    drop(spark.read.parquet(files))


def plain(_spark: None, url: str, _folder: str, _files: str) -> None:
    """The least Python that reads entries and knows what they say, in one process."""
    redis: Any = Redis.from_url(url)
    for shard in range(DEFAULT_SHARDS):
        key, start = journal_key(DEFAULT_PREFIX, shard), "-"
        while page := redis.xrange(key, start, "+", PAGE):
            for _, fields in page:
                EntryMeta.from_json(orjson.loads(fields[b"m"]))
                orjson.loads(fields[b"h"])
            start = f"({page[-1][0].decode()}"


SYSTEMS = {"batch": batch, "stream": stream, "parquet": parquet, "plain": plain}


def main() -> None:
    what, url, folder, files = sys.argv[1:5]
    if what == "plain":
        entries, spark = 0, None
    else:
        spark = spark_session("benchmark", tuned=False, local_dir=folder)
        if what == "write":
            journal(spark, url).write.parquet(files)
            return
        # Java and the workers are warm for whoever reads.
        newest = json.dumps({str(shard): "latest" for shard in range(DEFAULT_SHARDS)})
        drop(journal(spark, url, startingOffsets=newest))
        drop(journal(spark, url).limit(WARM))
    redis = Redis.from_url(url)
    entries = sum(
        int(redis.xlen(journal_key(DEFAULT_PREFIX, shard))) for shard in range(DEFAULT_SHARDS)
    )
    with Largest() as largest:
        begin = time.perf_counter()
        SYSTEMS[what](spark, url, folder, files)  # type: ignore[operator]  # plain needs no Spark
        took = time.perf_counter() - begin
    figures = {"rows_per_s": entries / took, "python_mb": largest.mb}
    print(json.dumps({"figures": figures, "errors": {}}), flush=True)


if __name__ == "__main__":
    main()
