"""Rows that say which ack to send: their columns, and what makes a row unusable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    VariantType,
    VariantVal,
)

from connections.spark.sending import Ack

_Plain: TypeAlias = Callable[[Any], Any]

_TEXTS: Final = ("correlation_id", "thing_id", "origin")
_ASKED: Final = "requested_acks"


class AckColumnError(ValueError):
    """The rows lack a column that acks need, or it has another type."""


class BadRow(ValueError):
    """A row that is no ack; the text says why and holds no payload."""


class AckRows:
    """Turns Arrow batches with the columns of ``schema`` into acks.

    Needed are the strings correlation_id, thing_id and origin and the whole number status. The
    string label may be left out if ``labels`` is one. payload is optional: a string is JSON text,
    anything else becomes JSON. With a column requested_acks only rows that ask for their label
    count. Raises :class:`AckColumnError`.
    """

    def __init__(self, schema: StructType, labels: tuple[str, ...]) -> None:
        types = {field.name: field.dataType for field in schema.fields}
        self._labels = labels
        self._has_label = "label" in types
        texts = (*_TEXTS, "label") if self._has_label or len(labels) > 1 else _TEXTS
        for name in (*texts, "status"):
            wanted, said = (
                (IntegralType, "a whole number") if name == "status" else (StringType, "a string")
            )
            if not isinstance(types.get(name), wanted):
                found = types[name].simpleString() if name in types else "not there"
                raise AckColumnError(f"the column {name} must be {said}; it is {found}")
        self._columns = [*texts, "status"]
        asked = types.get(_ASKED)
        self._asks = isinstance(asked, ArrayType) and isinstance(asked.elementType, StringType)
        self._columns += [_ASKED] if self._asks else []
        self._payload: _Plain | None = None
        if "payload" in types:
            self._payload = _json if isinstance(types["payload"], StringType) else None
            self._payload = self._payload or plain(types["payload"])
            self._columns.append("payload")

    def acks(
        self, batches: Iterable[pa.RecordBatch], bad: Callable[[BadRow], None]
    ) -> Iterator[Ack]:
        """The acks of all rows whose requester waits; unusable rows are given to ``bad``."""
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in self._columns)
            for values in zip(*columns, strict=True):
                row = dict(zip(self._columns, values, strict=True))
                try:
                    ack = self._ack(row)
                except BadRow as problem:
                    bad(problem)
                    continue
                if ack.origin and (not self._asks or ack.label in (row[_ASKED] or ())):
                    yield ack

    def _ack(self, row: dict[str, Any]) -> Ack:
        correlation_id, thing_id, status = row["correlation_id"], row["thing_id"], row["status"]
        label = row["label"] if self._has_label else self._labels[0]
        if not correlation_id:
            raise BadRow("a row has no correlation_id")
        where = f"the row of {correlation_id!r}"
        if not thing_id:
            raise BadRow(f"{where} has no thing_id")
        if label not in self._labels:
            raise BadRow(f"{where} has the label {label!r}, which the option labels does not name")
        if status is None or not 100 <= status <= 599:
            raise BadRow(f"{where} has the status {status}, which is not 100 to 599")
        payload = None
        if self._payload is not None and row["payload"] is not None:
            try:
                payload = self._payload(row["payload"])
                orjson.dumps(payload)
            except (TypeError, ValueError):
                raise BadRow(f"{where} has a payload that is not JSON") from None
        return Ack(correlation_id, thing_id, row["origin"] or "", label, status, payload)


def _json(text: str) -> Any:
    return orjson.loads(text)


def plain(kind: DataType) -> _Plain:
    """What makes JSON of the values that Arrow gives for a type of Spark; None stays None."""
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: DataType) -> _Plain:
    if isinstance(kind, VariantType):
        return lambda value: orjson.loads(VariantVal(value["value"], value["metadata"]).toJson())
    if isinstance(kind, StructType):
        parts = [(field.name, plain(field.dataType)) for field in kind.fields]
        return lambda value: {name: part(value[name]) for name, part in parts}
    if isinstance(kind, ArrayType):
        element = plain(kind.elementType)
        return lambda value: [element(each) for each in value]
    if isinstance(kind, MapType):
        of_map = plain(kind.valueType)
        return lambda value: {str(name): of_map(each) for name, each in value}
    return lambda value: value
