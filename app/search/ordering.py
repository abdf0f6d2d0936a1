"""The order of what was found, and where a page begins in it (spec websocket-... 6.4).

Things that lack a property, or have no number, text or boolean there, or may not show it to the
requester, come first (last if it descends); then numbers, texts, false, true. Of an array the least
value counts (the greatest if it descends). Texts are in the order of their code points, by their
first :data:`acks.search_terms.HEAD` characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from acks.search_options import SortKey
from acks.search_terms import BOOLEAN, NUMBER, TEXT
from app.search.compile import NUMERIC, Compiler
from app.search.hints import Hints
from app.search.properties import is_column
from app.search.sql import FALSE, TRUE, Sql, all_of, any_of, in_line, none_of
from app.store.sql.schema import COLUMNS

Key = Any
MISSING = (0, 0, "")
"""Stands for the kind, number and head of a value that is not there."""
SORTED = f"({NUMBER}, {TEXT}, {BOOLEAN})"
_LACKING = (Sql("CAST(0 AS smallint)"), Sql("CAST(0 AS numeric)"), Sql("CAST('' AS text)"))
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[+-]?[0-9]{1,3})?", re.ASCII)
_INT64 = 2**63
_UNSTORED = re.compile("[\x00\ud800-\udfff]")
_MAX_TEXT = 1024  # a thing's id has 256 characters, the head of a text fewer than 150


class Level(NamedTuple):
    """One key of a sort as SQL: ``columns`` are compared one behind the other.

    A property in terms has three (kind, number, head) and needs ``join``, unless nobody has it; a
    column has one.
    """

    columns: tuple[Sql, ...]
    descending: bool
    numeric: bool
    join: Sql | None


def levels(compiler: Compiler, sort: Sequence[SortKey]) -> list[Level]:
    """The keys of a sort, which ends with the thing's id."""
    return [_level(compiler, key, at) for at, key in enumerate(sort)]


def _level(compiler: Compiler, key: SortKey, at: int) -> Level:
    name = key.property
    if is_column(name):
        readable = compiler.readable(name)
        column = Sql(COLUMNS[name])
        if readable != TRUE:
            text = f"CASE WHEN {readable.text} THEN {column.text} ELSE '' END"
            column = Sql(text, readable.params)
        return Level((column,), key.descending, name in NUMERIC, None)
    if where_read(compiler, name, "") == FALSE:
        # Nobody has it: to join nothing may take as long as to join all.
        return Level(_LACKING, key.descending, False, None)
    alias = f"k{at}"
    columns = tuple(
        Sql(f"coalesce({alias}.{column}, {default})")
        for column, default in (("kind", "0"), ("number", "0"), ("head", "''"))
    )
    return Level(columns, key.descending, False, _join(compiler, key, alias))


def _join(compiler: Compiler, key: SortKey, alias: str) -> Sql:
    where = all_of(
        (
            Sql(f"{alias}.thing = thing.num"),
            Sql(f"{compiler.hints.sign}{alias}.kind IN {SORTED}"),
            where_read(compiler, key.property, f"{alias}.path"),
            counting(compiler, alias, key.descending),
        )
    )
    return Sql(f"LEFT JOIN term {alias} ON {where.text}", where.params)


def where_read(compiler: Compiler, name: str, path: str) -> Sql:
    """Whether the column ``path`` is one of the property's, and the requester may read it there."""
    found = compiler.properties.values(name)
    return any_of(
        all_of((compiler.path(path, nums), compiler.seen(mask)))
        for mask, nums in found.spots.items()
    )


def counting(compiler: Compiler, alias: str, descending: bool) -> Sql:
    """Whether a term is the one of its thing that counts at its path."""
    # In a thing all values of a property have the same path: it has one array or none around it.
    before = ">" if descending else "<"
    where = Sql(
        f"o.thing = {alias}.thing AND o.path = {alias}.path AND {compiler.hints.sign}o.kind"
        f" IN {SORTED} AND (o.kind, o.number, o.head)"
        f" {before} ({alias}.kind, {alias}.number, {alias}.head)"
    )
    return none_of(compiler.exists("term o", where))


