"""The least Spark connector: a simple (driver-side) reader and a ``foreachBatch`` that acks.

``python -m benchmarks.baselines.spark_floor REDIS-URL LABEL FOLDER``. No label lease, no
recovery, no choice of reader: what any connector pays for Structured Streaming itself. Prints
``ready``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from redis import Redis
from typing_extensions import override

from acks.journal import DEFAULT_PREFIX, DEFAULT_SHARDS, EntryMeta, ack_channel, journal_key
from connections.spark.java import find_java

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.locality.wait": "0s",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""Settings that suit small batches; none of them changes what a batch means."""


class Reader(SimpleDataSourceStreamReader):
    """Reads all shards on the driver."""

    def __init__(self, url: str) -> None:
        """``url``: the store."""
        self._url = url
        self._redis: Redis | None = None

    @override
    def initialOffset(self) -> dict[str, str]:  # Spark's name
        """The journal's beginning; the store is fresh."""
        return {journal_key(DEFAULT_PREFIX, shard): "0" for shard in range(DEFAULT_SHARDS)}

    @override
    def read(self, start: dict[str, str]) -> tuple[Iterator[tuple[Any, ...]], dict[str, str]]:
        """Everything after ``start``."""
        self._redis = self._redis or Redis.from_url(self._url)
        rows: list[tuple[Any, ...]] = []
        end = dict(start)
        reply = self._redis.xread(cast(dict[Any, Any], start))
        for stream, entries in cast(list[tuple[bytes, list[Any]]], reply or []):
            for entry_id, fields in entries:
                end[stream.decode()] = entry_id.decode()
                meta = EntryMeta.from_json(json.loads(fields[b"m"]))
                rows.append(
                    (meta.correlation_id, meta.thing_id, meta.origin, fields[b"v"].decode())
                )
        return iter(rows), end

    @override
    def readBetweenOffsets(  # Spark's name
        self, start: dict[str, str], end: dict[str, str]
    ) -> Iterator[tuple[Any, ...]]:
        """Only needed after a restart, which does not happen here."""
        raise NotImplementedError

    @override
    def commit(self, end: dict[str, str]) -> None:
        """Nothing to do."""


class Journal(DataSource):
    """The journal as a streaming source named ``journal``."""

    @classmethod
    @override
    def name(cls) -> str:
        """The format's name."""
        return "journal"

    @override
    def schema(self) -> str:
        """What a row has."""
        return "correlation_id string, thing_id string, origin string, value string"

    @override
    def simpleStreamReader(self, schema: Any) -> Reader:  # Spark's name
        """The reader."""
        return Reader(self.options["url"])


def main() -> None:
    """Run the query for ever; the starter ends this process."""
    url, label, folder = sys.argv[1:4]
    find_java()
    builder = SparkSession.builder.master("local[*]").appName("floor")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Journal)
    redis = Redis.from_url(url)

    def acknowledge(batch: DataFrame, _batch_id: int) -> None:
        for row in batch.collect():
            record = [row.correlation_id, label, row.thing_id, 200, None]
            redis.publish(ack_channel(DEFAULT_PREFIX, row.origin), json.dumps([record]))

    stream = spark.readStream.format("journal").option("url", url).load()
    query = (
        stream.writeStream.foreachBatch(acknowledge)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("ready", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
