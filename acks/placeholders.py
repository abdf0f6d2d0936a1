"""Placeholders that filters may name: ``time:now-2h[h]``, ``topic:action``, ``resource:path``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from acks.topic import Topic

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = {
    "ms": _MILLISECOND,
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(days=7),
    "mo": timedelta(seconds=2_629_746),
    "y": timedelta(seconds=31_556_952),
}
"""As long as in other durations: a month and a year are mean ones (spec acks-and-http 2.1)."""
_MAX_OFFSET = 1000 * _UNITS["y"]
"""Farther from now the calendar of ISO instants may end."""
_UNIT = "|".join(sorted(_UNITS, key=len, reverse=True))
_TIME = re.compile(
    rf"now(_epoch_millis)?(?:([+-])([0-9]{{1,15}})({_UNIT}))?(?:\[({_UNIT})\])?", re.ASCII
)
_RESOURCES = {"things": "thing", "policies": "policy", "connections": "connection"}

_NAMES = {
    "topic": frozenset(
        {
            "full", "namespace", "entityName", "group", "channel", "criterion", "action",
            "subject", "action-subject",
        }
    ),
    "entity": frozenset({"id", "namespace", "name"}),
    "thing": frozenset({"id", "namespace", "name"}),
    "resource": frozenset({"type", "path"}),
    "feature": frozenset({"id"}),
}  # fmt: skip
PREFIXES = frozenset({*_NAMES, "time", "header"})
"""Every prefix there is; where a filter is used decides which of them it may name."""


def is_placeholder(prefix: str, name: str) -> bool:
    """Whether ``prefix:name`` exists (spec websocket-... 6.2); any header may be named."""
    if prefix == "time":
        return _offset(name) is not None
    if prefix == "header":
        return bool(name)
    return name in _NAMES.get(prefix, ())


def _offset(name: str) -> timedelta | None:
    found = _TIME.fullmatch(name)
    if found is None:
        return None
    _, sign, amount, unit, _ = found.groups()
    if sign is None:
        return timedelta()
    # Compared as integers: a product of this size may be no timedelta.
    if int(amount) > _MAX_OFFSET // _UNITS[unit]:
        return None
    offset = int(amount) * _UNITS[unit]
    return -offset if sign == "-" else offset


def resolve_time(name: str, now: datetime) -> str | None:
    """What ``time:<name>`` is at ``now`` (an aware datetime); None if there is no such name.

    ``now`` or ``now_epoch_millis``, an offset such as ``-2h``, and in brackets the unit to cut it
    down to, in UTC: ``[w]`` is Monday (spec websocket-... 6.3). An offset in months or years is in
    mean ones: a twelfth of 365.2425 days, and those.
    """
    offset = _offset(name)
    if offset is None:
        return None
    moment = now.astimezone(UTC) + offset
    if name.endswith("]"):
        moment = _truncated(moment, name[name.index("[") + 1 : -1])
    if name.startswith("now_epoch_millis"):
        return str((moment - _EPOCH) // _MILLISECOND)
    return instant(moment)


def _truncated(moment: datetime, unit: str) -> datetime:
    if unit == "y":
        return datetime(moment.year, 1, 1, tzinfo=UTC)
    if unit == "mo":
        return datetime(moment.year, moment.month, 1, tzinfo=UTC)
    day = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if unit == "w":
        return day - timedelta(days=day.weekday())
    return day + (moment - day) // _UNITS[unit] * _UNITS[unit]


def instant(moment: datetime) -> str:
    """ISO-8601 in UTC with as many groups of three decimals as it needs: ``…:28Z``, ``…:28.120Z``.

    ``moment`` is in UTC.
    """
    text = moment.replace(tzinfo=None, microsecond=0).isoformat()
    if moment.microsecond % 1000:
        return f"{text}.{moment.microsecond:06}Z"
    if moment.microsecond:
        return f"{text}.{moment.microsecond // 1000:03}Z"
    return f"{text}Z"


def signal_placeholders(text: str, topic: Topic, path: str) -> dict[str, str]:
    """What the placeholders of a signal stand for: ``text`` is its ``topic``, ``path`` is its path.

    Those that it has no value for are left out.
    """
    messages = topic.criterion == "messages"
    action, subject = ("", topic.action) if messages else (topic.action, "")
    found = {
        "topic:full": text,
        "topic:namespace": topic.namespace,
        "topic:entityName": topic.name,
        "topic:group": topic.group,
        "topic:channel": topic.channel,
        "topic:criterion": topic.criterion,
        "topic:action": action,
        "topic:subject": subject,
        "topic:action-subject": topic.action,
        "entity:id": topic.thing_id,
        "entity:namespace": topic.namespace,
        "entity:name": topic.name,
        "resource:type": "message" if messages else _RESOURCES[topic.group],
        "resource:path": path,
    }
    return {name: value for name, value in found.items() if value}
