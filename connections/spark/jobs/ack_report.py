"""The job ``ack-report``: how well each label is acknowledged, by windows of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from acks.journal import report_window_key, report_windows_key
from connections.spark.jobs.frame import Frame, JobRefused, counted, run, say
from connections.spark.jobs.lake import write_batch
from connections.spark.jobs.options import Duration, JobOptions, job_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_WINDOWS: Final = 10_000  # most windows in the store
_SPARE_MS: Final = 3_600_000  # that a window's rows outlive their place in the list
_ACCURACY: Final = 1_000  # of percentiles: the rank is right to 1/1000


def service_levels(outcomes: DataFrame, window_ms: int, delay_ms: int) -> DataFrame:
    """One row for each window and label, by the time at which requests ended.

    Each ack counts once, as one of: ``success`` (2xx of its owner), ``failed`` (another status of
    its owner), ``weak`` (issued by a gateway), ``timed_out``. Latencies, in ms after the request's
    beginning, are of the first two. Outcomes that come ``delay_ms`` later than newer ones are left
    out.
    """
    from pyspark.sql import functions as f

    answered = f.col("how") == "answered"
    good = f.col("status").between(200, 299)
    latency = f.when(answered, f.col("latency_ms"))
    window = f.window("ended", f"{window_ms} milliseconds").alias("window")
    levels = (
        outcomes.withWatermark("ended", f"{delay_ms} milliseconds")
        .groupBy(window, "label")
        .agg(
            f.count(f.lit(1)).alias("requested"),
            f.count_if(answered & good).alias("success"),
            f.count_if(answered & ~good).alias("failed"),
            f.count_if(f.col("how") == "weak").alias("weak"),
            f.count_if(f.col("how") == "timed_out").alias("timed_out"),
            f.percentile_approx(latency, [0.5, 0.95, 0.99], _ACCURACY).alias("percentiles"),
            f.max(latency).alias("max_ms"),
        )
    )
    return levels.select(
        f.col("window.start").alias("start"),
        f.col("window.end").alias("end"),
        "label", "requested", "success", "failed", "weak", "timed_out",
        *(f.col("percentiles")[at].alias(f"p{name}_ms") for at, name in enumerate((50, 95, 99))),
        "max_ms",
    )  # fmt: skip


class Publish:
    """The batch function that puts changed windows into the store, for ``GET /api/2/acks/report``.

    The store keeps the windows of the last ``keep_ms`` and forgets all when nothing new comes.
    """

    def __init__(self, url: str, prefix: str, keep_ms: int) -> None:
        self._url = url
        self._prefix = prefix
        self._keep_ms = keep_ms

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Put one batch's windows there; doing it twice is the same as once."""
        from pyspark.sql import functions as f

        from connections.spark.store import calls

        begun = time.perf_counter()
        # Not as timestamps, which the driver would turn into its own local time.
        times = (f.unix_millis(name).alias(f"{name}_ms") for name in ("start", "end"))
        rows = df.select("*", *times).collect()
        if not rows:
            return
        calls(self._url, self._commands(rows))
        took = (time.perf_counter() - begun) * 1000
        windows = len({row.start_ms for row in rows})
        figures = f"{counted(windows, 'window')}, {counted(len(rows), 'row')}"
        say(f"batch {batch_id}: {figures} reported, {took:.0f} ms")

    def _commands(self, rows: list[Row]) -> list[tuple[str | int, ...]]:
        index = report_windows_key(self._prefix)
        keep = self._keep_ms + _SPARE_MS
        commands: list[tuple[str | int, ...]] = []
        newest = 0
        for row in rows:
            newest = max(newest, row.start_ms)
            window = f"{row.start_ms}-{row.end_ms}"
            key = report_window_key(self._prefix, window)
            commands += [
                ("HSET", key, row.label, orjson.dumps(_shown(row)).decode()),
                ("PEXPIRE", key, keep),
                ("ZADD", index, row.start_ms, window),
            ]
        commands.append(("ZREMRANGEBYSCORE", index, "-inf", f"({newest - self._keep_ms}"))
        commands.append(("PEXPIRE", index, keep))
        return commands


def _shown(row: Row) -> dict[str, Any]:
    """A label's service level as the gateway shows it."""
    shown = {
        "requested": row.requested,
        "success": row.success,
        "failed": row.failed,
        "weak": row.weak,
        "timedOut": row.timed_out,
    }
    if row.max_ms is not None:
        shown["latencyMs"] = {
            "p50": row.p50_ms, "p95": row.p95_ms, "p99": row.p99_ms, "max": row.max_ms,
        }  # fmt: skip
    return shown


@click.command("ack-report")
@click.option(
    "--output",
    metavar="DIR",
    help="Folder for the windows as Parquet; each is written once, when it cannot change any more.",
)
@click.option(
    "--window",
    "window_ms",
    type=Duration(1_000),
    default="1m",
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--delay",
    "delay_ms",
    type=Duration(),
    default="1m",
    show_default=True,
    help="How late an outcome may come and still count: the watermark.",
)
@click.option(
    "--keep",
    "keep_ms",
    type=Duration(60_000),
    default="24h",
    show_default=True,
    help="How long the gateway shows a window.",
)
@job_options(starting="earliest", trigger="5s")
def ack_report(
    options: JobOptions, output: str | None, window_ms: int, delay_ms: int, keep_ms: int
) -> None:
    """Report how well each label is acknowledged: GET /api/2/acks/report, and Parquet.

    For windows of time and each label: how many acknowledgements were asked for, and how many of
    them were given (success, failed), issued by a gateway (weak) or timed out; and how long they
    took. It acknowledges nothing itself.
    """
    if keep_ms // window_ms > _WINDOWS:
        raise JobRefused(f"--keep has more than {_WINDOWS} times --window; choose larger windows")

    def build(frame: Frame) -> None:
        from connections.spark.store import resolve_url

        outcomes = frame.events(stream="outcomes", failOnDataLoss="false")
        levels = service_levels(outcomes, window_ms, delay_ms)
        publish = Publish(resolve_url(options.redis_url), options.prefix, keep_ms)
        frame.start(levels.writeStream.outputMode("update").foreachBatch(publish), part="report")
        if output:
            files = levels.writeStream.outputMode("append").foreachBatch(_writer(output))
            frame.start(files, part="parquet")

    # Without it a window would be final only when the outcome after the next has come.
    run("ack-report", options, build, {"spark.sql.streaming.noDataMicroBatches.enabled": "true"})


def _writer(output: str) -> Callable[[DataFrame, int], None]:
    def write(df: DataFrame, batch_id: int) -> None:
        write_batch(df, output, batch_id, time="start", by=())

    return write


if __name__ == "__main__":
    ack_report()
