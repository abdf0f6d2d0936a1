"""A journal entry as a row: the table's schema, and the conversion to Arrow.

Whole columns go to Arrow at once: measured 1 µs a row, against 5.5 µs for tuples that PySpark
converts one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from acks.topic import event_topic

#: One journal entry as Redis gives it: stream id, and field name -> value.
Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]

SCHEMA: Final = StructType(
    [
        StructField("thing_id", StringType()),
        StructField("namespace", StringType()),
        StructField("topic", StringType()),
        StructField("action", StringType()),
        StructField("path", StringType()),
        StructField("value", StringType()),
        StructField("revision", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("requested_acks", ArrayType(StringType())),
        StructField("correlation_id", StringType()),
        StructField("origin", StringType()),
        StructField("deadline", LongType()),
        StructField("bookmark", StringType()),
        StructField("shard", IntegerType()),
    ]
)
_ARROW: Final = to_arrow_schema(SCHEMA, timezone="UTC")


def record_batch(entries: Iterable[tuple[int, Entry]]) -> pa.RecordBatch:
    """Turn ``(shard, entry)`` pairs into one Arrow batch with the columns of :data:`SCHEMA`.

    The table is of events: messages and live commands, which lie in the journal too, are no rows.

    Raises ValueError naming the bookmark if an entry does not follow acks/journal.py.
    """
    rows = [row for shard, entry in entries if (row := _row(shard, entry)) is not None]
    columns = zip(*rows, strict=True) if rows else [()] * len(_ARROW)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)],
        schema=_ARROW,
    )


def _row(shard: int, entry: Entry) -> tuple[Any, ...] | None:
    stream_id, fields = entry
    bookmark = f"{shard}:{stream_id.decode()}"
    try:
        meta = orjson.loads(fields[b"m"])
        if "k" in meta:
            return None
        headers = orjson.loads(fields[b"h"])
        value = fields.get(b"v")
        thing_id, action = meta["id"], meta["a"]
        return (
            thing_id,
            thing_id.partition(":")[0],
            event_topic(thing_id, action),
            action,
            meta["p"],
            None if value is None else value.decode(),
            meta["r"],
            datetime.fromisoformat(meta["t"]),
            [(name, _text(header)) for name, header in headers.items()],
            meta["q"],
            meta["c"],
            meta["o"],
            meta["d"],
            bookmark,
            shard,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"journal entry {bookmark} cannot be read: {problem!r}") from problem


def _text(header: object) -> str:
    """Header values are strings in a map<string,string>; others keep their JSON text."""
    return header if isinstance(header, str) else orjson.dumps(header).decode()
