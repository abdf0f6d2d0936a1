"""The rules of the job ``validate``: their file, and what of an event each of them is about."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from acks.document import parse_pointer
from acks.errors import GatewayError

ABSENT: Final = object()
"""What :meth:`Rule.part` gives for an event that does not touch the rule's path."""

_KEYS: Final = ("name", "definition", "path", "sql", "schema", "schema-file", "status", "message")
_STRUCTURE: Final = (
    None, "type", "properties", "patternProperties", "additionalProperties",
    "unevaluatedProperties", "propertyNames",
)  # fmt: skip
"""Keywords of a JSON schema that say something about what is there, not about what is missing."""
_REASON: Final = 200  # characters
_REASONS: Final = 5  # of one rule about one event


class RulesError(ValueError):
    """A rules file cannot be used; the text names the file, the rule and what is wrong."""


@dataclass(frozen=True)
class Rule:
    """One rule: ``sql`` or ``schema`` for the part at ``path`` of things with a ``definition``.

    ``definition`` may have ``*`` for any text; None: things of every definition, or of none.
    """

    name: str
    path: tuple[str, ...] = ()
    definition: str | None = None
    sql: str | None = None
    schema: Any = None
    status: int = 422
    message: str | None = None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        assert self.definition is not None
        return re.compile(".*".join(map(re.escape, self.definition.split("*"))), re.DOTALL)

    @cached_property
    def _validator(self) -> Any:
        from jsonschema.validators import validator_for

        return validator_for(self.schema)(self.schema)

    def is_for(self, definition: str | None) -> bool:
        """Whether the rule is about things of this definition."""
        if self.definition is None:
            return True
        return definition is not None and self._pattern.fullmatch(definition) is not None

    def part(self, path: tuple[str, ...], value: Any) -> Any:
        """What an event says about the rule's path, or :data:`ABSENT`.

        ``value`` is what is new at ``path``, :data:`ABSENT` for a deletion. A change below the
        rule's path gives an object that has only what the change says.
        """
        if value is ABSENT:
            return ABSENT
        depth = len(self.path)
        if path[:depth] == self.path:
            for name in reversed(path[depth:]):
                value = {name: value}
            return value
        if self.path[: len(path)] != path:
            return ABSENT
        for name in self.path[len(path) :]:
            if not isinstance(value, dict) or name not in value:
                return ABSENT
            value = value[name]
        return value

    def reasons(self, part: Any, above: int, merged: bool) -> list[str]:
        """Why ``part`` breaks the schema; nothing if it does not.

        The objects above a change (the outer ``above`` ones), and all objects of a merge, have only
        what the change says: what they lack is no reason.
        """
        found = []
        for problem in self._validator.iter_errors(part):
            partial = len(problem.absolute_path) < above
            partial |= merged and isinstance(problem.instance, dict)
            if not partial or problem.validator in _STRUCTURE:
                found.append(f"{_place(self.path, problem.absolute_path)}: {problem.message}")
        return [reason[:_REASON] for reason in found[:_REASONS]]


def without_nulls(value: Any) -> Any:
    """A merge patch without what it deletes (RFC 7396)."""
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return value


@dataclass(frozen=True)
class Rules:
    """The rules of a file, in its order; ``fingerprint`` changes with any of them."""

    rules: tuple[Rule, ...]
    fingerprint: str

    @property
    def ask_definition(self) -> bool:
        """Whether it must be known what definition a thing has."""
        return any(
            rule.definition is not None or "definition" in (rule.sql or "") for rule in self.rules
        )


def read_rules(file: Path) -> Rules:
    """Read a file of rules, JSON or TOML by its ending. Raises :class:`RulesError`.

    SQL is not looked at: only Spark can (``check_sql`` in validate.py).
    """
    try:
        content = file.read_text(encoding="utf-8")
        document = tomllib.loads(content) if file.suffix == ".toml" else json.loads(content)
    except (OSError, ValueError) as problem:
        raise RulesError(f"{file}: cannot be read: {problem}") from problem
    given = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(given, list) or not given or document.keys() != {"rules"}:
        raise RulesError(f"{file}: it must have a list 'rules', not empty, and nothing else")
    rules = tuple(_rule(file, number, facts) for number, facts in enumerate(given, 1))
    names = [rule.name for rule in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RulesError(f"{file}: two rules have the name {twice[0]!r}")
    text = json.dumps([asdict(rule) for rule in rules], sort_keys=True)
    return Rules(rules, sha256(text.encode()).hexdigest()[:16])


def _rule(file: Path, number: int, facts: Any) -> Rule:
    if not isinstance(facts, dict) or not isinstance(facts.get("name"), str) or not facts["name"]:
        raise RulesError(f"{file}: rule {number} needs a name, which is a text")
    where = f"{file}: rule {facts['name']!r}"
    if unknown := sorted(facts.keys() - {*_KEYS}):
        raise RulesError(f"{where}: unknown key {unknown[0]!r}; valid are {', '.join(_KEYS)}")
    for key in ("definition", "path", "sql", "schema-file", "message"):
        if key in facts and not (isinstance(facts[key], str) and facts[key]):
            raise RulesError(f"{where}: {key} must be a text that is not empty")
    if len(facts.keys() & {"sql", "schema", "schema-file"}) != 1:
        raise RulesError(f"{where}: it needs one of sql, schema and schema-file")
    status = facts.get("status", 422)
    if type(status) is not int or not 400 <= status <= 499:
        raise RulesError(f"{where}: status must be 400 to 499, not {status!r}")
    try:
        path = parse_pointer(facts.get("path", "/"))
    except GatewayError as problem:
        raise RulesError(f"{where}: path: {problem.message}") from problem
    return Rule(
        facts["name"],
        path,
        facts.get("definition"),
        facts.get("sql"),
        _schema(where, file, facts),
        status,
        facts.get("message"),
    )


def _schema(where: str, file: Path, facts: Mapping[str, Any]) -> Any:
    """The JSON schema of a rule, checked; None if it has none."""
    if "sql" in facts:
        return None
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    schema = facts.get("schema")
    if "schema-file" in facts:
        place = file.parent / facts["schema-file"]
        try:
            schema = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise RulesError(f"{where}: {place} cannot be read: {problem}") from problem
    if not isinstance(schema, dict | bool):
        raise RulesError(f"{where}: schema must be a JSON schema: an object, true or false")
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as problem:
        place_in = _place((), problem.absolute_path)
        raise RulesError(f"{where}: schema: {place_in}: {problem.message}") from problem
    return schema


def _place(path: tuple[str, ...], below: Any) -> str:
    return "/" + "/".join(map(str, (*path, *below)))
