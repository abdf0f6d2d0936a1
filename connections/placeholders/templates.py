"""Texts with placeholders, e.g. ``{{ jwt:aud | fn:filter('like','some*') }}``.

What a placeholder stands for is the caller's business: it gives a lookup. A placeholder may have
several values, and a text then stands for several. Source: spec websocket-... 4.2 and 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import NamedTuple

from connections.placeholders.functions import FUNCTIONS, MAX_LENGTH, MAX_TEXTS, Values, apply

MAX_FUNCTIONS = 10
"""Functions in one pipeline (spec 4.2)."""

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
            if name == "delete":
                return ()  # for good: no later function brings a value back
            given = [
                tuple(lookup(*argument)) if isinstance(argument, Reference) else (argument,)
                for argument in arguments
            ]
            values = apply(name, values, given)
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
        found = ("".join(texts) for texts in islice(product(*choices), MAX_TEXTS))
        return tuple(text for text in found if len(text) <= MAX_LENGTH)


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
            raise self._wrong("a placeholder of the form prefix:name")
        return Reference(prefix, name)

    @staticmethod
    def _is_name(char: str) -> bool:
        return not char.isspace() and char not in "|(){}'\","

    def _call(self, name: str) -> Call:
        if name not in FUNCTIONS:
            raise PlaceholderError(f"unknown function fn:{name}; there is {', '.join(FUNCTIONS)}")
        self.expect("(")
        arguments: list[str | Reference] = []
        if not self._found(")"):
            arguments.append(self._argument())
            while self._found(","):
                arguments.append(self._argument())
            self.expect(")")
        if name == "filter" and arguments[1:] == ["exists"] and isinstance(arguments[0], Reference):
            arguments.append("true")  # the short form fn:filter(header:x,'exists')
        if len(arguments) not in FUNCTIONS[name][1]:
            allowed = " or ".join(map(str, FUNCTIONS[name][1]))
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