def order_by(keys: Sequence[Level], first_column: int) -> str:
    """The list of ORDER BY for the columns of ``keys``, which are selected from there on."""
    words: list[str] = []
    at = first_column
    for level in keys:
        columns = range(at, at + len(level.columns))
        if level.columns != _LACKING:
            words += [f"{column} DESC" if level.descending else f"{column}" for column in columns]
        at = columns.stop
    return ", ".join(words)


def beyond(
    hints: Hints,
    keys: Sequence[Level],
    values: Sequence[tuple[Any, ...]],
    *,
    entered: bool = False,
) -> Sql:
    """Whether a row comes behind the one with these ``values`` of ``keys``.

    ``entered``: another condition says already where in the index to begin.
    """
    cases = []
    same: list[Sql] = []
    for level, value in zip(keys, values, strict=True):
        cases.append(all_of((*same, _compared(level, "<" if level.descending else ">", value))))
        same.append(_compared(level, "=", value))
    if len(keys) < 2:
        return any_of(cases)
    if entered:
        return hints.unseen(any_of(cases))
    # Said once more for the first key alone, so that an index can be entered there.
    first = _compared(keys[0], "<=" if keys[0].descending else ">=", values[0])
    return all_of((first, hints.unseen(any_of(cases))))


def _compared(level: Level, sign: str, value: tuple[Any, ...]) -> Sql:
    columns = in_line(level.columns, ", ")
    if len(level.columns) == 1:
        return Sql(f"{columns.text} {sign} ?", (*columns.params, *value))
    marks = ", ".join("?" * len(level.columns))
    return Sql(f"({columns.text}) {sign} ({marks})", (*columns.params, *value))


# --- keys of a hit


def keys_of(keys: Sequence[Level], row: Sequence[Any]) -> list[Key]:
    """The columns of ``keys`` in a row of the result as JSON: kind and value, [] if missing."""
    found: list[Key] = []
    at = 0
    for level in keys:
        if len(level.columns) == 1:
            value = row[at]
            found.append([NUMBER, str(value)] if level.numeric else [TEXT, value])
        else:
            found.append(_key(*row[at : at + 3]))
        at += len(level.columns)
    return found


def _key(kind: int, number: float, head: str) -> Key:
    if kind == MISSING[0]:
        return []
    return [kind, head if kind == TEXT else str(number)]


def values_of(sort: Sequence[SortKey], keys: Sequence[Key]) -> list[tuple[Any, ...]]:
    """The inverse of :func:`keys_of`; raises ValueError for what cannot come from there."""
    if len(sort) != len(keys):
        raise ValueError("not the keys of this sort")
    return [_value(key.property, value) for key, value in zip(sort, keys, strict=True)]


def _value(name: str, key: Key) -> tuple[Any, ...]:
    column = is_column(name)
    if key == [] and not column:
        return MISSING
    if not isinstance(key, (list, tuple)) or len(key) != 2 or not isinstance(key[1], str):
        raise ValueError("not a key")
    kind, text = key
    if kind not in ((NUMBER if name in NUMERIC else TEXT,) if column else (NUMBER, TEXT, BOOLEAN)):
        raise ValueError("not a key of this property")
    if kind == TEXT:
        if len(text) > _MAX_TEXT or _UNSTORED.search(text):
            raise ValueError("not a text of the index")
        return (text,) if column else (TEXT, 0, text)
    number = _number(text)
    if kind == BOOLEAN and number not in (0, 1):
        raise ValueError("not a boolean")
    return (number,) if column else (kind, number, "")


def _number(text: str) -> int | float:
    if _INTEGER.fullmatch(text):
        number: int | float = int(text)
        if not -_INT64 <= number < _INT64:
            raise ValueError("not a number of the index")
        return number
    if _NUMBER.fullmatch(text) is None or abs(float(text)) == math.inf:
        raise ValueError("not a number of the index")
    return float(text)
