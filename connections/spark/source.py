"""The journal as a PySpark data source: ``spark.readStream.format("ackgate")``.

Two ways to read a stream (option ``readOn``): on the driver, which saves a Python worker's round
trip and is fast for few events; on executors, one partition per shard, for many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import redis
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from connections.spark.options import ReadOptions, read_options
from connections.spark.pages import Journal, Offset
from connections.spark.rows import SCHEMA, record_batch
from connections.spark.store import AWAY

log = logging.getLogger(__name__)

_UNLIMITED = 2**31
_PATIENCE = 60.0  # s
_PAUSE = 0.2  # s between two tries


class AckgateDataSource(DataSource):
    """Events of the journal as rows; options and columns are described in docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read = read_options(options)

    @classmethod
    @override
    def name(cls) -> str:
        """What goes into ``format(...)``."""
        return "ackgate"

    @override
    def schema(self) -> StructType:
        """The columns; they do not depend on options."""
        return SCHEMA

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of ``spark.read``."""
        return _BatchReader(self._read)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reader of ``spark.readStream`` with readOn=executors."""
        if self._read.read_on != "executors":
            # PySpark then asks for simpleStreamReader.
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "streamReader"}
            )
        return _ExecutorReader(self._read)

    @override
    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        """Reader of ``spark.readStream`` with readOn=driver."""
        return _DriverReader(self._read)


class _Beginning:
    """Where a query without checkpoint starts, and that it is written down before any event.

    The first batch is kept empty: its end, which Spark puts into the checkpoint, is the start. So
    a query that dies in its first batch does not start at a later "latest" when it comes back.
    """

    def __init__(self, journal: Journal, starting: str) -> None:
        self._journal = journal
        self._starting = starting
        self._unwritten: Offset | None = None

    def offset(self) -> Offset:
        """The offset for ``initialOffset``."""
        if self._starting == "earliest":
            return self._journal.earliest()
        self._unwritten = self._journal.latest()
        return self._unwritten

    def is_unwritten(self, start: Offset) -> bool:
        """True once, when ``start`` is the offset that was just made up."""
        fresh = start == self._unwritten
        self._unwritten = None
        return fresh


class _Patience:
    """Rides out a store that is away for a moment, as at its restart: nothing new is there then.

    Nothing is lost by it, the offset stays. After :data:`_PATIENCE` seconds the error goes through.
    """

    def __init__(self) -> None:
        self._away_since: float | None = None

    def is_away(self, problem: redis.RedisError) -> bool:
        """Called with each failure in a row; false when patience is over."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
            log.warning("the store does not answer, trying again: %s", problem)
        if now - self._away_since > _PATIENCE:
            return False
        time.sleep(_PAUSE)
        return True

    def is_back(self) -> None:
        """Called with each success."""
        self._away_since = None


class _DriverReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._journal = Journal(options)
        self._limit = options.max_offsets
        self._patience = _Patience()
        self._beginning = _Beginning(self._journal, options.starting or "latest")
        self._until: Offset | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        return self._beginning.offset()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._journal.latest()

    @override
    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        if self._beginning.is_unwritten(start):
            return iter([]), start
        try:
            entries, reached = self._journal.after(start, self._limit, self._until)
        except AWAY as problem:
            # A query that catches up and ends would take "nothing new" for the end.
            if self._until is None and self._patience.is_away(problem):
                return iter([]), start
            raise
        self._patience.is_back()
        return iter([record_batch(entries)] if entries else []), reached

    @override
    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        for part in _ranges(start, end):
            yield from _batches(self._journal, part.shard, part.start, part.end)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to free: the journal is trimmed by the gateway, not by its readers."""


@dataclass
class _ShardRange(InputPartition):
    shard: str
    start: str
    end: str


class _ExecutorReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._journal = Journal(options)
        self._limit = options.max_offsets
        self._patience = _Patience()
        self._beginning = _Beginning(self._journal, options.starting or "latest")
        self._until: Offset | None = None
        self._newest: Offset | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        return self._beginning.offset()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._journal.latest()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._beginning.is_unwritten(start):
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else _UNLIMITED
        try:
            self._newest = self._journal.latest()
            end = self._journal.reach(start, rows, self._until or self._newest)
        except AWAY as problem:
            if self._until is None and self._patience.is_away(problem):
                return start
            raise
        self._patience.is_back()
        return end

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        # As of the last look: Spark asks at every poll, and only for its metrics.
        return self._newest

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _ranges(start, end)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # PySpark passes None where there is no partition at all.
        if isinstance(partition, _ShardRange):
            yield from _batches(self._journal, partition.shard, partition.start, partition.end)


class _BatchReader(DataSourceReader):
    """All that is in the journal when the query is planned; ``latest`` is an empty range."""

    def __init__(self, options: ReadOptions) -> None:
        self._journal = Journal(options)
        self._starting = options.starting or "earliest"

    @override
    def partitions(self) -> Sequence[InputPartition]:
        end = self._journal.latest()
        start = end if self._starting == "latest" else self._journal.earliest()
        return _ranges(start, end)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _ShardRange):
            yield from _batches(self._journal, partition.shard, partition.start, partition.end)


def _ranges(start: Mapping[str, str], end: Mapping[str, str]) -> list[_ShardRange]:
    return [
        _ShardRange(shard, start[shard], end[shard])
        for shard in start
        if start[shard] != end[shard]
    ]


def _batches(journal: Journal, shard: str, start: str, end: str) -> Iterator[pa.RecordBatch]:
    for page in journal.between(shard, start, end):
        yield record_batch((int(shard), entry) for entry in page)
