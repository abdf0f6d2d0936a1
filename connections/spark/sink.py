"""Acks as a PySpark sink: ``df.writeStream.format("ackgate-acks")``, and ``df.write`` alike.

By default the driver sends a batch's acks in ``commit``, when all its partitions are through. With
sendOn=executors each partition's acks are sent when its rows are there, whatever the others do.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from acks.declared import check_group
from acks.journal import DEFAULT_PREFIX
from connections.spark.ack_rows import AckRows, BadRow
from connections.spark.options import DRIVER, EXECUTORS, Given, OptionError, read_labels
from connections.spark.patience import Patience
from connections.spark.query_labels import QueryLabels
from connections.spark.sending import Ack, send
from connections.spark.store import resolve_url, shard_count

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

NAME: Final = "ackgate-acks"
#: Spark's own options of a query come along with the sink's.
_SPARKS: Final = ("checkpointLocation", "queryName")
_NAMES: Final = (
    *("redisUrl", "prefix", "storeTimeout", "labels", "ackGroup", "sendOn", "onBadRows"),
    *_SPARKS,
)
_PIECE: Final = 10_000  # acks of one round trip
# Set by Spark for every task of a streaming query.
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the sink, checked. ``url`` may hold a password."""

    url: str = field(repr=False)
    prefix: str
    patience: float  # s that a store which is away is waited for
    labels: tuple[str, ...]
    group: str
    send_on: str  # driver | executors
    skip_bad: bool

    def labels_of(self, query: str, run: str) -> QueryLabels:
        """The labels in the name of a query."""
        return QueryLabels(self.url, self.prefix, self.labels, self.group, query, run)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options. Raises OptionError, and StoreError if there is no usable Redis address."""
    options = Given(given, _NAMES)
    labels = read_labels(options, "labels")
    if not labels:
        raise OptionError("labels is needed: the labels that the rows may have, with commas")
    group = options.text("ackGroup")
    if group:
        check_group(group, labels)
    return SinkOptions(
        url=resolve_url(options.text("redisUrl")),
        prefix=options.text("prefix", DEFAULT_PREFIX),
        patience=float(options.positive("storeTimeout", 60)),
        labels=labels,
        group=group,
        send_on=options.one_of("sendOn", DRIVER, EXECUTORS),
        skip_bad=options.one_of("onBadRows", "fail", "skip") == "skip",
    )


class AckSink(DataSource):
    """Rows become acks; options and columns are described in docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._checked = sink_options(options)

    @classmethod
    @override
    def name(cls) -> str:
        """What goes into ``format(...)``."""
        return NAME

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Writer of ``df.writeStream``."""
        if overwrite:
            raise OptionError("acks are never taken back: use outputMode append or update")
        return AckStreamWriter(self._checked, schema)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Writer of ``df.write``."""
        if overwrite:
            raise OptionError("acks are never taken back: use mode append")
        return AckBatchWriter(self._checked, schema)


class Told(NamedTuple):
    """For whom a task works."""

    query: str
    run: str


@dataclass
class Part(WriterCommitMessage):
    """What a task hands to the driver: whose it is, the acks that are not sent, and bad rows."""

    told: Told
    acks: list[Ack]
    bad: int


class _Writing:
    """What both writers share. It travels to executors, so it can be pickled."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._rows = AckRows(schema, options.labels)

    def _write(self, batches: Iterator[pa.RecordBatch], told: Told) -> Part:
        bad = 0

        def count(problem: BadRow) -> None:
            nonlocal bad
            if not self._options.skip_bad:
                raise problem
            bad += 1
            log.warning("left out: %s", problem)

        acks = self._rows.acks(batches, count)
        if self._options.send_on == DRIVER:
            return Part(told, list(acks), bad)
        self._send(acks, told)
        return Part(told, [], bad)

    def _finish(self, messages: Sequence[WriterCommitMessage | None], batch: str) -> None:
        parts = [part for part in messages if isinstance(part, Part)]
        if bad := sum(part.bad for part in parts):
            log.warning("%s: %d rows were no acks and were left out", batch, bad)
        if parts:
            self._send((ack for part in parts for ack in part.acks), parts[0].told)

    def _send(self, acks: Iterable[Ack], told: Told) -> None:
        """Claim the labels, even if there is nothing to send, and send."""
        options, left = self._options, iter(acks)
        labels, patience = options.labels_of(*told), Patience(options.patience)
        piece = [*islice(left, _PIECE)]
        patience.ask(labels.hold_soon)
        while piece:
            send_piece = partial(send, options.url, options.prefix, piece, self._shards)
            if unheard := patience.ask(send_piece):
                log.warning("%d messages with acks were heard by no gateway", unheard)
            if piece := [*islice(left, _PIECE)]:
                patience.ask(labels.hold_soon)

    def _shards(self) -> int:
        return _shard_count(self._options.url, self._options.prefix)


@lru_cache(maxsize=16)
def _shard_count(url: str, prefix: str) -> int:
    """It never changes, and a writer is made anew for every batch."""
    return shard_count(url, prefix)


class AckStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Sends the acks of a streaming query's batches. A batch that runs again sends them again."""

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        task = TaskContext.get()
        query, run = (task.getLocalProperty(name) if task else None for name in (_QUERY, _RUN))
        if not query or not run:
            raise RuntimeError("Spark does not say which query this task belongs to")
        return self._write(iterator, Told(query, run))

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._finish(messages, f"batch {batchId}")

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back: the batch runs again, or its requests time out."""


class AckBatchWriter(_Writing, DataSourceArrowWriter):
    """Sends the acks of one DataFrame; owns the labels only meanwhile."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._told = Told(secrets.token_hex(8), "write")

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        return self._write(iterator, self._told)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self._finish(messages, "write")
        finally:
            self._options.labels_of(*self._told).free()

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._options.labels_of(*self._told).free()
