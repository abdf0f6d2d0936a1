"""The live channel's rules: what is awaited, who may answer, which answers count.

Sources: spec acks-and-http 3; websocket-... 5.4, 5.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.document import MAX_ID_LENGTH, format_pointer, parse_pointer
from acks.errors import GatewayError, error
from acks.headers import AckOptions, Setter, aggregates
from acks.journal import COMMAND, LIVE_EVENT, MESSAGE, EntryMeta
from acks.labels import LIVE_RESPONSE
from acks.policy import Path, message_parts
from acks.signals import Acknowledgement, Live

INVALID_RESPONSE = "live-response#invalid"
"""Names, where a label would stand, the notice that a response was refused; no label looks so."""

CLAIM = "claim"
"""Subject of messages that ask for permissions, and therefore need none (spec 9.3)."""

_CRITERIA = {"messages": MESSAGE, "commands": COMMAND, "events": LIVE_EVENT}
_BOXES = ("/inbox/messages", "/outbox/messages")
_DIRECTIONS = {"inbox": "TO", "outbox": "FROM"}
_SUBJECT_LENGTH = 1024
_ERROR_FIELDS = frozenset({"status", "error", "message", "description", "href"})
_ERROR_CODE = re.compile(r"[a-z][a-z0-9_-]*([:.][a-z0-9_-]+)+", re.ASCII | re.IGNORECASE)
"""``things:attribute.notfound``: an error's code has a namespace or a dot, plain words have not."""


class LiveResponse(NamedTuple):
    """What a subscriber answers to a live signal. ``criterion`` is messages, commands or errors."""

    thing_id: str
    criterion: str
    action: str
    path: str
    correlation_id: str
    status: int
    payload: Any
    headers: Mapping[str, Any]


def awaited(options: AckOptions) -> tuple[str, ...]:
    """The labels that a live signal waits for: without ack requests the one response (spec 3)."""
    acks = options.requested_acks
    if not options.response_required or aggregates(Setter.LIVE, acks):
        return acks
    return (LIVE_RESPONSE,)


def parse_channel(text: str | None) -> str:
    """The channel of a command, ``twin`` or ``live``; raises ``header.invalid`` (spec 2.3)."""
    channel = "twin" if text is None else text.strip().lower()
    if channel in ("twin", "live"):
        return channel
    raise error(
        "header.invalid",
        value=text,
        header="channel",
        type="channel",
        description="The value must either be <twin> or <live>.",
        extras={"invalidHeaderKey": "channel"},
    )


def parse_timeout_strategy(text: str | None) -> str:
    """What a smart query does without a live answer: ``fail`` or ``use-twin`` (spec 2.3).

    Raises ``header.invalid``.
    """
    if text is None:
        return "fail"
    if text in ("fail", "use-twin"):
        return text
    raise error(
        "header.invalid",
        value=text,
        header="live-channel-timeout-strategy",
        type="enum value of type 'LiveChannelTimeoutStrategy'",
        description="The value must be one of: <fail|use-twin>.",
        extras={"invalidHeaderKey": "live-channel-timeout-strategy"},
    )


def is_smart(channel: str, strategy: str, live_condition: str | None) -> bool:
    """Whether a query asks the twin first and then maybe the live channel (spec 3)."""
    return strategy == "use-twin" if channel == "live" else live_condition is not None


def kind_of(live: Live) -> str:
    """The kind of its journal entry."""
    return _CRITERIA[live.criterion]


class Address(NamedTuple):
    """Where a message goes; ``box`` is inbox or outbox, ``feature`` None for the thing itself."""

    thing_id: str
    box: str
    subject: str
    feature: str | None

    @property
    def claim(self) -> bool:
        """Whether it asks for permissions."""
        return (self.box, self.subject, self.feature) == ("inbox", CLAIM, None)

    @property
    def path(self) -> str:
        """Its path in the envelope, ``/inbox/messages/ask``, ``/features/f/outbox/messages/ask``.

        The feature's id is escaped as in a JSON pointer; the subject is all the rest, as it is.
        """
        place = "" if self.feature is None else format_pointer(("features", self.feature))
        return f"{place}/{self.box}/messages/{self.subject}"

    def headers(self, timestamp: str) -> dict[str, str]:
        """The headers that say of a message where it goes, and when it was sent (spec 7.3)."""
        headers = {
            "ditto-message-direction": _DIRECTIONS[self.box],
            "ditto-message-subject": self.subject,
            "ditto-message-thing-id": self.thing_id,
            "timestamp": timestamp,
        }
        if self.feature is not None:
            headers["ditto-message-feature-id"] = self.feature
        return headers


