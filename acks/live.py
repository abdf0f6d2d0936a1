"""The live channel's rules: what is awaited, who may answer, which answers count.

Sources: spec acks-and-http 3; websocket-... 5.4, 5.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.document import MAX_ID_LENGTH, format_pointer, parse_pointer
from acks.errors import GatewayError, error
from acks.headers import AckOptions
from acks.journal import COMMAND, MESSAGE, EntryMeta
from acks.labels import LIVE_RESPONSE
from acks.policy import Path, message_parts
from acks.signals import Live

INVALID_RESPONSE = "live-response#invalid"
"""Names, where a label would stand, the notice that a response was refused; no label looks so."""

CLAIM = "claim"
"""Subject of messages that ask for permissions, and therefore need none (spec 9.3)."""

_CRITERIA = {"messages": MESSAGE, "commands": COMMAND}
_BOXES = ("/inbox/messages", "/outbox/messages")


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
    if options.requested_acks or not options.response_required:
        return options.requested_acks
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


def message_path(box: str, subject: str, feature: str | None = None) -> str:
    """Path of a message: ``/inbox/messages/ask``, ``/features/f/outbox/messages/ask``.

    The feature's id is escaped as in a JSON pointer; the subject is all the rest, as it is.
    """
    place = "" if feature is None else format_pointer(("features", feature))
    return f"{place}/{box}/messages/{subject}"


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
    return live.criterion == "messages" and live.path == message_path("inbox", CLAIM)


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
