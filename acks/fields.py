"""Field selectors such as ``thingId,attributes(a,b/c),features/*/properties`` (spec 7)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from acks.document import MAX_DEPTH, parse_pointer
from acks.errors import error
from acks.facts import MISSING
from acks.signals import JsonObject

Path = tuple[str, ...]
Tree = dict[str, "Tree | None"]
"""Selected names; None is everything below."""

MAX_LENGTH = 8192
"""Characters of a selector."""
MAX_FIELDS = 500
"""Fields of a selector."""
_EVERY = ""
"""The key of a tree that stands for every name; no name is empty."""
_PLACEHOLDER = r"\{\{[^{}]*+\}\}"
_TOKEN = re.compile(rf"((?:{_PLACEHOLDER}|[^,()])++)|[,()]")
_PART = re.compile(rf"(?:{_PLACEHOLDER}|[^/])++")
_THING_FIELDS = frozenset(
    {
        "thingId", "policyId", "definition", "attributes", "features", "_namespace", "_revision",
        "_created", "_modified", "_metadata", "_policy", "_context",
    }
)  # fmt: skip
_DEEP = frozenset({"attributes", "features", "_context"})
_TRAILING_SLASH = re.compile(r"/(?:[,)]|$)")


@dataclass(frozen=True, slots=True)
class Selector:
    """The selected paths, each once, in the order given."""

    pointers: tuple[Path, ...]
    tree: Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", _tree(self.pointers))


def parse_fields(text: str) -> Selector:
    """Read a comma separated list of JSON pointers; parentheses hold what is below a field.

    What stands between ``{{`` and ``}}`` is kept as it is. Raises ``json.fieldselector.invalid``,
    and ``json.pointer.invalid`` for two slashes in a row.
    """
    if len(text) > MAX_LENGTH:
        _fail(text, f"It has more than {MAX_LENGTH:,} characters.")
    pointers: dict[Path, None] = {}
    above: list[Path] = [()]  # of every parenthesis that is open, the field before it
    name: Path = ()  # the field just read
    closed = False  # whether a parenthesis was closed just now
    for found in _TOKEN.finditer(f"{text},"):
        mark = found[0]
        if found[1]:
            if closed:
                _fail(text, f"'{_shown(mark)}' follows a closing parenthesis.")
            name = _below(text, above[-1], mark)
            continue
        if not name and (mark == "(" or not closed):
            _fail(text, f"A field name is missing before '{mark}' or at the end.")
        if mark == "(":
            above.append(name)
        elif name:
            pointers[name] = None
        if mark == ")":
            above.pop()
        if not above:
            _fail(text, "It closes a parenthesis that it did not open.")
        name, closed = (), mark == ")"
        if len(pointers) > MAX_FIELDS:
            _fail(text, f"It names more than {MAX_FIELDS} fields.")
    if len(above) > 1:
        _fail(text, "A parenthesis is not closed.")
    return Selector(tuple(pointers))


def parse_extra_fields(text: str) -> Selector:
    """Read a selector of enrichment, which may name fields of a thing only (spec 7: extraFields).

    With placeholders in it nothing is checked before they are known.
    Raises ``things:field.selection.invalid`` and what :func:`parse_fields` raises.
    """
    selector = parse_fields(text)
    if "{{" in text:
        return selector
    known = all(
        path[0] in _THING_FIELDS and (len(path) == 1 or path[0] in _DEEP)
        for path in selector.pointers
    )
    if not known or _TRAILING_SLASH.search(text):
        reason = (
            "Name fields of a thing, separated by commas without blanks. The fields are "
            f"{', '.join(sorted(_THING_FIELDS))}; something below them can be named for "
            f"{', '.join(sorted(_DEEP))}."
        )
        raise error("things:field.selection.invalid", text=_shown(text), reason=reason)
    return selector


def select(selector: Selector, document: JsonObject) -> JsonObject:
    """The selected parts of ``document``, which stays as it is; what is missing is left out.

    ``features/*`` stands for every feature. The values are shared with ``document``, not copied.
    """
    found = _select(selector.tree, document)
    return {} if found is MISSING else found


def _select(tree: Tree | None, value: Any) -> Any:
    if tree is None:
        return value
    if not isinstance(value, dict):
        return MISSING
    # The smaller of the two is walked, so that the work is bounded by the document.
    names = tree if len(tree) <= len(value) and _EVERY not in tree else value
    found = {}
    for name in names:
        key = name if name in tree else _EVERY
        if name in value and key in tree:
            below = _select(tree[key], value[name])
            if below is not MISSING:
                found[name] = below
    return found or MISSING


def _below(text: str, above: Path, name: str) -> Path:
    path = tuple(_PART.findall(name)) if "{{" in name else parse_pointer(name)
    if not path:
        _fail(text, "A field name is missing.")
    if len(above) + len(path) > MAX_DEPTH:
        _fail(text, f"It goes more than {MAX_DEPTH} levels deep.")
    return (*above, *path)


def _fail(text: str, reason: str) -> NoReturn:
    raise error("json.fieldselector.invalid", text=_shown(text), reason=reason)


def _shown(text: str) -> str:
    return text if len(text) <= 64 else text[:64] + "..."


def _tree(pointers: tuple[Path, ...]) -> Tree:
    tree: Tree = {}
    for path in pointers:
        _insert(tree, path)
    features = tree.get("features")
    if features and "*" in features:
        everywhere = features.pop("*")
        for name, below in features.items():
            features[name] = _merged(below, everywhere)
        features[_EVERY] = everywhere
    return tree


def _insert(tree: Tree, path: Path) -> None:
    node = tree
    for part in path[:-1]:
        below = node.setdefault(part, {})
        if below is None:
            return
        node = below
    node[path[-1]] = None


def _merged(one: Tree | None, other: Tree | None) -> Tree | None:
    if one is None or other is None:
        return None
    merged = dict(one)
    for name, below in other.items():
        merged[name] = _merged(merged[name], below) if name in merged else below
    return merged
