"""The journal's events as a table: the columns, and the conversion to Arrow.

Whole pages are converted at once: 4.5 µs a row, against 7 µs for one row after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql.datasource import Filter
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
    VariantType,
)
from pyspark.sql.variant_utils import VariantUtils
from typing_extensions import override

from acks.journal import EntryMeta, journal_key
from acks.topic import event_topic
from connections.spark.options import ReadOptions
from connections.spark.tables import Entry, Numbered, Table
from connections.spark.wanted import Wanted

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
_VARIANT: Final = StructField("value_variant", VariantType())


def table(options: ReadOptions) -> Table:
    """The events that the options ask for."""
    return EventTable(Wanted.of(options), options.variant)


class EventTable(Table):
    """Events as rows: those of the journal's entries that are ``wanted``.

    Messages and live commands lie in the journal too and are no rows.
    """

    def __init__(self, wanted: Wanted, variant: bool = False) -> None:
        self.schema = StructType([*SCHEMA.fields, _VARIANT]) if variant else SCHEMA
        self._wanted = wanted
        self._variant = variant
        self._arrow = to_arrow_schema(self.schema, timezone="UTC")

    @override
    def key(self, prefix: str, shard: int) -> str:
        return journal_key(prefix, shard)

    @override
    def narrowed(self, filters: Sequence[Filter], shards: int) -> tuple[Table, set[int]]:
        wanted, left = self._wanted.narrowed(filters, shards)
        return EventTable(wanted, self._variant), left

    @override
    def batch(self, entries: Sequence[Numbered]) -> pa.RecordBatch:
        try:
            return self._batch(entries)
        except (KeyError, TypeError, AttributeError, ValueError):
            for entry in entries:
                self._batch_of_one(entry)
            raise

    def _batch_of_one(self, entry: Numbered) -> None:
        try:
            self._batch([entry])
        except (KeyError, TypeError, AttributeError, ValueError) as problem:
            raise ValueError(
                f"journal entry {_bookmark(*entry)} cannot be read: {problem!r}"
            ) from problem

    def _batch(self, entries: Sequence[Numbered]) -> pa.RecordBatch:
        fields = [entry[1] for _, entry in entries]
        metas = [EntryMeta.from_json(meta) for meta in _parsed([field[b"m"] for field in fields])]
        rows = self._wanted.choose(metas, fields)
        if len(rows) < len(entries):
            entries = [entries[row] for row in rows]
            fields = [fields[row] for row in rows]
            metas = [metas[row] for row in rows]
        columns = self._columns(entries, metas, fields) if metas else [()] * len(self._arrow)
        return pa.RecordBatch.from_arrays(
            [
                column if isinstance(column, pa.Array) else pa.array(column, field.type)
                for column, field in zip(columns, self._arrow, strict=True)
            ],
            schema=self._arrow,
        )

    def _columns(
        self,
        entries: Sequence[Numbered],
        metas: Sequence[EntryMeta],
        fields: Sequence[dict[bytes, bytes]],
    ) -> list[Any]:
        things, actions, paths, revisions, stamps, ids, acks, origins, deadlines, *_ = zip(
            *metas, strict=True
        )
        values = pa.array([field.get(b"v") for field in fields], pa.string())
        columns = [
            things,
            [thing_id.partition(":")[0] for thing_id in things],
            list(map(event_topic, things, actions)),
            actions,
            paths,
            values,
            revisions,
            pa.array(stamps, pa.string()).cast(self._arrow.field("timestamp").type),
            self._headers(_parsed([field[b"h"] for field in fields])),
            acks,
            ids,
            origins,
            deadlines,
            [_bookmark(*entry) for entry in entries],
            [shard for shard, _ in entries],
        ]
        if self._variant:
            columns.append([_variant(text) for text in values.to_pylist()])
        return columns

    def _headers(self, headers: Sequence[dict[str, Any]]) -> pa.Array:
        names: list[str] = []
        texts: list[Any] = []
        ends = [0]
        for each in headers:
            names += each
            texts += each.values()
            ends.append(len(names))
        return pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()),
            pa.array(names, pa.string()),
            pa.array(map(_text, texts), pa.string()),
            type=self._arrow.field("headers").type,
        )


def _parsed(texts: Iterable[bytes]) -> list[dict[str, Any]]:
    """JSON objects; parsed together, which is twice as fast."""
    objects: list[dict[str, Any]] = orjson.loads(b"[" + b",".join(texts) + b"]")
    return objects


def _bookmark(shard: int, entry: Entry) -> str:
    return f"{shard}:{entry[0].decode()}"


def _text(header: object) -> str:
    """Header values are strings in a map<string,string>; others keep their JSON text."""
    return header if header.__class__ is str else orjson.dumps(header).decode()


def _variant(text: str | None) -> dict[str, bytes] | None:
    if text is None:
        return None
    value, metadata = VariantUtils.parse_json(text)
    return {"value": value, "metadata": metadata}
