"""What became of requested acks, as a table: option ``stream=outcomes``.

One row for each label of each finished request. The gateway gathers them (app/outcomes.py), so one
entry of the stream is many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from typing_extensions import override

from acks.journal import outcomes_key
from acks.outcomes import ANSWERED, TIMED_OUT, WEAK, read_record
from connections.spark.options import ReadOptions
from connections.spark.tables import Numbered, Table

SCHEMA: Final = StructType(
    [
        StructField("correlation_id", StringType()),
        StructField("thing_id", StringType()),
        StructField("namespace", StringType()),
        StructField("label", StringType()),
        StructField("status", IntegerType()),
        StructField("how", StringType()),  # answered | weak | timed_out
        StructField("latency_ms", DoubleType()),
        StructField("begun", TimestampType()),
        StructField("ended", TimestampType()),
        StructField("request_status", IntegerType()),
        StructField("bookmark", StringType()),
    ]
)
_ARROW: Final = to_arrow_schema(SCHEMA, timezone="UTC")
_HOW: Final = {ANSWERED: "answered", WEAK: "weak", TIMED_OUT: "timed_out"}


def table(_options: ReadOptions) -> Table:
    """The table of outcomes; it has no options of its own."""
    return OutcomeTable()


class OutcomeTable(Table):
    """Outcomes as rows; they lie in one stream, whatever the number of shards."""

    schema = SCHEMA
    shards = 1

    @override
    def key(self, prefix: str, shard: int) -> str:
        return outcomes_key(prefix)

    @override
    def batch(self, entries: Sequence[Numbered]) -> pa.RecordBatch:
        rows: list[tuple[Any, ...]] = []
        for shard, (stream_id, fields) in entries:
            bookmark = f"{shard}:{stream_id.decode()}"
            try:
                for record in orjson.loads(fields[b"o"]):
                    rows.extend(_rows(record, bookmark))
            except (KeyError, TypeError, ValueError) as problem:
                raise ValueError(
                    f"the entry {bookmark} of outcomes cannot be read: {problem!r}"
                ) from problem
        columns = zip(*rows, strict=True) if rows else [()] * len(_ARROW)
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)],
            schema=_ARROW,
        )


def _rows(record: list[Any], bookmark: str) -> list[tuple[Any, ...]]:
    request = read_record(record)
    begun = request.begun_ms * 1000  # µs since the epoch, as Arrow takes them
    return [
        (
            request.correlation_id,
            request.thing_id,
            request.thing_id.partition(":")[0],
            ack.label,
            ack.status,
            _HOW[ack.how],
            None if ack.us is None else ack.us / 1000,
            begun,
            begun + request.took_us,
            request.status,
            bookmark,
        )
        for ack in request.acks
    ]
