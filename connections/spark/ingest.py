"""A ready-made job: events to Parquet, acknowledged once they are written.

``python -m connections.spark.ingest --redis-url URL --output DIR --checkpoint DIR``, or through
spark-submit. Every batch is one folder ``batch=<id>`` that is overwritten as a whole, so a batch
that runs again after a crash leaves no row twice.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from acks.journal import DEFAULT_PREFIX
from connections.spark.acknowledger import Acknowledger, Poison
from connections.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_COLUMNS: Final = (
    "thing_id",
    "path",
    "value",
    "revision",
    "timestamp",
    "correlation_id",
    "requested_acks",
)
_START: Final = 120.0  # s until the query must run: the first start on a slow machine
_COMMIT: Final = 5.0  # s for the commit of the last batch
_LOOK: Final = 0.05  # s between two looks at the query's state


class ExplodeError(RuntimeError):
    """A row asked for a failing batch, as a demonstration."""


class Ingest:
    """The batch function: rows to ``output``; poison rows are left out and given back.

    A row is poison if its value has ``"poison": true`` and makes the batch fail if ``fail_on`` (a
    JSON path) is true in it; both are also looked for below ``attributes``.
    """

    def __init__(self, output: str, fail_on: str) -> None:
        self._output = output
        self._fail_on = fail_on

    def __call__(self, df: DataFrame, batch_id: int) -> list[Poison]:
        """Write one batch and print a line about it. Raises :class:`ExplodeError` when asked to."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        begun = time.perf_counter()
        marked = df.select(
            "correlation_id", _true("$.poison").alias("poison"), _true(self._fail_on).alias("fail")
        )
        marks = marked.where("poison or fail").collect()
        if any(row.fail for row in marks):
            raise ExplodeError(f"a row with {self._fail_on} true makes this batch fail")
        poison = sorted({row.correlation_id for row in marks})
        # Counted while written: a count of its own would be one more Spark job.
        written = Observation()
        good = df.where(~f.col("correlation_id").isin(poison)) if poison else df
        rows = good.select(*_COLUMNS).observe(written, f.count(f.lit(1)).alias("events"))
        rows.write.mode("overwrite").parquet(f"{self._output}/batch={batch_id}")
        took = (time.perf_counter() - begun) * 1000
        refused = f", {len(poison)} refused" if poison else ""
        _say(f"batch {batch_id}: {written.get['events']} events{refused}, {took:.0f} ms")
        return [
            Poison(correlation_id, 422, {"message": "the value is marked as poison"})
            for correlation_id in poison
        ]


def _true(path: str) -> Column:
    """Whether this JSON path is true in the row's value, or in the attributes of a whole thing."""
    from pyspark.sql import functions as f

    value = f.col("value")
    below = "$.attributes" + path.removeprefix("$")
    found = f.coalesce(f.get_json_object(value, path), f.get_json_object(value, below))
    return f.coalesce(found == "true", f.lit(False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until SIGTERM or SIGINT; returns the exit status."""
    asked = _parser().parse_args(arguments)
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    spark = spark_session("ackgate-ingest")
    # Spark's default is a form that other readers of Parquet take for local time.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # After the session: Spark puts a handler of its own there when it starts.
    signal.signal(signal.SIGINT, stop)
    try:
        with Acknowledger(
            Ingest(asked.output, asked.fail_on),
            asked.label,
            redis_url=asked.redis_url,
            prefix=asked.prefix,
            on_failure="skip",
        ) as acknowledger:
            source = spark.readStream.format("ackgate").option("prefix", asked.prefix)
            if asked.redis_url:
                source = source.option("redisUrl", asked.redis_url)
            query = (
                source.load()
                .writeStream.foreachBatch(acknowledger)
                .option("checkpointLocation", asked.checkpoint)
                .trigger(processingTime="0 seconds")
                .start()
            )
            _run(query, acknowledger, stopping, asked.ready_file)
    finally:
        spark.stop()
    return 0


def _run(
    query: StreamingQuery,
    acknowledger: Acknowledger,
    stopping: threading.Event,
    ready_file: str | None,
) -> None:
    """Say when the query runs, wait for the signal, let the batch that runs finish, stop.

    Raises the query's error if it ends by itself, TimeoutError if it does not come to run.
    """
    deadline = time.monotonic() + _START
    while not _is_running(query, acknowledger) and not stopping.wait(_LOOK):
        if not query.isActive:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query does not run after {_START:g} s")
    if query.isActive and not stopping.is_set():
        if ready_file:
            Path(ready_file).touch()
        _say("ready")
    while query.isActive and not stopping.wait(_LOOK):
        pass
    if query.isActive:
        acknowledger.close()
        _wait_committed(query, acknowledger.counters.last_batch)
        query.stop()
        _say("stopped")
    elif error := query.exception():
        raise error


def _wait_committed(query: StreamingQuery, batch: int) -> None:
    """Let Spark note the last batch as done, or it would run once more at the next start."""
    deadline = time.monotonic() + _COMMIT
    while query.isActive and time.monotonic() < deadline:
        progress = query.lastProgress
        if batch < 0 or (progress is not None and progress["batchId"] >= batch):
            return
        time.sleep(_LOOK)


def _is_running(query: StreamingQuery, acknowledger: Acknowledger) -> bool:
    """Whether every event from now on is certain to be seen.

    A new query has its start in the checkpoint when its first, empty batch is done; one that
    resumes has it from before and waits for data.
    """
    done = acknowledger.counters.batches + acknowledger.counters.failures
    return done > 0 or query.status["message"] == "Waiting for data to arrive"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m connections.spark.ingest",
        description="Write events to Parquet and acknowledge them.",
    )
    parser.add_argument(
        "--redis-url", help="the gateway's Redis; default: environment ACKGATE_REDIS_URL"
    )
    parser.add_argument("--output", required=True, help="folder for the Parquet files")
    parser.add_argument("--checkpoint", required=True, help="folder of the query's checkpoint")
    parser.add_argument("--label", default="spark:ingested", help="label to acknowledge with")
    parser.add_argument("--prefix", default=DEFAULT_PREFIX, help="prefix of the keys in Redis")
    parser.add_argument("--ready-file", help="file that is created when the query runs")
    parser.add_argument(
        "--fail-on",
        default="$.explode",
        metavar="JSONPATH",
        help="a batch with a value in which this path is true fails (default: %(default)s)",
    )
    return parser


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
