"""What a target publishes: ``_/_/things/twin/events?namespaces=…&filter=…&extraFields=…``.

Source: spec websocket-... 4.1.
"""

from __future__ import annotations

import re

from acks.errors import GatewayError, error
from acks.fields import parse_extra_fields
from acks.rql import EVENT_PREFIXES, parse_checked
from connections.model import Topic

TWIN_EVENTS = "_/_/things/twin/events"
LIVE_MESSAGES = "_/_/things/live/messages"
LIVE_EVENTS = "_/_/things/live/events"
LIVE_COMMANDS = "_/_/things/live/commands"
POLICY_ANNOUNCEMENTS = "_/_/policies/announcements"
CONNECTION_ANNOUNCEMENTS = "_/_/connections/announcements"
TOPICS = (
    TWIN_EVENTS, LIVE_MESSAGES, LIVE_EVENTS, LIVE_COMMANDS, POLICY_ANNOUNCEMENTS,
    CONNECTION_ANNOUNCEMENTS,
)  # fmt: skip
_ESCAPED = re.compile(r"(?:%[0-9a-fA-F]{2})+")
_SHOWN = 200


def parse_topic(text: str) -> Topic:
    """Read a topic of a target; unknown parameters are ignored.

    Policy announcements have namespaces alone, connection announcements nothing. Values are
    percent-decoded; a plus stands for itself. Raises ``connectivity:topic.invalid``, and for what
    is in it ``rql.expression.invalid``, ``things:field.selection.invalid`` and what
    :func:`parse_extra_fields` raises.
    """
    path, _, query = text.partition("?")
    if path not in TOPICS:
        raise _invalid(text, f"There is: {', '.join(TOPICS)}.")
    given = _parameters(text, query)
    if path == CONNECTION_ANNOUNCEMENTS:
        return Topic(path)
    namespaces = frozenset(
        name.strip() for name in given.get("namespaces", "").split(",") if name.strip()
    )
    if path == POLICY_ANNOUNCEMENTS:
        return Topic(path, namespaces)
    expression, fields = given.get("filter"), given.get("extraFields", "")
    if expression is not None:
        parse_checked(expression, EVENT_PREFIXES)
    if fields:
        parse_extra_fields(fields)
    return Topic(path, namespaces, expression or "", fields)


def _parameters(text: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise _invalid(text, f"Its parameter '{name[:_SHOWN]}' has no value.")
        if name in found:
            raise _invalid(text, f"Its parameter '{name[:_SHOWN]}' is given twice.")
        found[name] = _ESCAPED.sub(_decoded, value)
    return found


def _decoded(escaped: re.Match[str]) -> str:
    return bytes.fromhex(escaped[0].replace("%", "")).decode("utf-8", "replace")


def _invalid(text: str, reason: str) -> GatewayError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return error("connectivity:topic.invalid", topic=shown, reason=reason)
