"""The journal as a PySpark data source: ``spark.readStream.format("ackgate")``.

Three ways to read a stream (option ``readOn``): on the driver, which saves a Python worker's round
trip and is fast for few events; on executors, in several partitions, for many; and whichever of
the two fits the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from connections.spark.collector import no_collection
from connections.spark.course import Course, Kept, places
from connections.spark.options import BATCH, DRIVER, EXECUTORS, STREAM, ReadOptions, read_options
from connections.spark.pages import Journal, Offset, OffsetError, position
from connections.spark.places import EARLIEST, LATEST, Named
from connections.spark.ranges import ShardRange, Task, grouped, ranges, split
from connections.spark.tables import Table, open_table

_UNLIMITED: Final = 2**31
_ROWS: Final = 10_000  # entries of one Arrow batch
#: Entries from which on readOn=auto leaves them to executors: up to some thousand, taking them
#: through the driver is faster than starting a task (docs/spark.md).
FEW: Final = 2_000


class AckgateDataSource(DataSource):
    """Events of the journal as rows; options and columns are described in docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read = read_options(options)
        self._table = open_table(self._read)

    @classmethod
    @override
    def name(cls) -> str:
        """What goes into ``format(...)``."""
        return "ackgate"

    @override
    def schema(self) -> StructType:
        """The columns."""
        return self._table.schema

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of ``spark.read``."""
        self._read.check_for(BATCH)
        return _BatchReader(self._read, self._table)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reader of ``spark.readStream`` with readOn=executors."""
        self._read.check_for(STREAM)
        if self._read.read_on == DRIVER:
            # PySpark then asks for simpleStreamReader.
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "streamReader"}
            )
        if self._read.read_on == EXECUTORS:
            return _ExecutorReader(self._read, self._table)
        return _AutoReader(self._read, self._table)

    @override
    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        """Reader of ``spark.readStream`` with readOn=driver."""
        return _DriverReader(self._read, self._table)


class _Pages:
    """What all readers share: entries of ranges become Arrow batches."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        self._options = options
        self._table = table
        self._journal = Journal(options, table)

    def _tasks(self, start: Offset, end: Offset, counts: Mapping[str, int]) -> list[Task]:
        """What lies between two offsets; ``counts`` are the shards' entries, as far as known."""
        whole = ranges(start, end)
        if "minPartitions" not in self._options.given:
            return grouped(whole, counts)
        oldest = self._journal.oldest(part.shard for part in whole)
        return split(whole, oldest, self._options.min_partitions)

    def _read(self, parts: Iterable[ShardRange]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            pages = self._journal.between(part.shard, part.start, part.end)
            while True:
                with no_collection():
                    page = next(pages, None)
                    if page is None:
                        break
                    batch = self._table.batch([(int(part.shard), entry) for entry in page])
                yield batch


def _ranges_of(partition: InputPartition) -> tuple[ShardRange, ...]:
    """What a task reads: nothing if there was no partition at all, for which PySpark makes one."""
    return partition.ranges if isinstance(partition, Task) else ()


def _most(limit: ReadLimit) -> int:
    return limit.max_rows if isinstance(limit, ReadMaxRows) else _UNLIMITED


class _Streaming(_Pages, SupportsTriggerAvailableNow):
    """What the readers of streams share."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        super().__init__(options, table)
        self._course = Course(options, self._journal)

    def initialOffset(self) -> Kept:  # noqa: N802 - PySpark's name
        """Where a query without checkpoint starts."""
        return self._course.begin()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._course.end_now()

    def commit(self, end: Kept) -> None:
        """Nothing to free: the journal is trimmed by the gateway, not by its readers."""

    def stop(self) -> None:
        """Free the labels, if Spark takes the time to ask for it."""
        self._course.stop()

    def _fetch(
        self, begin: Offset, limit: int, until: Offset | None
    ) -> tuple[list[pa.RecordBatch], int, Offset]:
        """The next rows, how many entries they were, and the offset reached."""
        with no_collection():
            entries, reached = self._journal.after(begin, limit, until)
            pieces = (entries[at : at + _ROWS] for at in range(0, len(entries), _ROWS))
            batches = [self._table.batch(piece) for piece in pieces]
        return [batch for batch in batches if batch.num_rows], len(entries), reached


class _DriverReader(_Streaming, SimpleDataSourceStreamReader):
    """readOn=driver."""

    @override
    def read(self, start: Kept) -> tuple[Iterator[Any], Kept]:
        batches: list[pa.RecordBatch] = []

        def take(begin: Offset, until: Offset | None) -> Offset:
            found, _, reached = self._fetch(begin, self._options.max_offsets, until)
            batches.extend(found)
            return reached

        end = self._course.advance(start, take)
        return iter(batches), end

    @override
    def readBetweenOffsets(self, start: Kept, end: Kept) -> Iterator[Any]:
        return self._read(ranges(places(start), places(end)))


class _ExecutorReader(_Streaming, DataSourceStreamReader):
    """readOn=executors."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        super().__init__(options, table)
        self._newest: Offset | None = None
        self._planned: tuple[Offset, Mapping[str, int]] = {}, {}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_offsets)

    @override
    def latestOffset(self, start: Kept, limit: ReadLimit) -> Kept:
        return self._course.advance(start, partial(self._reach, _most(limit)))

    def _reach(self, rows: int, begin: Offset, until: Offset | None) -> Offset:
        """How far executors are to read."""
        self._newest = self._journal.latest()
        reached, counts = self._journal.reach(begin, rows, until or self._newest)
        self._planned = reached, counts
        return reached

    @override
    def reportLatestOffset(self) -> Kept | None:
        # As of the last look: Spark asks at every poll, and only for its metrics.
        return self._newest

    @override
    def partitions(self, start: Kept, end: Kept) -> Sequence[InputPartition]:
        planned, counts = self._planned
        begin, reached = places(start), places(end)
        return self._tasks(begin, reached, counts if planned == reached else {})

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(_ranges_of(partition))


