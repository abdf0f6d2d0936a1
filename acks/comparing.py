"""When two JSON values are equal, and which is greater, across types (spec websocket-... 6.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from acks.facts import MISSING

_DECIMAL = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]{1,9})?")


def scalars(value: Any) -> Iterator[Any]:
    """Everything in ``value`` that can be compared: objects cannot, arrays element by element."""
    stack = [] if value is MISSING else [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif not isinstance(item, dict):
            yield item


def _exact(number: Any) -> Any:
    """The number as it is written: 0.1 is a tenth."""
    return Decimal(repr(number)) if isinstance(number, float) else number


def _numeric(text: str) -> Decimal | None:
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_text(value: Any) -> str:
    """A text, number or boolean as values of two kinds are compared."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def comparable(value: Any, literal: Any) -> tuple[Any, Any]:
    """Two values that are not null, as two of one kind: numbers, else booleans, else texts."""
    if type(value) is type(literal):
        return value, literal
    pair = []
    for item in (value, literal):
        number = _exact(item) if _is_number(item) else None
        if isinstance(item, str):
            number = _numeric(item)
        pair.append(number)
    if None in pair:
        return as_text(value), as_text(literal)
    return pair[0], pair[1]


class Members:
    """The values that ``eq``, ``ne`` and ``in`` look for, in sets: any number costs the same.

    A number equals a text that spells it, but two texts are equal only letter by letter.
    """

    __slots__ = ("_null", "_numbers", "_spelt", "_texts")

    def __init__(self, values: tuple[Any, ...]) -> None:
        numbers = [value for value in values if _is_number(value)]
        texts = [value for value in values if isinstance(value, str)]
        self._null = None in values
        self._numbers = frozenset(_exact(value) for value in numbers)
        self._spelt = frozenset(_numeric(value) for value in texts) - {None}
        self._texts = frozenset(as_text(v) for v in values if isinstance(v, (str, bool)))

    def accepts(self, value: Any) -> bool:
        """Whether a JSON value that is no object and no array equals one of these."""
        if isinstance(value, str):
            if value in self._texts:
                return True
            return bool(self._numbers) and _numeric(value) in self._numbers
        if value is None:
            return self._null
        if isinstance(value, bool):
            return as_text(value) in self._texts
        number = _exact(value)
        return number in self._numbers or number in self._spelt
