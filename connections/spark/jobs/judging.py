"""Judging events by rules: a part in Python, which runs on executors, and a part in SQL.

Building columns costs the driver some milliseconds each, so they are made once for all batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType

from acks.document import parse_pointer
from acks.journal import shard_of, twin_key
from connections.spark.jobs.rules import ABSENT, Rule, Rules, RulesError, without_nulls
from connections.spark.store import calls

_TWINS: Final = 100  # twins of one round trip: each may have 100 KB
_LOOKED: Final = (
    "definition string, parts array<string>, applies array<boolean>, "
    "broken array<struct<rule: string, status: int, reason: string>>"
)
_NEEDS: Final = ("thing_id", "action", "path", "value")


_Look: TypeAlias = "tuple[str | None, list[str | None], list[bool], list[dict[str, Any]]]"


class _Event(NamedTuple):
    """What rules see of an event; ``value`` is ABSENT for a deletion."""

    thing_id: str
    merged: bool
    path: tuple[str, ...]
    value: Any

    @classmethod
    def read(cls, thing_id: str, action: str, path: str, value: str | None) -> _Event:
        merged = action == "merged"
        new = ABSENT if value is None else orjson.loads(value)
        return cls(thing_id, merged, parse_pointer(path), without_nulls(new) if merged else new)


class Judging:
    """The columns that ``judge``'s rules make of events."""

    def __init__(self, judge: Judge) -> None:
        # Its stub lacks the form in which type hints say what kind of function it is.
        look = arrow_udf(judge.page, _LOOKED)  # type: ignore[call-overload]
        look = look.asNondeterministic()
        self._looked = look(*_NEEDS).alias("looked")
        broken = [
            _breaks(number, rule, rule.sql)
            for number, rule in enumerate(judge.rules.rules)
            if rule.sql is not None
        ]
        by_sql = f.filter(f.array(*broken), lambda one: one.isNotNull())
        by_schema = f.col("looked.broken")
        self._broken = f.concat(by_schema, by_sql) if broken else by_schema

    def judged(self, events: DataFrame, *columns: str | Column) -> DataFrame:
        """These columns of the events, ``definition`` and ``broken``.

        The latter is an array of rule, status and reason for each rule that an event breaks.
        """
        looked = events.select("*", self._looked).select("*", "looked.definition")
        return looked.select(*columns, "definition", self._broken.alias("broken"))

    def try_out(self, spark: SparkSession, schema: StructType) -> None:
        """Judge something of no consequence, of this schema.

        So what executors lack is found at the start, and the first event need not wait for their
        Python to start. Raises what Spark raises.
        """
        row = {"thing_id": "a:b", "action": "created", "path": "/", "value": "{}"}
        facts = [tuple(row.get(name) for name in schema.fieldNames())]
        self.judged(spark.createDataFrame(facts, schema)).collect()


def _breaks(number: int, rule: Rule, sql: str) -> Column:
    """What an event that breaks a rule in SQL gets into ``broken``, else NULL."""
    # The parameter of the function gives the expression its column ``part``.
    holds = f"transform(array(looked.parts[{number}]), part -> boolean(\n{sql}\n))[0]"
    breaks = f.expr(f"looked.applies[{number}] AND NOT coalesce({holds}, false)")
    facts = (rule.name, rule.status, rule.message or f"not true: {sql}")
    names = ("rule", "status", "reason")
    return f.when(
        breaks, f.struct(*(f.lit(one).alias(name) for one, name in zip(facts, names, strict=True)))
    )


