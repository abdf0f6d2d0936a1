"""The options of a search: ``sort(+a,-b),size(25),cursor(x),limit(0,25)`` (spec websocket-... 6.4).

Reading them is in two steps, as their errors are: :func:`parse_options` knows the grammar,
:func:`read_options` what they may say together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from acks.errors import GatewayError, error
from acks.rql import Comparison, format_predicate, parse_checked
from acks.scanner import Scanner

MAX_LENGTH = 65_536
"""Characters of all options: a cursor may hold a long filter."""
MAX_OPTIONS = 20
MAX_SORT_KEYS = 8
"""Properties of one ``sort``: each costs a join."""
DEFAULT_SIZE = 25
MAX_SIZE = 200
_THING_ID = "thingId"
_DIGITS = 18
"""Digits of a number: more of them would be an offset that no index reaches."""

_NAME = re.compile(r"(sort|size|cursor|limit)\(")
# A form decodes "+" to a blank, so that a blank stands for it.
_SORT_KEY = re.compile(r'([+ -])((?:[^,()"\\]++|\\.)++)', re.DOTALL)
_CURSOR = re.compile(r"[A-Za-z0-9_-]+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class SortKey(NamedTuple):
    """A property to sort by, named without a leading slash."""

    property: str
    descending: bool


BY_ID = SortKey(_THING_ID, False)
"""How things are sorted if nothing is said."""


class Sort(NamedTuple):
    """``sort(...)``."""

    keys: tuple[SortKey, ...]


class Size(NamedTuple):
    """``size(n)``."""

    number: int


class Cursor(NamedTuple):
    """``cursor(text)``."""

    text: str


class Limit(NamedTuple):
    """``limit(offset,count)``."""

    offset: int
    number: int


Option = Sort | Size | Cursor | Limit


@dataclass(frozen=True, slots=True)
class Options:
    """What a search is asked for beside its filter.

    ``sort`` ends with the thing's id, so that it is a total order; ``sorted_by`` is None if none
    was named. ``offset`` is None unless pages are counted by ``limit``.
    """

    sort: tuple[SortKey, ...] = (BY_ID,)
    size: int = DEFAULT_SIZE
    offset: int | None = None
    cursor: str | None = None
    sorted_by: tuple[SortKey, ...] | None = None


DEFAULT = Options()


def parse_options(text: str) -> list[Option]:
    """Read options by their grammar; "" is none. Raises ``thing-search:search.option.invalid``."""
    if len(text) > MAX_LENGTH:
        raise invalid(f"The options have at most {MAX_LENGTH:,} characters.")
    return _Parser(text).run() if text else []


def read_options(options: list[Option]) -> Options:
    """What ``options`` say together; raises ``thing-search:search.option.invalid``."""
    found: dict[type[Option], Option] = {}
    for option in options:
        kind = type(option)
        if kind in found:
            name = kind.__name__.lower()
            raise invalid(f"There may not be more than 1 '{name}' option.")
        found[kind] = option
    if Limit in found:
        for kind in (Cursor, Size):
            if kind in found:
                name = kind.__name__.lower()
                raise invalid(f"The options '{name}' and 'limit' must not be used together.")
    size, offset = DEFAULT_SIZE, None
    sorted_by = cursor = None
    for option in found.values():
        match option:
            case Sort(keys):
                sorted_by = keys
            case Size(number):
                size = _count("size", number)
            case Cursor(text):
                cursor = text
            case Limit(first, number):
                size, offset = _count("limit", number), _offset(first)
    return Options(total(sorted_by or ()), size, offset, cursor, sorted_by)


def total(keys: tuple[SortKey, ...]) -> tuple[SortKey, ...]:
    """``keys`` as a total order: up to the thing's id, which is appended if it is missing.

    Raises ``thing-search:search.option.invalid`` for a property that there is not.
    """
    order: list[SortKey] = []
    for key in keys:
        _check_property(key.property)
        if all(key.property != earlier.property for earlier in order):
            order.append(key)
        if key.property == _THING_ID:
            return tuple(order)
    return (*order, BY_ID)


def format_sort(keys: tuple[SortKey, ...]) -> str:
    """The option that :func:`parse_options` reads as ``keys``."""
    inner = ",".join(
        ("-" if key.descending else "+") + re.sub(r'([,()"\\])', r"\\\1", key.property)
        for key in keys
    )
    return f"sort({inner})"


def invalid(reason: str) -> GatewayError:
    """The error of an option."""
    return error("thing-search:search.option.invalid", reason=reason)


def _count(name: str, number: int) -> int:
    if number < 1:
        raise invalid(f"The option '{name}' must be a positive integer.")
    if number > MAX_SIZE:
        raise invalid(
            f"Parameter <{name}> must be less than or equal to <{MAX_SIZE}> but it was <{number}>!"
        )
    return number


def _offset(offset: int) -> int:
    if offset < 0:
        raise invalid("The offset of the option 'limit' must not be negative.")
    return offset


def _check_property(name: str) -> None:
    if name.removeprefix("/").split("/")[:2] == ["features", "*"]:
        raise invalid("The option 'sort' takes no property of all features.")
    try:
        parse_checked(format_predicate(Comparison("eq", name, (None,))), frozenset())
    except GatewayError:
        shown = name if len(name) <= 64 else name[:64] + "..."
        raise invalid(f"Unknown property name: {shown}") from None


class _Parser(Scanner):
    """Reads the options."""

    def __init__(self, text: str) -> None:
        super().__init__(text, lambda why: invalid(f"The search options are invalid: {why}"))

    def run(self) -> list[Option]:
        options = [self.option()]
        while self.skip(","):
            options.append(self.option())
            if len(options) > MAX_OPTIONS:
                raise invalid(f"There are at most {MAX_OPTIONS} options.")
        if self.at < len(self.text):
            self.fail("the end")
        return options

    def option(self) -> Option:
        name = self.must(_NAME, "'sort(', 'size(', 'cursor(' or 'limit('")[1]
        option: Option
        if name == "sort":
            option = Sort(self.sort_keys())
        elif name == "cursor":
            option = Cursor(self.must(_CURSOR, "a cursor")[0])
        elif name == "size":
            option = Size(self.integer())
        else:
            offset = self.integer()
            self.need(",")
            option = Limit(offset, self.integer())
        self.need(")")
        return option

    def sort_keys(self) -> tuple[SortKey, ...]:
        keys = [self.sort_key()]
        while self.skip(","):
            keys.append(self.sort_key())
            if len(keys) > MAX_SORT_KEYS:
                raise invalid(f"The option 'sort' takes at most {MAX_SORT_KEYS} properties.")
        return tuple(keys)

    def sort_key(self) -> SortKey:
        found = self.must(_SORT_KEY, "'+' or '-' and a property")
        name = _ESCAPE.sub(r"\1", found[2]).removeprefix("/")
        return SortKey(name, found[1] == "-")

    def integer(self) -> int:
        digits = self.must(_INTEGER, "an integer")[0]
        if len(digits) > _DIGITS:
            raise invalid(f"A number has at most {_DIGITS} digits.")
        return int(digits)

    def must(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = self.take(pattern)
        if found is None:
            self.fail(expected)
        return found
