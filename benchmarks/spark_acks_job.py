"""Reads a backlog, writes it as Parquet, acknowledges it: ``python -m benchmarks.spark_acks_job``.

Arguments: how (``function``, ``source`` or ``plain``), address of the store, label, a folder to
work in. Prints ``ready`` when it is warm and begins; the starter ends it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from acks.journal import DEFAULT_PREFIX, DEFAULT_SHARDS, EntryMeta, journal_key
from connections.spark import acknowledge, spark_session
from connections.spark.sending import Ack, send

BATCH = 50_000
PAGE = 1_000
COLUMNS = ("thing_id", "path", "value", "revision", "timestamp", "correlation_id")
WARM = 20_000


def source(spark: SparkSession, url: str, label: str, folder: str) -> None:
    """The source's own acks: what the Parquet sink has committed."""
    events = _events(spark, url).option("ackLabels", label).load().select(*COLUMNS)
    writer = events.writeStream.format("parquet").option("path", f"{folder}/lake")
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


def function(spark: SparkSession, url: str, label: str, folder: str) -> None:
    """A function of a batch."""

    def store(batch: DataFrame, batch_id: int) -> None:
        batch.select(*COLUMNS).write.parquet(f"{folder}/lake/{batch_id}")

    acks = acknowledge(store, label, redis_url=url, persist=True)
    writer = _events(spark, url).load().writeStream.foreachBatch(acks)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


def _events(spark: SparkSession, url: str) -> Any:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH)}
    return spark.readStream.format("ackgate").option("redisUrl", url).options(**options)


def plain(url: str, label: str, folder: str) -> None:
    """The same in one Python process."""
    rows: list[tuple[Any, ...]] = []
    acks: list[Ack] = []
    files = 0
    for meta, value in _entries(url):
        rows.append(
            (
                meta.thing_id,
                meta.path,
                value.decode(),
                meta.revision,
                meta.timestamp,
                meta.correlation_id,
            )
        )
        if label in meta.requested_acks:
            acks.append(Ack(meta.correlation_id, meta.thing_id, meta.origin, label, 200))
        if len(rows) == BATCH:
            files += 1
            _write(rows, f"{folder}/{files}.parquet")
            send(url, DEFAULT_PREFIX, acks, lambda: DEFAULT_SHARDS)
            rows, acks = [], []
    if rows:
        _write(rows, f"{folder}/rest.parquet")
        send(url, DEFAULT_PREFIX, acks, lambda: DEFAULT_SHARDS)
    threading.Event().wait()


def _entries(url: str) -> Iterator[tuple[EntryMeta, bytes]]:
    redis: Any = Redis.from_url(url)
    for shard in range(DEFAULT_SHARDS):
        key, start = journal_key(DEFAULT_PREFIX, shard), "-"
        while page := redis.xrange(key, start, "+", PAGE):
            for _, fields in page:
                orjson.loads(fields[b"h"])
                yield EntryMeta.from_json(orjson.loads(fields[b"m"])), fields[b"v"]
            start = f"({page[-1][0].decode()}"


def _write(rows: list[tuple[Any, ...]], path: str) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), path)


def main() -> None:
    """Entry point."""
    how, url, label, folder = sys.argv[1:5]
    if how == "plain":
        print("ready", flush=True)
        plain(url, label, folder)
        return
    spark = spark_session("benchmark", tuned=False, local_dir=folder)
    newest = json.dumps({str(shard): "latest" for shard in range(DEFAULT_SHARDS)})
    table = spark.read.format("ackgate").option("redisUrl", url)
    table.option("startingOffsets", newest).load().write.parquet(f"{folder}/warm-1")
    table.option("startingOffsets", "earliest").load().limit(WARM).write.parquet(f"{folder}/warm-2")
    print("ready", flush=True)
    {"function": function, "source": source}[how](spark, url, label, folder)


if __name__ == "__main__":
    main()
