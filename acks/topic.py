"""Ditto topic path <-> its parts (spec acks-and-http 5.4, 7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from acks.errors import GatewayError, error

_GROUPS = ("things", "policies", "connections")
_CHANNELS = ("twin", "live", "none")
_CRITERIA = (
    "commands", "events", "search", "messages", "errors", "acks", "announcements", "streaming",
)  # fmt: skip
_ACTIONS = {
    "commands": ("create", "retrieve", "modify", "delete", "merge", "migrate"),
    "events": ("created", "modified", "merged", "deleted", "migrated"),
    "search": ("subscribe", "request", "cancel", "created", "next", "complete", "failed"),
    "streaming": (
        "subscribeForPersistedEvents", "request", "cancel", "created", "next", "complete", "failed",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Topic:
    """``namespace/name/group/channel/criterion/action``.

    ``action`` is the label of an ack and the subject of a message, "" if there is none; policies
    have no channel ("none").
    """

    namespace: str
    name: str
    group: str
    channel: str
    criterion: str
    action: str

    @property
    def thing_id(self) -> str:
        """``namespace:name``."""
        return f"{self.namespace}:{self.name}"


def _unknown(topic: str, reason: str) -> GatewayError:
    return error("protocoladapter:unknown.topicpath", topic=topic, reason=reason)


@lru_cache(maxsize=8192)
def parse_topic(text: str) -> Topic:
    """Split a topic path.

    Raises ``protocoladapter:unknown.topicpath``, whose description names the first part that is
    missing or unknown.
    """
    parts = text.split("/")

    def part(index: int, name: str, known: tuple[str, ...] = ()) -> str:
        if index >= len(parts) or (parts[index] == "" and (index > 0 or len(parts) == 1)):
            raise _unknown(text, f"The topic path has no {name} part.")
        if known and parts[index] not in known:
            raise _unknown(text, f"{name.capitalize()} name <{parts[index]}> is unknown.")
        return parts[index]

    namespace = part(0, "namespace")
    name = part(1, "entity name")
    group = part(2, "group", _GROUPS)
    channel, rest = "none", 3
    if group == "things":
        channel, rest = part(3, "channel", _CHANNELS[:2]), 4
    criterion = part(rest, "criterion", _CRITERIA)
    known = _ACTIONS.get(criterion)
    if known is not None:
        action = part(rest + 1, "action", known)
        if len(parts) > rest + 2:
            raise _unknown(text, f"Action name <{'/'.join(parts[rest + 1 :])}> is unknown.")
    else:
        action = "/".join(parts[rest + 1 :])
    return Topic(namespace, name, group, channel, criterion, action)


def event_topic(thing_id: str, action: str) -> str:
    """Topic of a twin event, e.g. ``ns/name/things/twin/events/modified``."""
    namespace, _, name = thing_id.partition(":")
    return f"{namespace}/{name}/things/twin/events/{action}"


def live_topic(thing_id: str, criterion: str, action: str) -> str:
    """Topic of a live signal, e.g. ``ns/name/things/live/messages/ask``."""
    namespace, _, name = thing_id.partition(":")
    return f"{namespace}/{name}/things/live/{criterion}/{action}"


def errors_topic(thing_id: str | None, channel: str = "twin") -> str:
    """Topic of an error envelope; ``unknown/unknown`` if the thing is not known (5.5)."""
    namespace, _, name = (thing_id or "unknown:unknown").partition(":")
    return f"{namespace}/{name}/things/{channel}/errors"


def acks_topic(thing_id: str, channel: str) -> str:
    """Topic of the aggregated acks of a command (spec 5.2)."""
    namespace, _, name = thing_id.partition(":")
    return f"{namespace}/{name}/things/{channel}/acks"
