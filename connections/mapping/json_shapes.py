"""Shapes: JSON with placeholders in its texts and keys, filled in from other JSON.

``"{{ json:/a/b }}"`` alone is the JSON value at that pointer; beside other text, or with functions,
it is a text. ``{"$number": "…"}`` is the number that a text comes to. What is not resolved is left
out of its object or array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from acks.document import parse_pointer
from acks.errors import GatewayError
from acks.facts import MISSING, descend
from connections.mapping.mappers import MappingFailed, number
from connections.placeholders.functions import Values
from connections.placeholders.lookups import Scope, read_template, values_of
from connections.placeholders.templates import Lookup, Pipeline, Template

JSON = frozenset({"json"})
"""The prefix of placeholders that are pointers into the JSON that is mapped."""
MAX_DEPTH = 50
"""Levels of objects and arrays in a shape."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a shape is filled in from: ``value`` is what ``json:`` points into."""

    value: Any
    scope: Scope

    def __call__(self, prefix: str, name: str) -> Values:
        """The Lookup of its texts."""
        return values_of(self.at(name)) if prefix == "json" else self.scope(prefix, name)

    def at(self, pointer: str) -> Any:
        """The JSON value at a pointer, MISSING if there is none."""
        return descend(self.value, parse_pointer(pointer))


Shape = Callable[[Ground], Any]
"""Makes a JSON value, MISSING if it is not resolved. Raises MappingFailed."""


def read_shape(value: Any, depth: int = 0) -> Shape:
    """Read a shape. Raises PlaceholderError, MappingFailed if it is nested too deeply."""
    if depth > MAX_DEPTH:
        raise MappingFailed(f"it is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return _text_shape(value)
    if isinstance(value, list):
        items = [read_shape(item, depth + 1) for item in value]
        return lambda ground: _present(item(ground) for item in items)
    if isinstance(value, Mapping):
        if value.keys() == {"$number"} and isinstance(value["$number"], str):
            return _number_shape(value["$number"])
        return _object_shape(value, depth)
    return lambda ground: value


def _present(items: Any) -> list[Any]:
    return [item for item in items if item is not MISSING]


def _object_shape(value: Mapping[str, Any], depth: int) -> Shape:
    members = [(read_text(key), read_shape(item, depth + 1)) for key, item in value.items()]

    def fill(ground: Ground) -> Any:
        found: dict[str, Any] = {}
        for key, shape in members:
            for name in key.resolve(ground)[:1]:
                item = shape(ground)
                if item is not MISSING:
                    found[name] = item
        return found

    return fill


def _text_shape(text: str) -> Shape:
    template = read_text(text)
    pointer = _only_pointer(template)
    if pointer is not None:
        return lambda ground: ground.at(pointer)
    return lambda ground: next(iter(template.resolve(ground)), MISSING) if text else ""


def _number_shape(text: str) -> Shape:
    template = read_text(text)

    def fill(ground: Ground) -> Any:
        found = template.resolve(ground)
        return number(found[0]) if found else MISSING

    return fill


def _only_pointer(template: Template) -> str | None:
    match template.parts:
        case (Pipeline(source=("json", pointer), calls=()),):
            return pointer
        case _:
            return None


# --- texts


def read_text(text: str) -> Template:
    """Read a text that may name ``json:`` beside the other placeholders.

    Raises PlaceholderError, and MappingFailed for a pointer that is none.
    """
    template = read_template(text, JSON)
    for part in template.parts:
        if isinstance(part, Pipeline):
            check_pointers(part)
    return template


def check_pointers(pipeline: Pipeline) -> None:
    """Raises MappingFailed for a ``json:`` whose name is no pointer."""
    for prefix, name in pipeline.references():
        if prefix == "json":
            check_pointer(name)


def check_pointer(text: str) -> None:
    """Raises MappingFailed for what is no JSON pointer."""
    try:
        parse_pointer(text)
    except GatewayError as problem:
        raise MappingFailed(problem.message) from None


def path_text(template: Template, lookup: Lookup, convert: Callable[[str], str]) -> str | None:
    """A text that consists of parts, each placeholder standing for one of them; None: unresolved.

    ``convert`` makes a part of a placeholder's value, so that a value cannot change where the
    others lead; a placeholder that is the whole text is taken as it is. Of several values the
    first counts.
    """
    pieces: list[str] = []
    for part in template.parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        values = part.resolve(lookup)
        if not values:
            return None
        pieces.append(values[0] if len(template.parts) == 1 else convert(values[0]))
    return "".join(pieces)
