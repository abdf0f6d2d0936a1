"""Texts with placeholders, e.g. ``{{ jwt:aud | fn:filter('like','some*') }}``.

What a placeholder stands for is the caller's business: it gives a lookup. A placeholder may have
several values, and a text then stands for several. Source: spec websocket-... 4.2 and 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import NamedTuple

from acks.wildcards import like

MAX_FUNCTIONS = 10
"""Functions in one pipeline (spec 4.2)."""
MAX_TEXTS = 1_000
"""Texts that one template stands for; further ones are left out."""

Values = tuple[str, ...]
Lookup = Callable[[str, str], Sequence[str]]
"""(prefix, name) -> what the placeholder stands for; nothing if it is not resolved."""


class PlaceholderError(ValueError):
    """A text with placeholders cannot be read; says where and why."""


class Reference(NamedTuple):
    """A placeholder, e.g. ``jwt:sub``."""

    prefix: str
    name: str


class Call(NamedTuple):
    """A function of a pipeline with its arguments: literals or placeholders."""

    name: str
    arguments: tuple[str | Reference, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What stands between the braces: a placeholder and the functions its values go through."""

    source: Reference | None
    calls: tuple[Call, ...]

    def resolve(self, lookup: Lookup, start: Values = ()) -> Values:
        """The values that come out, none if it is not resolved.

        ``start`` goes in where the pipeline begins with a function.
        """
        values = start if self.source is None else tuple(lookup(*self.source))
        for name, arguments in self.calls:
            given = [
                tuple(lookup(*argument)) if isinstance(argument, Reference) else (argument,)
                for argument in arguments
            ]
            values = _FUNCTIONS[name][0](values, given)
        return values

    def references(self) -> Iterator[Reference]:
        """Every placeholder in it."""
        if self.source is not None:
            yield self.source
        for call in self.calls:
            for argument in call.arguments:
                if isinstance(argument, Reference):
                    yield argument


@dataclass(frozen=True, slots=True)
class Template:
    """A text with pipelines in it."""

    parts: tuple[str | Pipeline, ...]

    def resolve(self, lookup: Lookup) -> Values:
        """All texts it stands for; none if one of its pipelines is not resolved."""
        choices = [
            part.resolve(lookup) if isinstance(part, Pipeline) else (part,) for part in self.parts
        ]
        return tuple("".join(texts) for texts in islice(product(*choices), MAX_TEXTS))


def parse_template(text: str, prefixes: frozenset[str]) -> Template:
    """Read a text with ``{{ … }}`` in it; ``prefixes`` are those its placeholders may have.

    Raises PlaceholderError.
    """
    parts: list[str | Pipeline] = []
    at = 0
    while (opening := text.find("{{", at)) >= 0:
        if opening > at:
            parts.append(text[at:opening])
        scanner = _Scanner(text, opening + 2)
        parts.append(_checked(scanner.pipeline(), prefixes))
        scanner.expect("}}")
        at = scanner.at
    if at < len(text):
        parts.append(text[at:])
    return Template(tuple(parts))


def parse_pipeline(text: str, prefixes: frozenset[str]) -> Pipeline:
    """Read a pipeline that stands alone, as ``fn:filter(header:qos,'ne','0')``.

    Raises PlaceholderError.
    """
    scanner = _Scanner(text, 0)
    pipeline = _checked(scanner.pipeline(), prefixes)
    scanner.expect_end()
    return pipeline


def _checked(pipeline: Pipeline, prefixes: frozenset[str]) -> Pipeline:
    for prefix, name in pipeline.references():
        if prefix not in prefixes:
            known = ", ".join(sorted(prefixes))
            raise PlaceholderError(f"unknown placeholder {prefix}:{name}; there is {known}")
    return pipeline