def check_subject(subject: str) -> str:
    """The subject of a message if it is one; raises ``messages:subject.invalid``."""
    reason = None
    if not subject:
        reason = "It is empty; it is what follows '/messages/' in the path."
    elif not subject.isprintable() or len(subject) > _SUBJECT_LENGTH:
        reason = f"It has at most {_SUBJECT_LENGTH} characters, all of them printable."
    if reason is not None:
        raise error("messages:subject.invalid", subject=subject[:64], reason=reason)
    return subject


def is_feature_id(text: str) -> bool:
    """Whether a message can name this feature: it is not empty, printable and not too long."""
    return bool(text) and text.isprintable() and len(text) <= MAX_ID_LENGTH


def parse_address(thing_id: str, path: str) -> Address | None:
    """Read the path of a message in an envelope; None if it is none (spec 7.3).

    Raises ``messages:subject.invalid``.
    """
    parts = path.split("/")[1:]
    feature = None
    if parts[:1] == ["features"] and len(parts) > 1:
        feature, parts = parts[1].replace("~1", "/").replace("~0", "~"), parts[2:]
        if not is_feature_id(feature):
            return None
    if len(parts) < 3 or parts[0] not in _DIRECTIONS or parts[1] != "messages":
        return None
    return Address(thing_id, parts[0], check_subject("/".join(parts[2:])), feature)


def resources_of(live: Live) -> tuple[str, tuple[Path, ...]]:
    """Kind and paths of the policy resources that govern it (spec websocket-... 5.4).

    A message has two if its subject can be read as it is and as a part of a JSON pointer (``a~1b``
    as itself and as ``a/b``): it takes a permission on both.
    """
    if live.criterion != "messages":
        return "thing", (parse_pointer(live.path),)
    plain = [part for part in live.path.split("/") if part]
    if "~" not in live.path:
        return "message", (message_parts(plain),)
    read = [part.replace("~1", "/").replace("~0", "~") for part in plain]
    if plain[0] == "features":
        plain[1] = read[1]
    return "message", tuple(dict.fromkeys((message_parts(read), message_parts(plain))))


def is_claim(live: Live) -> bool:
    """Whether it is a message that needs no permission."""
    return live.criterion == "messages" and live.path == f"/inbox/messages/{CLAIM}"


def not_creatable() -> GatewayError:
    """``things:thing.notcreatable`` for a thing to be made over the live channel (spec 3)."""
    return error(
        "things:thing.notcreatable",
        status=405,
        message="Thing could not be created via channel <live>.",
        description="Creating a thing via <live> channel is not supported. If you want to create "
        "a digital twin instead, please use channel <twin>.",
    )


def mismatch(response: LiveResponse, meta: EntryMeta) -> str | None:
    """Why ``response`` is no answer to the signal of ``meta``; None if it is one (spec 3).

    Its thing, its type, and for commands its path must be the signal's; a message may be answered
    with another subject, but not for another feature. An error only needs the right thing.
    """
    if response.thing_id != meta.thing_id:
        return _differs("Entity ID", response.thing_id, meta.thing_id)
    if response.criterion == "errors":
        return None
    if meta.kind == MESSAGE:
        if response.criterion != "messages":
            return _differs("Type", response.criterion, "messages")
        if _feature(response.path) != _feature(meta.path):
            return _differs("Resource path", response.path, meta.path)
        return None
    if (response.criterion, response.action) != ("commands", meta.action):
        return _differs("Type", f"{response.criterion}/{response.action}", meta.action)
    if response.path.strip("/") != meta.path.strip("/"):
        return _differs("Resource path", response.path, meta.path)
    return None


def is_error(ack: Acknowledgement) -> bool:
    """Whether a live response says by status and payload that it is an error, and nothing else."""
    payload = ack.payload
    return (
        ack.status >= 400
        and isinstance(payload, dict)
        and payload.keys() <= _ERROR_FIELDS
        and payload.get("status") == ack.status
        and isinstance(payload.get("error"), str)
        and _ERROR_CODE.fullmatch(payload["error"]) is not None
        and all(isinstance(payload.get(name, ""), str) for name in _ERROR_FIELDS - {"status"})
    )


def _differs(what: str, found: str, wanted: str) -> str:
    again = what[0].lower() + what[1:]
    # What a subscriber wrote goes into somebody else's answer: in bounds.
    found = found[:MAX_ID_LENGTH]
    return f"{what} of live response <{found}> differs from {again} of command <{wanted}>."


def _feature(path: str) -> str:
    """The part of a message's path before its box: "" or ``/features/f``."""
    for box in _BOXES:
        before, found, _ = path.partition(box)
        if found:
            return before
    return path
