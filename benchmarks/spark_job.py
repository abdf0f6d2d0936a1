"""The product's Spark connector as a user would start it, with a batch function that does nothing.

``python -m benchmarks.spark_job REDIS-URL LABEL FOLDER``; prints ``ready``.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from connections.spark import acknowledge, spark_session


def nothing(_batch: DataFrame, _batch_id: int) -> None:
    """The user's work: none, so that only the connector is measured."""


def main() -> None:
    """Run the query for ever; the starter ends this process."""
    url, label, folder = sys.argv[1:4]
    spark = spark_session("benchmark", local_dir=folder)
    stream = spark.readStream.format("ackgate").option("redisUrl", url)
    events = stream.option("startingOffsets", "earliest").load()
    query = (
        events.writeStream.foreachBatch(acknowledge(nothing, label, redis_url=url))
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    print("ready", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
