"""The job ``archive``: events to a lake, acknowledged once they are there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from connections.spark.jobs.frame import Frame, counted, run, say
from connections.spark.jobs.lake import Format, settings, write_batch
from connections.spark.jobs.options import JobOptions, Owned, job_options, label_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LABEL: Final = "spark:archived"
COLUMNS: Final = (
    "thing_id", "namespace", "topic", "action", "path", "value", "revision", "timestamp",
    "headers", "requested_acks", "correlation_id", "bookmark", "shard",
)  # fmt: skip


class Archive:
    """The batch function: all rows to ``output``, as :func:`write_batch` does it."""

    def __init__(self, output: str, form: Format) -> None:
        self._output = output
        self._form: Format = form

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch and say so; nothing is written for an empty one."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        begun = time.perf_counter()
        # Counted while written: a count of its own would be one more Spark job.
        written = Observation()
        rows = df.select(*COLUMNS).observe(written, f.count(f.lit(1)).alias("events"))
        write_batch(rows, self._output, batch_id, form=self._form)
        if count := written.get["events"]:
            took = (time.perf_counter() - begun) * 1000
            say(f"batch {batch_id}: {counted(count, 'event')} archived, {took:.0f} ms")


@click.command()
@click.option("--output", required=True, metavar="DIR", help="Folder or address of the lake.")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "delta"]), default="parquet",
    show_default=True, help="Delta needs the package delta-spark.",
)  # fmt: skip
@label_options(LABEL)
@job_options(starting="earliest", trigger="5s")
def archive(options: JobOptions, owned: Owned, output: str, form: Format) -> None:
    """Write events to a Parquet or Delta lake; acknowledge them when they are there.

    Files are partitioned by date and namespace. A batch that runs again after a crash replaces its
    own files, so no event is there twice. More events in one batch make fewer and larger files:
    that is what --trigger is for; requests that wait for the label wait that much longer.
    """

    def build(frame: Frame) -> None:
        acknowledger = frame.acknowledger(Archive(output, form), owned)
        frame.start(
            frame.events().writeStream.foreachBatch(acknowledger), acknowledger=acknowledger
        )

    run("archive", options, build, settings(form))


if __name__ == "__main__":
    archive()
