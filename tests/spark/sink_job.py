"""A driver that reads the journal and sends acks by the sink, as a process that tests may kill.

``sink_job.py {"redisUrl": …, "prefix": …, "checkpoint": …, …}``; further keys:
``master``, ``wheel`` (for the executors), ``conf``; ``hold``, where it stands still at the first
batch with rows: ``work`` on an executor before the rows are through, ``before`` or ``after`` the
acks in the sink's commit; ``mark``, a file it then writes with the process id of who stands still;
``go``, a file that lets it go on. ``ready`` is a file it writes when it runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from connections.spark import AckSink, spark_session
from connections.spark.sink import AckStreamWriter

LABEL = "spark:sunk"


def stand_still(mark: str, go: str) -> None:
    """Say so once, and wait; whoever comes later goes on."""
    try:
        with Path(mark).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    while not Path(go).exists():
        time.sleep(0.05)


def slow(df: DataFrame, mark: str, go: str) -> DataFrame:
    """The same rows, through a step that stands still."""

    def step(thing_id: str) -> str:
        stand_still(mark, go)
        return thing_id

    return df.withColumn("thing_id", f.udf(step, "string")("thing_id"))


def held_sink(when: str, mark: str, go: str) -> type[AckSink]:
    """The sink, standing still in its commit."""

    class Writer(AckStreamWriter):
        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - PySpark's name
            has_acks = any(part.acks for part in messages)
            if has_acks and when == "before":
                stand_still(mark, go)
            super().commit(messages, batchId)
            if has_acks and when == "after":
                stand_still(mark, go)

    class Sink(AckSink):
        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802 - the same
            return Writer(self._checked, schema)

    return Sink


def main(settings: dict[str, Any]) -> None:
    """Run until killed."""
    spark = spark_session(
        "sink-job",
        master=settings.get("master", "local[2]"),
        conf=settings.get("conf", {}),
        local_dir=settings["local"],
    )
    if wheel := settings.get("wheel"):
        spark.sparkContext.addPyFile(wheel)
    hold = settings.get("hold", "")
    if hold in ("before", "after"):
        spark.dataSource.register(held_sink(hold, settings["mark"], settings["go"]))
    where = {"redisUrl": settings["redisUrl"], "prefix": settings["prefix"]}
    source = spark.readStream.format("ackgate").options(**where, **settings.get("source", {}))
    events = source.load()
    if hold == "work":
        events = slow(events, settings["mark"], settings["go"])
    acks = events.withColumns({"label": f.lit(LABEL), "status": f.lit(200)})
    query = (
        acks.writeStream.format("ackgate-acks")
        .options(**where, labels=LABEL, **settings.get("sink", {}))
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start()
    )
    while query.isActive and query.lastProgress is None:
        if query.status["message"].startswith("Waiting for"):
            break
        time.sleep(0.05)
    Path(settings["ready"]).touch()
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