class _Scanner:
    """Reads ``text`` from ``at`` on."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def pipeline(self) -> Pipeline:
        """``prefix:name | fn:a(…) | …``; the first stage may be a function, too."""
        calls: list[Call] = []
        source = None
        first = self._reference()
        if first.prefix == "fn":
            calls.append(self._call(first.name))
        else:
            source = first
        while self._found("|"):
            stage = self._reference()
            if stage.prefix != "fn":
                raise self._wrong("a function such as fn:default('x')")
            calls.append(self._call(stage.name))
            if len(calls) > MAX_FUNCTIONS:
                raise PlaceholderError(f"more than {MAX_FUNCTIONS} functions in '{self.text}'")
        return Pipeline(source, tuple(calls))

    def expect(self, token: str) -> None:
        """Read ``token`` after blanks; raises PlaceholderError."""
        if not self._found(token):
            raise self._wrong(f"'{token}'")

    def expect_end(self) -> None:
        """Raises PlaceholderError unless nothing but blanks is left."""
        self._skip_blanks()
        if self.at < len(self.text):
            raise self._wrong("the end")

    def _reference(self) -> Reference:
        self._skip_blanks()
        begin = self.at
        while self.at < len(self.text) and self._is_name(self.text[self.at]):
            self.at += 1
        prefix, colon, name = self.text[begin : self.at].partition(":")
        if not (prefix and colon and name):
            self.at = begin
            raise self._wrong("a placeholder such as jwt:sub")
        return Reference(prefix, name)

    @staticmethod
    def _is_name(char: str) -> bool:
        return not char.isspace() and char not in "|(){}'\","

    def _call(self, name: str) -> Call:
        if name not in _FUNCTIONS:
            raise PlaceholderError(f"unknown function fn:{name}; there is {', '.join(_FUNCTIONS)}")
        self.expect("(")
        arguments: list[str | Reference] = []
        if not self._found(")"):
            arguments.append(self._argument())
            while self._found(","):
                arguments.append(self._argument())
            self.expect(")")
        if len(arguments) not in _FUNCTIONS[name][1]:
            allowed = " or ".join(map(str, _FUNCTIONS[name][1]))
            raise PlaceholderError(f"fn:{name} takes {allowed} arguments, not {len(arguments)}")
        return Call(name, tuple(arguments))

    def _argument(self) -> str | Reference:
        self._skip_blanks()
        quote = self.text[self.at : self.at + 1]
        if quote not in ("'", '"'):
            return self._reference()
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self._wrong(f"a closing {quote}")
        literal = self.text[self.at + 1 : end]
        self.at = end + 1
        return literal

    def _found(self, token: str) -> bool:
        self._skip_blanks()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def _skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _wrong(self, wanted: str) -> PlaceholderError:
        return PlaceholderError(f"expected {wanted} at character {self.at + 1} of '{self.text}'")


# --- functions -------------------------------------------------------------------------------


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


def _split(values: Values, arguments: list[Values]) -> Values:
    separator = "".join(arguments[0])
    if not separator:
        return values
    return tuple(piece for value in values for piece in value.split(separator) if piece)


def _join(values: Values, arguments: list[Values]) -> Values:
    return ("".join(arguments[0]).join(values),) if values else ()


def _replace(values: Values, arguments: list[Values]) -> Values:
    old, new = ("".join(argument) for argument in arguments)
    return tuple(value.replace(old, new) for value in values) if old else values


_FUNCTIONS: dict[str, tuple[Callable[[Values, list[Values]], Values], tuple[int, ...]]] = {
    "filter": (_filter, (2, 3)),
    "default": (_default, (1,)),
    "split": (_split, (1,)),
    "join": (_join, (1,)),
    "replace": (_replace, (2,)),
    "lower": (lambda values, _: tuple(value.lower() for value in values), (0,)),
    "upper": (lambda values, _: tuple(value.upper() for value in values), (0,)),
    "trim": (lambda values, _: tuple(value.strip() for value in values), (0,)),
}
"""Function -> how it works, and how many arguments it takes."""
