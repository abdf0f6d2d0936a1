"""The job ``validate``: events judged by rules, each once; acks say what came of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from connections.spark.jobs.frame import Frame, JobRefused, counted, run, say
from connections.spark.jobs.lake import write_batch
from connections.spark.jobs.options import Duration, JobOptions, Owned, job_options, label_options
from connections.spark.jobs.rules import Rules, RulesError, read_rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from connections.spark.acknowledger import Poison
    from connections.spark.jobs.judging import Judging

LABEL: Final = "spark:validated"
_KEY: Final = ("thing_id", "revision", "rules")
COLUMNS: Final = (
    "thing_id", "namespace", "action", "path", "value", "revision", "timestamp",
    "correlation_id", "requested_acks", "bookmark",
)  # fmt: skip


def remembering(events: DataFrame, rules: Rules, ms: int) -> DataFrame:
    """The events, and for each that has not been there within ``ms`` a row that says ``first``.

    Such a row has nothing but its bookmark. What has been there is Spark's state: it is in the
    checkpoint with the batch that saw it. An event is the same if it is the same revision of the
    same thing, judged by the same rules.
    """
    from pyspark.sql import functions as f

    if not ms:
        return events.withColumn("first", f.lit(False))
    # The watermark is of the time at which events are seen, so that none is ever too late: Spark
    # drops late rows, and nobody would answer the request behind a dropped one.
    keys = events.select(
        *_KEY[:2],
        f.lit(rules.fingerprint).alias("rules"),
        "bookmark",
        f.current_timestamp().alias("seen"),
    ).withWatermark("seen", f"{ms} milliseconds")
    firsts = keys.dropDuplicatesWithinWatermark([*_KEY]).select(
        "bookmark", f.lit(True).alias("first")
    )
    return events.withColumn("first", f.lit(False)).unionByName(firsts, allowMissingColumns=True)


class Validate:
    """The batch function. Its batches are what :func:`remembering` makes of the events.

    ``output`` and ``rejects`` are lakes for what is good and what is not; None: nowhere.
    """

    def __init__(
        self,
        judging: Judging,
        rules: Rules,
        label: str,
        output: str | None,
        rejects: str | None,
        *,
        remembers: bool,
    ) -> None:
        self._judging = judging
        self._order = {rule.name: number for number, rule in enumerate(rules.rules)}
        self._label = label
        self._output = output
        self._rejects = rejects
        self._remembers = remembers

    def __call__(self, df: DataFrame, batch_id: int) -> list[Poison]:
        """Judge one batch, write it, and return the refused rows whose requests wait."""
        begun = time.perf_counter()
        events, refused, again = self._verdicts(df)
        if not events:
            return []
        rows = df.where("not first").select(*COLUMNS)
        new = [row for row in refused if row.bookmark not in again]
        if self._output and events > len(again) + len(new):
            left_out = again.union(row.bookmark for row in refused)
            write_batch(_without(rows, left_out), self._output, batch_id)
        if self._rejects and new:
            write_batch(_with(rows, new), self._rejects, batch_id)
        took = (time.perf_counter() - begun) * 1000
        refusals = f", {len(refused)} refused" if refused else ""
        repeats = f", {len(again)} again" if again else ""
        say(f"batch {batch_id}: {counted(events, 'event')}{refusals}{repeats}, {took:.0f} ms")
        return [self._poison(row) for row in refused if row.asks]

    def _verdicts(self, df: DataFrame) -> tuple[int, list[Row], set[str]]:
        """How many events there are, those that break rules, and bookmarks of those seen before.

        One job that brings a short row of each event here.
        """
        from pyspark.sql import functions as f

        asks = f.array_contains("requested_acks", self._label).alias("asks")
        rows = self._judging.judged(df, "bookmark", "first", "correlation_id", asks).collect()
        events = [row for row in rows if not row.first]
        refused = [row for row in events if row.broken]
        again: set[str] = set()
        if self._remembers:
            again = {row.bookmark for row in events}.difference(
                row.bookmark for row in rows if row.first
            )
        return len(events), refused, again

    def _poison(self, row: Row) -> Poison:
        from connections.spark.acknowledger import Poison

        broken = sorted(row.broken, key=lambda one: self._order[one.rule])
        rules = dict.fromkeys(one.rule for one in broken)
        return Poison(
            row.correlation_id,
            broken[0].status,
            {
                "message": f"The event breaks {', '.join(rules)}.",
                "broken": [{"rule": one.rule, "reason": one.reason} for one in broken],
            },
        )


def _without(rows: DataFrame, bookmarks: set[str]) -> DataFrame:
    if not bookmarks:
        return rows
    from pyspark.sql import functions as f

    left_out = rows.sparkSession.createDataFrame([(one,) for one in bookmarks], "bookmark string")
    return rows.join(f.broadcast(left_out), "bookmark", "left_anti")


def _with(rows: DataFrame, refused: list[Row]) -> DataFrame:
    """The refused rows with their definition and what they break."""
    from pyspark.sql import functions as f

    facts = rows.sparkSession.createDataFrame(
        [(row.bookmark, row.definition, row.broken) for row in refused],
        "bookmark string, definition string, "
        "broken array<struct<rule: string, status: int, reason: string>>",
    )
    return rows.join(f.broadcast(facts), "bookmark")


@click.command()
@click.option(
    "--rules",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of the rules, .toml or .json.",
)
@click.option("--output", metavar="DIR", help="Lake for the events that break no rule.")
@click.option("--rejects", metavar="DIR", help="Lake for the others, with what they break.")
@label_options(LABEL)
@click.option(
    "--remember", "remember_ms", type=Duration(), default="1h", show_default=True,
    help="How long an event that is delivered again is recognised; 0s: not at all.",
)  # fmt: skip
@job_options(starting="latest", trigger="0s")
def validate(
    options: JobOptions,
    owned: Owned,
    file: Path,
    output: str | None,
    rejects: str | None,
    remember_ms: int,
) -> None:
    """Judge events by rules: 200 for those that break none, else 422 with the reasons.

    A rule is a JSON schema or a SQL expression for a part of things, and may be for things of one
    definition only (docs/spark-jobs.md). An event that is delivered again is written once and
    acknowledged again with what the rules say.
    """
    try:
        rules = read_rules(file)
    except RulesError as problem:
        raise JobRefused(str(problem)) from problem

    def build(frame: Frame) -> None:
        from connections.spark.jobs.judging import Judge, Judging, check_sql
        from connections.spark.store import resolve_url, shard_count

        events = frame.events()
        try:
            check_sql(frame.spark, rules, events)
        except RulesError as problem:
            raise JobRefused(f"{file}: {problem}") from problem
        url = resolve_url(options.redis_url)
        judge = Judge(rules, url, options.prefix, shard_count(url, options.prefix))
        judging = Judging(judge)
        judging.try_out(frame.spark, events.schema)
        function = Validate(judging, rules, owned.label, output, rejects, remembers=remember_ms > 0)
        # Kept in memory while it is worked on: judging, writing and acknowledging read it.
        acknowledger = frame.acknowledger(function, owned, persist=True)
        batches = remembering(events, rules, remember_ms)
        frame.start(batches.writeStream.foreachBatch(acknowledger), acknowledger=acknowledger)

    # A value that cannot be cast is NULL, so not true: it must not end the job.
    run("validate", options, build, {"spark.sql.ansi.enabled": "false"})


if __name__ == "__main__":
    validate()
