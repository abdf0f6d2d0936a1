"""Text commands of a WebSocket session: ``START-SEND-EVENTS`` and its likes.

Source: spec websocket-... 1.2.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from acks.errors import GatewayError, error
from acks.fields import Selector, parse_extra_fields
from acks.interest import read_namespaces
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, LIVE_EVENT, MESSAGE
from acks.rql import EVENT_PREFIXES, Predicate, parse_checked

START, STOP, TOKEN = "START-SEND-", "STOP-SEND-", "JWT-TOKEN"
_ESCAPED = re.compile(r"(?:%[0-9a-fA-F]{2})+")
BEGINNINGS = (START, STOP, TOKEN)
"""How text commands begin; everything else is JSON."""
_KINDS = {
    "EVENTS": EVENT,
    "MESSAGES": MESSAGE,
    "LIVE-COMMANDS": COMMAND,
    "LIVE-EVENTS": LIVE_EVENT,
    "POLICY-ANNOUNCEMENTS": ANNOUNCEMENT,
}


class Control(NamedTuple):
    """A text command: ``name`` is its acknowledged one, ``kind`` that of journal entries.

    ``parameters`` are the decoded ones of START and ``JWT-TOKEN``, by their names.
    """

    name: str
    kind: str
    parameters: dict[str, str]


def read_control(text: str) -> Control | None:
    """Read a text command, None if it is none.

    It is recognised by how it begins; what follows up to a question mark does not matter. STOP
    ignores its parameters. Raises ``gateway:websocket.command.invalid`` for parameters without
    ``=`` and for one that is given twice.
    """
    if text.startswith(TOKEN):
        return Control(TOKEN, "", _parameters(text))
    for beginning in (START, STOP):
        if text.startswith(beginning):
            rest = text[len(beginning) :]
            for word, kind in _KINDS.items():
                if rest.startswith(word):
                    parameters = _parameters(text) if beginning == START else {}
                    return Control(beginning + word, kind, parameters)
    return None


def _parameters(text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for pair in text.partition("?")[2].split("&"):
        if not pair:
            continue
        name, equals, value = pair.partition("=")
        name = _decoded(name)
        if not equals:
            raise _invalid(text, f"The parameter '{name[:64]}' has no value; write '{name[:64]}='.")
        if name in parameters:
            raise _invalid(text, f"The parameter '{name[:64]}' is given twice.")
        parameters[name] = _decoded(value)
    return parameters


def _invalid(text: str, reason: str) -> GatewayError:
    command = text.partition("?")[0][:64]
    return error("gateway:websocket.command.invalid", command=command, reason=reason)


def _decoded(text: str) -> str:
    """URL-decoded, as forms are: a plus stands for a blank."""
    return _ESCAPED.sub(
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "replace"),
        text.replace("+", " "),
    )


class Wish(NamedTuple):
    """What a START asks for: namespaces (empty: all), a filter, extra fields."""

    namespaces: frozenset[str]
    filter: Predicate | None
    extra_fields: Selector | None


def read_wish(control: Control) -> Wish:
    """Read the parameters of a START; unknown ones are ignored.

    Announcements have namespaces alone. Empty namespaces and extra fields mean none. Raises
    ``gateway:websocket.command.invalid`` for what is no namespace, ``rql.expression.invalid`` (also
    for an empty filter), ``things:field.selection.invalid``.
    """
    parameters = control.parameters
    names = parameters.get("namespaces", "")
    wanted = read_namespaces(names, lambda reason: _invalid(control.name, reason))
    if control.kind == ANNOUNCEMENT:
        return Wish(wanted, None, None)
    fields, text = parameters.get("extraFields"), parameters.get("filter")
    selector = _extra_fields(fields) if fields else None
    predicate = None if text is None else parse_checked(text, EVENT_PREFIXES)
    return Wish(wanted, predicate, selector)


def _extra_fields(text: str) -> Selector:
    try:
        return parse_extra_fields(text)
    except GatewayError as problem:
        if problem.code == "things:field.selection.invalid":
            raise
        shown = text if len(text) <= 64 else text[:64] + "..."
        reason = problem.description
        raise error("things:field.selection.invalid", text=shown, reason=reason) from None


def named_correlation_id(text: str) -> str | None:
    """The correlation-id that a text command names for its error frame; None if it has none."""
    for pair in text.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if name == "correlation-id" and value:
            return _decoded(value)
    return None