class _AutoReader(_ExecutorReader, _SimpleStreamReaderWrapper):
    """readOn=auto: few entries are read here, with the offset; for many, executors are told where.

    PySpark takes rows along with an offset only from its own wrapper of simple readers, so this is
    one, and its own simple reader.
    """

    def __init__(self, options: ReadOptions, table: Table) -> None:
        super().__init__(options, table)
        # Asked by PySpark for Trigger.AvailableNow only.
        _SimpleStreamReaderWrapper.__init__(self, self)  # type: ignore[arg-type]  # see above
        self._ahead: tuple[Kept, Kept, list[pa.RecordBatch]] | None = None

    @override
    def latestOffset(self, start: Kept, limit: ReadLimit) -> Kept:
        rows = _most(limit)
        ahead: list[pa.RecordBatch] | None = None

        def take(begin: Offset, until: Offset | None) -> Offset:
            nonlocal ahead
            found, count, reached = self._fetch(begin, min(rows, FEW), until)
            if count == FEW < rows:
                return self._reach(rows, begin, until)
            ahead = found
            return reached

        end = self._course.advance(start, take)
        self._ahead = None if ahead is None else (start, end, ahead)
        return end

    @override
    def partitions(self, start: Kept, end: Kept) -> Sequence[InputPartition]:
        if self.getCache(start, end) is None:
            return super().partitions(start, end)
        return [Task(tuple(ranges(places(start), places(end))))]

    @override
    def getCache(self, start: Kept, end: Kept) -> Iterator[Any] | None:
        """The rows that have been read along with the offset ``end``."""
        if self._ahead is None or self._ahead[:2] != (start, end):
            return None
        return iter(self._ahead[2])


class _BatchReader(_Pages, DataSourceReader):
    """What is in the journal when the query is planned, or a part of it."""

    def __init__(self, options: ReadOptions, table: Table) -> None:
        super().__init__(options, table)
        self._shards: set[int] | None = None
        # PySpark refuses a reader that has pushFilters while filters are not pushed down, which is
        # its default (spark.sql.python.filterPushdown.enabled). This way both are fine.
        self.pushFilters = _Pushed(self)  # type: ignore[method-assign]  # see above

    def push(self, filters: Sequence[Filter]) -> None:
        """Leave out what the filters take away, as far as that is less work."""
        self._table, self._shards = self._table.narrowed(filters, self._journal.shards)

    @override
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        start = self._journal.resolve(options.start or Named(EARLIEST))
        end = self._journal.resolve(options.end or Named(LATEST), end=True)
        if options.start is not None and options.end is not None:
            backward = [shard for shard in end if position(start[shard]) > position(end[shard])]
            if backward:
                raise OffsetError(
                    f"the start of the query lies after its end in shard {', '.join(backward)}"
                )
        if self._shards is not None:
            start = {shard: place for shard, place in start.items() if int(shard) in self._shards}
        return self._tasks(start, end, self._journal.lengths())

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(_ranges_of(partition))


class _Pushed:
    """``pushFilters`` of a batch reader, which looks like the one that every reader inherits."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: _BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.push(filters)
        return filters  # Spark applies them all: what is left out here is only part of it
