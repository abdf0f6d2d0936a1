"""What a request demands of the present state: entity tags, ``if-equal``, ``condition``.

Sources: spec acks-and-http 9.1, 9.2; websocket-... 5.4, 7. Where they differ, acks-and-http holds:
the condition is looked at before the entity tags, and an unreadable one is
``rql.expression.invalid``, not ``things:condition.invalid``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

from acks.document import parse_pointer
from acks.errors import GatewayError, error
from acks.facts import ThingFacts
from acks.rql import CONDITION_PREFIXES, Predicate, leaves, matches, parse_checked
from acks.signals import JsonObject

IfEqual = Literal["update", "skip", "skip-minimizing-merge"]
Kind = Literal["query", "modify", "delete"]
Entity = Literal["things", "policies"]

_IF_EQUAL: tuple[IfEqual, ...] = get_args(IfEqual)
_OPAQUE = re.compile(r'"[^"*]*"')
_QUOTED_OR_COMMA = re.compile(r'"[^"]*"|,')


class Preconditions(NamedTuple):
    """The headers ``if-match``, ``if-none-match`` (tags as given), ``if-equal``, ``condition``."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    if_equal: IfEqual = "update"
    condition: Predicate | None = None


def parse_preconditions(known: Mapping[str, str]) -> Preconditions | None:
    """The preconditions among the headers ``known`` (by lower-case name); None if there are none.

    Raises ``header.invalid``, ``rql.expression.invalid``.
    """
    if_match, if_none_match = known.get("if-match"), known.get("if-none-match")
    if_equal, condition = known.get("if-equal", "update"), known.get("condition")
    checks = Preconditions(
        None if if_match is None else parse_tags("if-match", if_match),
        None if if_none_match is None else parse_tags("if-none-match", if_none_match),
        parse_if_equal(if_equal),
        None if condition is None else parse_checked(condition, CONDITION_PREFIXES),
    )
    return None if checks == Preconditions() else checks


def parse_if_equal(text: str) -> IfEqual:
    """Read the header ``if-equal``; raises ``header.invalid``."""
    for value in _IF_EQUAL:
        if text == value:
            return value
    raise error(
        "header.invalid",
        value=text,
        header="if-equal",
        type="enum value of type 'IfEqual'",
        description=f"The value must be one of: <{'|'.join(_IF_EQUAL)}>.",
        extras={"invalidHeaderKey": "if-equal"},
    )


# --- entity tags -------------------------------------------------------------------------------


def parse_tags(header: str, text: str) -> tuple[str, ...]:
    """Read a list of entity tags, or ``*`` (spec acks-and-http 9.2).

    A comma inside the quotes of a tag belongs to it. Raises ``header.invalid``.
    """
    tags: list[str] = []
    start = 0
    for found in _QUOTED_OR_COMMA.finditer(text):
        if found[0] == ",":
            tags.append(text[start : found.start()].strip())
            start = found.end()
    tags.append(text[start:].strip())
    for tag in tags:
        if tag != "*":
            check_tag(header, tag)
    return tuple(tags)


def check_tag(header: str, tag: str) -> None:
    """Raises ``header.invalid`` unless ``tag`` is an entity tag."""
    opaque = _opaque(tag)
    if _OPAQUE.fullmatch(opaque) is None:
        raise error(
            "header.invalid",
            message=f"The opaque tag <{opaque}> is not a valid entity-tag.",
            description=f'The header \'{header}\' takes tags such as "a" or W/"a", or *.',
            extras={"invalidHeaderKey": header},
        )


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/")


def tags_match(given: tuple[str, ...], current: str) -> bool:
    """Whether one of the ``given`` tags fits the ``current`` one.

    A weak current tag is compared weakly, a strong one strongly (spec acks-and-http 9.2).
    """
    weakly = current.startswith("W/")
    return any(tag == "*" or same_tag(tag, current, weakly=weakly) for tag in given)


def same_tag(one: str, other: str, *, weakly: bool) -> bool:
    """Whether two tags are equal; a strong comparison takes two strong ones (RFC 9110, 8.8.3.2)."""
    if weakly:
        return _opaque(one) == _opaque(other)
    return one == other and not one.startswith("W/")


def check_tags(
    checks: Preconditions, current: str | None, *, kind: Kind, entity: Entity = "things"
) -> None:
    """Check ``if-match`` and ``if-none-match`` against the ``current`` tag (None: nothing there).

    Raises ``things:precondition.failed`` (412) or, for a query whose ``if-none-match`` fits,
    ``things:precondition.notmodified`` (304); ``policies:...`` for policies. Both have the fact
    ``etag`` for their header. A query or a delete of what is missing is left to its 404.
    """
    if current is None and kind != "modify":
        return
    if checks.if_match is not None and (
        current is None or not tags_match(checks.if_match, current)
    ):
        raise _failed(entity, "failed", "if-match", checks.if_match, current)
    given = checks.if_none_match
    if given is not None and current is not None and tags_match(given, current):
        outcome = "notmodified" if kind == "query" else "failed"
        raise _failed(entity, outcome, "if-none-match", given, current)


def _failed(
    entity: Entity, outcome: str, header: str, given: tuple[str, ...], current: str | None
) -> GatewayError:
    problem = error(
        f"{entity}:precondition.{outcome}",
        header=header,
        given=", ".join(given),
        current=current or "null",
    )
    if current is not None:
        problem.headers["etag"] = current
    return problem


# --- conditions --------------------------------------------------------------------------------


def check_condition(
    checks: Preconditions,
    document: JsonObject,
    special: Mapping[str, Any],
    now_ms: int,
    *,
    may_read: Callable[[tuple[str, ...]], bool] | None = None,
) -> None:
    """Check the ``condition`` against a thing's ``document`` and its ``special`` fields.

    ``may_read(path)`` says what the requester may read: a field it may not fails the condition
    (spec websocket-... 5.4), so that nothing can be learned by asking. ``now_ms`` is since the
    epoch. Not to be asked for a thing that is to be created. Raises ``things:condition.failed``.
    """
    condition = checks.condition
    if condition is None:
        return
    if may_read is not None and not all(map(may_read, referenced(condition))):
        raise error(
            "things:condition.failed",
            description="The condition names fields that you may not read.",
        )
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    if not matches(condition, ThingFacts(document, special), now):
        raise error("things:condition.failed")


def referenced(condition: Predicate) -> Iterator[tuple[str, ...]]:
    """The paths in a thing that a condition looks at."""
    for leaf in leaves(condition):
        if not leaf.property.startswith("time:"):
            yield parse_pointer(leaf.property)
