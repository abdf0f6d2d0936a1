"""The frame of every job: a session, its queries, a word when they run, and a clean stop."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from connections.spark.java import JavaNotFoundError
from connections.spark.jobs.options import JobOptions, Owned

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from connections.spark.acknowledger import Acknowledger, BatchFunction

_START: Final = 120.0  # s until the queries must run: the first start on a slow machine
_COMMIT: Final = 10.0  # s for the end and the commit of the last batch
_TAKE_OVER: Final = 9.0  # s: longer than the lease of a label lives without its owner
_LOOK: Final = 0.05  # s between two looks at a query's state
_WAITING: Final = ("Waiting for data to arrive", "Waiting for next trigger")
_LINES: Final = 25  # of a failure's text
_PYTHON_CAUSE: Final = re.compile(
    r"^(?:[\w.]+Error|[\w.]+Exception|[\w.]+Taken|[\w.]+Lost): .*", re.M
)


class JobRefused(click.ClickException):
    """The job cannot start; the text says what to put right."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        """Print the text as every ackgate command does."""
        click.echo(f"ackgate: error: {self.message}", err=True)


class JobFailed(JobRefused):
    """The job ended by itself; its batch runs again at the next start."""

    exit_code = 1


def say(line: str) -> None:
    """Tell the person one thing, at once even if nobody looks at a terminal."""
    click.echo(line)


def counted(number: int, noun: str) -> str:
    """``1 event``, ``2 events``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class _Running(NamedTuple):
    query: StreamingQuery
    acknowledger: Acknowledger | None


class Frame:
    """What a job's ``build`` function gets: where to read, how to acknowledge, how to start.

    Acknowledgers are closed, so labels freed, when the job ends.
    """

    def __init__(self, spark: SparkSession, options: JobOptions, stack: ExitStack) -> None:
        self.spark = spark
        self.options = options
        self.running: list[_Running] = []
        self._stack = stack

    def events(self, **more: str) -> DataFrame:
        """The stream to read; ``more`` are options of the source that the job itself sets."""
        given = {**more, **_source_options(self.options)}
        return self.spark.readStream.format("ackgate").options(**given).load()

    def acknowledger(
        self, function: BatchFunction, owned: Owned, *, persist: bool = False
    ) -> Acknowledger:
        """A batch function that acknowledges with the label after ``function`` has returned.

        Waits for a label whose owner may have crashed. Raises LabelTaken, StoreError.
        """
        from connections.spark.acknowledger import Acknowledger

        return self._stack.enter_context(
            Acknowledger(
                function,
                owned.label,
                group=owned.group,
                redis_url=self.options.redis_url,
                prefix=self.options.prefix,
                persist=persist,
                label_timeout=_TAKE_OVER,
            )
        )

    def start(
        self, writer: DataStreamWriter, *, acknowledger: Acknowledger | None = None, part: str = ""
    ) -> None:
        """Start a query; ``part`` names its place in the checkpoint if the job has several."""
        options = self.options
        checkpoint = f"{options.checkpoint.rstrip('/')}/{part}" if part else options.checkpoint
        writer = writer.option("checkpointLocation", checkpoint)
        if options.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{options.trigger_ms} milliseconds")
        self.running.append(_Running(writer.start(), acknowledger))


def run(
    name: str,
    options: JobOptions,
    build: Callable[[Frame], None],
    conf: dict[str, str] | None = None,
) -> None:
    """Run a job until SIGTERM or SIGINT, or with ``once`` until it has caught up.

    ``build`` starts the queries; ``conf`` are settings of Spark that the job needs. Raises
    :class:`JobRefused` if the job cannot start, :class:`JobFailed` if a query fails.
    """
    # What Spark says of SQL that it refuses is in the exception, and so in our own line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    _check_source(options)
    signal.signal(signal.SIGTERM, stop)
    spark = _session(name, options, conf or {})
    # After the session: Spark puts a handler of its own there when it starts.
    signal.signal(signal.SIGINT, stop)
    try:
        with ExitStack() as stack:
            frame = Frame(spark, options, stack)
            _build(frame, build)
            _follow(frame.running, options, stopping)
    finally:
        spark.stop()


def query_id(df: DataFrame) -> str:
    """The id of the query whose batch this is; it lies in the checkpoint and survives restarts."""
    found: str | None = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise RuntimeError("this is not a batch of a streaming query")
    return found