@dataclass(frozen=True)
class Judge:
    """Finds what rules events break, but for their SQL; it travels to executors.

    ``url``, ``prefix`` and ``shards`` are where the definitions of things can be looked up.
    """

    rules: Rules
    url: str = field(repr=False)
    prefix: str
    shards: int

    def page(self, *columns: pa.Array) -> pa.Array:
        """The Python part for one page of rows: the columns :data:`_NEEDS` to :data:`_LOOKED`."""
        rows = [*zip(*(column.to_pylist() for column in columns), strict=True)]
        names = ("definition", "parts", "applies", "broken")
        broken = pa.struct([("rule", pa.string()), ("status", pa.int32()), ("reason", pa.string())])
        types = (pa.string(), pa.list_(pa.string()), pa.list_(pa.bool_()), pa.list_(broken))
        results = [*zip(*self.look(rows), strict=True)] or [()] * len(names)
        arrays = [pa.array(column, kind) for column, kind in zip(results, types, strict=True)]
        return pa.StructArray.from_arrays(arrays, names=[*names])

    def look(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[_Look]:
        """What the Python part finds in each row of :data:`_NEEDS`; a row without id is no event.

        The definition of its thing; for each rule the part as SQL sees it, and whether the rule is
        one in SQL that applies; what schemas are broken.
        """
        events = [None if row[0] is None else _Event.read(*row) for row in rows]
        definitions = self._definitions(events) if self.rules.ask_definition else {}
        for number, event in enumerate(events):
            if event is None:
                yield None, [], [], []
                continue
            definition = definitions.get(number)
            parts, applies = [], []
            broken: list[dict[str, Any]] = []
            for rule in self.rules.rules:
                about = rule.is_for(definition)
                part = rule.part(event.path, event.value) if about else ABSENT
                parts.append(_text(part) if rule.sql is not None else None)
                applies.append(
                    rule.sql is not None and about and not (rule.path and part is ABSENT)
                )
                if rule.sql is None and part is not ABSENT:
                    broken += _broken(rule, part, event)
            yield definition, parts, applies, broken

    def _definitions(self, events: Sequence[_Event | None]) -> dict[int, str | None]:
        """The definition of each event's thing: what the event says, or the twin as it is now."""
        known: dict[int, str | None] = {}
        unknown: dict[str, list[int]] = {}
        for number, event in enumerate(events):
            if event is None:
                continue
            value = event.value
            if event.path == ("definition",) and value is not ABSENT:
                known[number] = _name(value)
            elif (
                not event.path
                and isinstance(value, dict)
                and ("definition" in value or not event.merged)
            ):
                known[number] = _name(value.get("definition"))
            else:
                unknown.setdefault(event.thing_id, []).append(number)
        things = list(unknown)
        for at in range(0, len(things), _TWINS):
            for thing_id, definition in self._stored(things[at : at + _TWINS]):
                known.update(dict.fromkeys(unknown[thing_id], definition))
        return known

    def _stored(self, things: list[str]) -> Iterator[tuple[str, str | None]]:
        keys = [twin_key(self.prefix, shard_of(thing, self.shards), thing) for thing in things]
        for thing, record in zip(
            things, calls(self.url, [("GET", key) for key in keys]), strict=True
        ):
            definition = None
            if record is not None:
                # The layout of a twin: acks/journal.py.
                document = orjson.loads(record.split(b"\n", 2)[2] or b"null")
                definition = _name((document or {}).get("definition"))
            yield thing, definition


def check_sql(spark: SparkSession, rules: Rules, events: DataFrame) -> None:
    """Let Spark look at the SQL of every rule. Raises :class:`RulesError` naming the rule."""
    columns = StructType([*events.schema.fields]).add("definition", "string").add("part", "string")
    table = spark.createDataFrame([], columns)
    for rule in rules.rules:
        if rule.sql is None:
            continue
        try:
            # A filter takes no aggregates and no generators, and must be a boolean.
            table.where(f.expr(rule.sql)).schema  # noqa: B018 - makes Spark analyse it
        except PySparkException as problem:
            reason = str(problem).strip().splitlines()[0]
            raise RulesError(f"rule {rule.name!r}: sql: {reason}") from problem


def _broken(rule: Rule, part: Any, event: _Event) -> Iterator[dict[str, Any]]:
    above = max(0, len(event.path) - len(rule.path))
    for reason in rule.reasons(part, above, event.merged):
        shown = f"{rule.message} ({reason})" if rule.message else reason
        yield {"rule": rule.name, "status": rule.status, "reason": shown}


def _text(part: Any) -> str | None:
    """A part as SQL sees it: texts as they are, everything else as JSON, null as NULL."""
    if part is ABSENT or part is None:
        return None
    return part if isinstance(part, str) else orjson.dumps(part).decode()


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None
