"""RQL: parse an expression, ask whether a thing or an event fits it (spec websocket-... 6.1-6.3).

A parsed :data:`Predicate` is an immutable value. Parsing and evaluating take bounded time whatever
the text: see the limits below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

from acks.comparing import Members, as_text, comparable, scalars
from acks.document import parse_pointer
from acks.errors import GatewayError, error
from acks.facts import MISSING, Facts
from acks.placeholders import PREFIXES, is_placeholder, resolve_time
from acks.scanner import Scanner
from acks.wildcards import like

MAX_LENGTH = 16_384
"""Characters of an expression."""
MAX_DEPTH = 50
"""Operators inside each other."""
MAX_COMPARISONS = 100
"""Operators that look at a property: each may walk through all of a large array."""
MAX_VALUES = 1000
"""Values of one ``in``."""
MAX_STEPS = 100_000
"""Values of a thing that one evaluation compares: more would keep everybody else waiting."""
_INT64 = 2**63

# --- the predicate -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Time:
    """A value such as ``time:now-2h``, known only when a predicate is evaluated."""

    name: str  # without "time:"


Literal = str | int | float | bool | Time | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """``eq ne gt ge lt le like ilike`` of a property and a value, or ``in`` and its values."""

    operator: str
    property: str
    values: tuple[Literal, ...]
    members: Members | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        timeless = not any(isinstance(value, Time) for value in self.values)
        equality = self.operator in ("eq", "ne", "in")
        members = Members(self.values) if timeless and equality else None
        object.__setattr__(self, "members", members)


@dataclass(frozen=True, slots=True)
class Presence:
    """``exists`` or ``empty`` of a property."""

    operator: str
    property: str


@dataclass(frozen=True, slots=True)
class Logic:
    """``and`` and ``or`` of at least one predicate, ``not`` of exactly one."""

    operator: str
    children: tuple[Predicate, ...]


Predicate = Comparison | Presence | Logic

# --- parsing -----------------------------------------------------------------------------------

_ESCAPED = r"(?:[%s\\/bfnrt]|u[0-9A-Fa-f]{4})"
_BLANKS = " \n\r\t\f"
_SPACE = re.compile(f"[{_BLANKS}]*")
_OPERATOR = re.compile(r"(eq|ne|gt|ge|lt|le|like|ilike|in|and|or|not|exists|empty)\(")
_PROPERTY = re.compile(rf'(?:[^,)"\\]++|\\{_ESCAPED % chr(34)})*+')
_TEXTS = {
    '"': re.compile(rf'"((?:[^"\\]++|\\{_ESCAPED % chr(34)})*+)"'),
    "'": re.compile(rf"'((?:[^'\\]++|\\{_ESCAPED % chr(39)})*+)'"),
}
_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]*+)(\.[0-9]++)?")
_WORD = re.compile(r"true|false|null")
_WORDS: Mapping[str, Literal] = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def parse(text: str) -> Predicate:
    """Read an RQL expression (spec 6.1); any property name will do here.

    Raises ``rql.expression.invalid``.
    """
    if len(text) > MAX_LENGTH:
        raise _invalid(f"An RQL expression has at most {MAX_LENGTH:,} characters.")
    return _Parser(text).run()


def parse_checked(text: str, prefixes: frozenset[str]) -> Predicate:
    """Read an RQL expression whose properties exist (spec 6.1, 6.2).

    ``prefixes`` are the placeholders that may be named, e.g. :data:`CONDITION_PREFIXES`.
    Raises ``rql.expression.invalid``.
    """
    predicate = parse(text)
    for leaf in leaves(predicate):
        if not _is_known(leaf.property, prefixes, isinstance(leaf, Presence)):
            raise _invalid(f"Unknown property name: {_shown(leaf.property.removeprefix('/'))}")
        for value in leaf.values if isinstance(leaf, Comparison) else ():
            if isinstance(value, Time) and not is_placeholder("time", value.name):
                raise _invalid(f"Unknown placeholder: {_shown('time:' + value.name)}")
    return predicate


def leaves(predicate: Predicate) -> Iterator[Comparison | Presence]:
    """The operators of ``predicate`` that look at a property."""
    stack = [predicate]
    while stack:
        item = stack.pop()
        if isinstance(item, Logic):
            stack.extend(reversed(item.children))
        else:
            yield item


def _invalid(reason: str) -> GatewayError:
    return error("rql.expression.invalid", reason=reason)


def _shown(text: str) -> str:
    return text if len(text) <= 64 else text[:64] + "..."


class _Parser(Scanner):
    """Reads one expression."""

    def __init__(self, text: str) -> None:
        super().__init__(text, lambda why: _invalid(f"The RQL expression is invalid: {why}"))
        self.comparisons = 0

    def run(self) -> Predicate:
        self.take(_SPACE)
        predicate = self.query(1)
        if self.at < len(self.text):
            self.fail("the end")
        return predicate

    def query(self, depth: int) -> Predicate:
        if depth > MAX_DEPTH:
            raise _invalid(f"The RQL expression is nested more than {MAX_DEPTH} levels deep.")
        found = self.take(_OPERATOR)
        if found is None:
            self.fail("an operator")
        operator = found[1]
        predicate: Predicate
        if operator in ("and", "or", "not"):
            predicate = self.logic(operator, depth)
        else:
            self.comparisons += 1
            if self.comparisons > MAX_COMPARISONS:
                raise _invalid(f"An RQL expression has at most {MAX_COMPARISONS} comparisons.")
            predicate = self.leaf(operator)
        self.need(")")
        return predicate

    def logic(self, operator: str, depth: int) -> Logic:
        children = [self.query(depth + 1)]
        while operator != "not" and self.skip(","):
            self.take(_SPACE)
            children.append(self.query(depth + 1))
        return Logic(operator, tuple(children))

    def leaf(self, operator: str) -> Predicate:
        found = self.take(_PROPERTY)
        name = self.unescape(found[0] if found else "")
        if operator in ("exists", "empty"):
            return Presence(operator, name)
        self.need(",")
        values = [self.literal()]
        while operator == "in" and self.skip(","):
            values.append(self.literal())
            if len(values) > MAX_VALUES:
                raise _invalid(f"'in' takes at most {MAX_VALUES:,} values.")
        return Comparison(operator, name, tuple(values))

    def literal(self) -> Literal:
        value: Literal
        if found := self.take(_NUMBER):
            value = self.number(found)
        elif found := self.take(_WORD):
            value = _WORDS[found[0]]
        elif self.text.startswith("time:", self.at):
            found = _PROPERTY.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            value = Time(found[0].removeprefix("time:").rstrip(_BLANKS))
        else:
            quoted = _TEXTS.get(self.text[self.at : self.at + 1])
            found = self.take(quoted) if quoted else None
            if found is None:
                self.fail("a value")
            value = self.unescape(found[1])
        self.take(_SPACE)
        return value

    def number(self, found: re.Match[str]) -> int | float:
        text = found[0]
        value: int | float = math.inf
        if found[1]:
            value = float(text)
        elif text != "-0" and len(text) <= 20:
            value = int(text)
        if abs(value) == math.inf or (isinstance(value, int) and not -_INT64 <= value < _INT64):
            self.at = found.start()
            self.fail("a number that fits 64 bits")
        return value

    def unescape(self, text: str) -> str:
        if "\\" not in text:
            return text

        def character(found: re.Match[str]) -> str:
            name = found[1]
            return chr(int(name[1:], 16)) if name[0] == "u" else _ESCAPES.get(name, name)

        plain = _ESCAPE.sub(character, text)
        try:
            # Two escaped halves of a character become it; a half alone is no text.
            return plain.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _invalid("The RQL expression holds half a character (a surrogate).") from None


# --- properties --------------------------------------------------------------------------------

CONDITION_PREFIXES = frozenset({"time"})
"""What a condition may name beside the fields of a thing."""
EVENT_PREFIXES = PREFIXES
"""What the filter of a subscription may name (spec 6.2)."""
_SIMPLE = frozenset(
    {"thingId", "policyId", "_namespace", "_revision", "_created", "_modified", "definition"}
)
_FEATURE = re.compile(
    r"features/[^/]+"
    r"(?:(?P<compared>/definition/?|/(?:properties|desiredProperties)/.+)"
    r"|/(?:properties|desiredProperties)/?)?",
    re.DOTALL,
)


def _is_known(name: str, prefixes: frozenset[str], presence: bool) -> bool:
    """Whether there is such a property; ``presence``: for exists and empty, which know more."""
    field_name = name.removeprefix("/")
    if field_name in _SIMPLE:
        return True
    root, _, rest = field_name.partition("/")
    if root in ("attributes", "_metadata", "features"):
        if root == "features":
            found = _FEATURE.fullmatch(field_name)
            if found is None or not (presence or found["compared"]):
                return False
        return rest.strip("/") != "" and "//" not in field_name
    prefix, _, rest = name.partition(":")
    return prefix in prefixes and is_placeholder(prefix, rest)


# --- evaluation --------------------------------------------------------------------------------

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {"gt": gt, "ge": ge, "lt": lt, "le": le}


def matches(predicate: Predicate, facts: Facts, now: datetime) -> bool:
    """Whether ``facts`` fit ``predicate`` at ``now``, an aware datetime (spec 6.3).

    Raises ``rql.expression.invalid`` if that takes more than :data:`MAX_STEPS`.
    """
    return _Evaluation(facts, now).matches(predicate)


class _Evaluation:
    """One evaluation; ``steps`` is how many values it may still look at."""

    __slots__ = ("facts", "now", "steps")

    def __init__(self, facts: Facts, now: datetime) -> None:
        self.facts = facts
        self.now = now
        self.steps = MAX_STEPS

    def matches(self, predicate: Predicate) -> bool:
        if isinstance(predicate, Logic):
            if predicate.operator == "and":
                return all(self.matches(child) for child in predicate.children)
            fits = any(self.matches(child) for child in predicate.children)
            return fits if predicate.operator == "or" else not fits
        value = self.find(predicate.property)
        if isinstance(predicate, Comparison):
            return self.compare(predicate, value)
        if predicate.operator == "exists":
            return value is not MISSING
        return value is MISSING or value is None or value in ("", [], {})

    def find(self, name: str) -> Any:
        prefix, _, rest = name.partition(":")
        if prefix not in PREFIXES:
            return self.facts.find(parse_pointer(name))
        found = resolve_time(rest, self.now) if prefix == "time" else self.facts.placeholder(name)
        return MISSING if found is None else found

    def compare(self, predicate: Comparison, value: Any) -> bool:
        operator = predicate.operator
        items = self.counted(value)
        if operator in ("eq", "ne", "in"):
            members = predicate.members
            if members is None:
                members = Members(tuple(_resolved(item, self.now) for item in predicate.values))
            return any(members.accepts(item) for item in items) != (operator == "ne")
        literal = _resolved(predicate.values[0], self.now)
        if literal is None:
            return False
        if operator in _ORDERS:
            order = _ORDERS[operator]
            return any(i is not None and order(*comparable(i, literal)) for i in items)
        pattern, ignore_case = as_text(literal), operator == "ilike"
        return any(isinstance(i, str) and like(i, pattern, ignore_case) for i in items)

    def counted(self, value: Any) -> Iterator[Any]:
        for item in scalars(value):
            # A pattern walks through a text, so a long one counts for more.
            self.steps -= 1 + len(item) // 8 if isinstance(item, str) else 1
            if self.steps < 0:
                raise _invalid(f"The RQL expression compares more than {MAX_STEPS:,} values.")
            yield item


def _resolved(literal: Literal, now: datetime) -> Literal:
    return resolve_time(literal.name, now) if isinstance(literal, Time) else literal


# --- formatting --------------------------------------------------------------------------------

_UNSAFE = re.compile(r'[\x00-\x1f"\\]')
_UNSAFE_IN_PROPERTY = re.compile(r'[\x00-\x1f"\\,)]')


def format_predicate(predicate: Predicate) -> str:
    """The expression of a parsed predicate: parsing it again gives the same predicate."""
    if isinstance(predicate, Logic):
        inner = ",".join(format_predicate(child) for child in predicate.children)
    else:
        inner = _UNSAFE_IN_PROPERTY.sub(_escape, predicate.property)
    if isinstance(predicate, Comparison):
        inner = ",".join((inner, *(_format_literal(value) for value in predicate.values)))
    return f"{predicate.operator}({inner})"


def _escape(found: re.Match[str]) -> str:
    return "\\" + found[0] if found[0] in '"\\' else f"\\u{ord(found[0]):04x}"


def _format_literal(value: Literal) -> str:
    if isinstance(value, Time):
        return f"time:{value.name}"
    if isinstance(value, str):
        return f'"{_UNSAFE.sub(_escape, value)}"'
    if isinstance(value, float):
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    return "null" if value is None else as_text(value)