def _source_options(options: JobOptions) -> dict[str, str]:
    """The options of the source that the user has chosen, in whichever way."""
    given = {
        "prefix": options.prefix,
        "startingOffsets": options.starting_offsets,
        "maxOffsetsPerTrigger": str(options.max_events),
    }
    if options.redis_url:
        given["redisUrl"] = options.redis_url
    return given | dict(options.source)


def _check_source(options: JobOptions) -> None:
    """Look at the options and at the store before Spark takes its time to start."""
    from connections.spark.options import STREAM, OptionError, read_options
    from connections.spark.store import AWAY, StoreError, shard_count

    try:
        read = read_options(_source_options(options))
        read.check_for(STREAM)
        shard_count(read.url, read.prefix)
    except (OptionError, StoreError, *AWAY) as problem:
        raise JobRefused(str(problem)) from problem


def _session(name: str, options: JobOptions, conf: dict[str, str]) -> SparkSession:
    from connections.spark.session import spark_session

    settings = {
        # Dates of partitions must not depend on where the job runs.
        "spark.sql.session.timeZone": "UTC",
        # Spark's default is a form that other readers of Parquet take for local time.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        **conf,
        **dict(options.conf),
    }
    try:
        return spark_session(
            f"ackgate-{name}", tuned=options.tuned, master=options.master, conf=settings
        )
    except JavaNotFoundError as problem:
        raise JobRefused(str(problem)) from problem


def _build(frame: Frame, build: Callable[[Frame], None]) -> None:
    from pyspark.errors import AnalysisException, PySparkException

    from acks.errors import GatewayError
    from connections.spark.labels import LabelTaken
    from connections.spark.store import AWAY, StoreError

    try:
        build(frame)
    except (LabelTaken, GatewayError, StoreError, *AWAY) as problem:
        raise JobRefused(str(problem)) from problem
    except AnalysisException as problem:
        # The source's own refusal of an option is the Python exception in this text.
        raise JobRefused(_cause(str(problem))) from problem
    except PySparkException as problem:
        raise JobFailed(_cause(str(problem))) from problem


def _follow(running: list[_Running], options: JobOptions, stopping: threading.Event) -> None:
    """Say when the queries run, wait for the signal, let the batch that runs finish, stop.

    Raises JobFailed if a query ends by itself, or does not come to run in time.
    """
    deadline = time.monotonic() + _START
    waiting = list(running)
    while waiting and not stopping.wait(_LOOK):
        _check(running)
        waiting = [one for one in waiting if one.query.isActive and not _runs(one.query)]
        if time.monotonic() > deadline:
            raise JobFailed(f"the query does not run after {_START:g} s")
    if not stopping.is_set():
        if options.ready_file:
            options.ready_file.touch()
        say("ready")
    while any(one.query.isActive for one in running) and not stopping.wait(_LOOK):
        _check(running)
    _check(running)
    for one in running:
        _stop(one)
    say("stopped" if stopping.is_set() else "caught up")


def _runs(query: StreamingQuery) -> bool:
    """Whether every event from now on is certain to be seen.

    A new query has its start in the checkpoint when its first batch is done; one that resumes has
    it from before and waits for data.
    """
    return query.lastProgress is not None or query.status["message"] in _WAITING


def _check(running: list[_Running]) -> None:
    for query, _ in running:
        if not query.isActive and (error := query.exception()) is not None:
            raise JobFailed(f"the query failed: {_cause(str(error))}") from error


def _stop(one: _Running) -> None:
    """Let the batch that runs be finished and noted as done, or it would run once more."""
    query, acknowledger = one
    if acknowledger is not None:
        acknowledger.close()
    deadline = time.monotonic() + _COMMIT
    while query.isActive and time.monotonic() < deadline:
        if acknowledger is None:
            if not query.status["isTriggerActive"]:
                break
        elif _noted(query, acknowledger.counters.last_batch):
            break
        time.sleep(_LOOK)
    query.stop()


def _noted(query: StreamingQuery, batch: int) -> bool:
    progress = query.lastProgress
    return batch < 0 or (progress is not None and progress["batchId"] >= batch)


def _cause(text: str) -> str:
    """What went wrong, without the stacks of three languages around it."""
    causes = _PYTHON_CAUSE.findall(text)
    if causes:
        return str(causes[-1])
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines[:_LINES])
