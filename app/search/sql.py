"""Pieces of SQL with their parameters, put together without a value ever becoming text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Sql(NamedTuple):
    """A piece of SQL; ``params`` are for its ``?``, in their order."""

    text: str
    params: tuple[Any, ...] = ()


TRUE = Sql("TRUE")
FALSE = Sql("FALSE")


def all_of(conditions: Iterable[Sql]) -> Sql:
    """The conditions joined by AND; constants are not written."""
    return _joined(conditions, " AND ", TRUE, FALSE)


def any_of(conditions: Iterable[Sql]) -> Sql:
    """The conditions joined by OR; constants are not written."""
    return _joined(conditions, " OR ", FALSE, TRUE)


def none_of(condition: Sql) -> Sql:
    """The opposite of ``condition``."""
    if condition in (TRUE, FALSE):
        return TRUE if condition == FALSE else FALSE
    return Sql(f"NOT ({condition.text})", condition.params)


def in_line(pieces: Sequence[Sql], separator: str) -> Sql:
    """The pieces one behind the other."""
    params = tuple(param for piece in pieces for param in piece.params)
    return Sql(separator.join(piece.text for piece in pieces), params)


def listed(column: str, values: Sequence[Any]) -> Sql:
    """Whether ``column`` is one of a few ``values``: a parameter for each of them."""
    if len(values) == 1:
        return Sql(f"{column} = ?", (values[0],))
    return Sql(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def _joined(conditions: Iterable[Sql], word: str, neutral: Sql, final: Sql) -> Sql:
    kept = [condition for condition in conditions if condition != neutral]
    if final in kept:
        return final
    if len(kept) < 2:
        return kept[0] if kept else neutral
    joined = in_line(kept, word)
    return Sql(f"({joined.text})", joined.params)
