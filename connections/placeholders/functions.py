"""Functions of pipelines: ``fn:default``, ``fn:filter`` ... (spec websocket-... 4.2).

Each takes the values that come in and its arguments, both of which may be several or none, and
gives the values that go out. What a function cannot be applied to goes no further; nothing raises.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from itertools import chain, islice, product
from typing import Any
from urllib.parse import quote, unquote_plus

from acks.wildcards import like

MAX_TEXTS = 1_000
"""Values that a pipeline or a template comes to; further ones are left out."""
MAX_LENGTH = 1_000_000
"""Characters of a value; a longer one is left out."""

Values = tuple[str, ...]
Function = Callable[[Values, list[Values]], Values]


# --- choosing ----------------------------------------------------------------------------------


def _filter(values: Values, arguments: list[Values]) -> Values:
    """With three arguments all values or none, with two each value by itself (spec 4.2)."""
    if len(arguments) == 3:
        left, operator, right = arguments
        return values if _holds(left, operator, right) else ()
    operator, right = arguments
    return tuple(value for value in values if _holds((value,), operator, right))


def _holds(left: Values, operator: Values, right: Values) -> bool:
    match operator:
        case ("exists",):
            return right in (("true",), ("false",)) and bool(left) == (right == ("true",))
        case ("eq",):
            return not set(left or ("",)).isdisjoint(right or ("",))
        case ("ne",):
            return set(left or ("",)).isdisjoint(right or ("",))
        case ("like",):
            patterns = [pattern for value in right or ("",) for pattern in value.split("|")]
            return any(like(value, pattern) for value in left or ("",) for pattern in patterns)
        case _:
            return False  # an unknown operator filters everything away (spec 4.2)


def _default(values: Values, arguments: list[Values]) -> Values:
    return values or arguments[0]


def _delete(_: Values, __: list[Values]) -> Values:
    return ()


# --- cutting and joining -----------------------------------------------------------------------


def _before(values: Values, arguments: list[Values]) -> Values:
    mark = _text(arguments[0])
    return tuple(value.partition(mark)[0] for value in values if mark and mark in value)


def _after(values: Values, arguments: list[Values]) -> Values:
    mark = _text(arguments[0])
    return tuple(value.partition(mark)[2] for value in values if mark and mark in value)


def _split(values: Values, arguments: list[Values]) -> Values:
    separator = _text(arguments[0])
    if not separator:
        return values
    pieces = (piece for value in values for piece in value.split(separator) if piece)
    return tuple(islice(pieces, MAX_TEXTS))


def _join(values: Values, arguments: list[Values]) -> Values:
    between = _text(arguments[0])
    if not values or _total(values) + len(between) * len(values) > MAX_LENGTH:
        return ()
    return (between.join(values),)


def _replace(values: Values, arguments: list[Values]) -> Values:
    old, new = map(_text, arguments)
    if not old:
        return values
    return tuple(
        value.replace(old, new)
        for value in values
        if len(value) + value.count(old) * len(new) <= MAX_LENGTH
    )


# --- encoding ----------------------------------------------------------------------------------


def _each(convert: Callable[[str], str]) -> Function:
    return lambda values, _: tuple(convert(value) for value in values)


def _base64_decoded(values: Values, _: list[Values]) -> Values:
    """Text only: what is no base64, or no text in UTF-8, is left out."""
    decoded: list[str] = []
    for value in values:
        try:
            decoded.append(b64decode(value, validate=True).decode())
        except (binascii.Error, ValueError):
            continue
    return tuple(decoded)


_FIELD = re.compile(r"\{([^{}]*)\}")


def _format(values: Values, arguments: list[Values]) -> Values:
    """``fn:format('{name}#{/a/pointer}')``: fields of each value, which is a JSON object.

    A field that is an array stands for several texts, one that is missing for an empty text.
    """
    template = _text(arguments[0])
    texts = chain.from_iterable(_formatted(value, template) for value in values)
    return tuple(islice(texts, MAX_TEXTS))


def _formatted(value: str, template: str) -> Iterator[str]:
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return
    if not isinstance(fields, dict):
        return
    pieces = _FIELD.split(template)  # literals and names take turns
    choices: list[Values] = []
    for index, piece in enumerate(pieces):
        choices.append(_field(fields, piece) if index % 2 else (piece,))
    for texts in islice(product(*choices), MAX_TEXTS):
        if _total(texts) <= MAX_LENGTH:
            yield "".join(texts)


def _field(fields: Any, name: str) -> Values:
    parts = name.split("/")[1:] if name.startswith("/") else [name]
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        fields = fields.get(key) if isinstance(fields, dict) else None
    items = fields if isinstance(fields, list) else [fields]
    return tuple("" if item is None else json_text(item) for item in items) or ("",)


# --- values ------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """A JSON value as text: a string as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _text(argument: Values) -> str:
    return "".join(argument)


def _total(values: Values) -> int:
    return sum(map(len, values))


FUNCTIONS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "filter": (_filter, (2, 3)),
    "default": (_default, (1,)),
    "delete": (_delete, (0,)),
    "substring-before": (_before, (1,)),
    "substring-after": (_after, (1,)),
    "split": (_split, (1,)),
    "join": (_join, (1,)),
    "replace": (_replace, (2,)),
    "format": (_format, (1,)),
    "lower": (_each(str.lower), (0,)),
    "upper": (_each(str.upper), (0,)),
    "trim": (_each(str.strip), (0,)),
    "url-encode": (_each(lambda text: quote(text, safe="", errors="replace")), (0,)),
    "url-decode": (_each(lambda text: unquote_plus(text, errors="replace")), (0,)),
    "base64-encode": (_each(lambda text: b64encode(text.encode(errors="replace")).decode()), (0,)),
    "base64-decode": (_base64_decoded, (0,)),
}
"""Function -> how it works, and how many arguments it takes."""


def apply(name: str, values: Values, arguments: list[Values]) -> Values:
    """What comes out of ``fn:<name>``, within the bounds of this module. Raises KeyError."""
    found = FUNCTIONS[name][0](values, arguments)
    if len(found) > MAX_TEXTS or any(len(value) > MAX_LENGTH for value in found):
        return tuple(value for value in found[:MAX_TEXTS] if len(value) <= MAX_LENGTH)
    return found
