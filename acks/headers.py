"""Typed headers: how ``requested-acks``, ``response-required``, ``timeout`` are read and completed.

Sources: spec acks-and-http 1.3, 1.5, 1.8, 2.1-2.5; seed, section "Interaction between headers".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Literal

from acks.errors import GatewayError, error
from acks.labels import LIVE_RESPONSE, SEARCH_PERSISTED, TWIN_PERSISTED, custom, is_label

HeaderDefaults = Literal["documented", "ditto"]

DEFAULT_TIMEOUT_MS = 60_000
MAX_TIMEOUT_MS = 60_000

QUERY_AS_HEADERS = frozenset(
    {
        "accept",
        "channel",
        "correlation-id",
        "requested-acks",
        "declared-acks",
        "ack-group",
        "response-required",
        "timeout",
        "live-channel-timeout-strategy",
        "allow-policy-lockout",
        "condition",
        "live-channel-condition",
        "at-historical-revision",
        "at-historical-timestamp",
        "dry-run",
    }
)
"""Query parameters that are taken as headers (spec 1.5); others are not."""

_READ_ONLY = {
    "accept", "authorization", "live-channel-timeout-strategy", "if-match", "if-none-match",
    "if-equal", "declared-acks", "ack-group", "put-metadata", "get-metadata", "delete-metadata",
    "allow-policy-lockout", "condition", "live-channel-condition",
    "at-historical-revision", "at-historical-timestamp", "merge-thing-patch-conditions",
    "policy-view",
}  # fmt: skip
_WRITE_ONLY = {
    "etag", "ditto-originator", "www-authenticate", "ditto-connection-id", "ditto-metadata",
    "ditto-weak-ack", "live-channel-condition-matched", "historical-headers", "entity-revision",
    "ditto-message-direction", "ditto-message-subject", "ditto-message-thing-id",
    "ditto-message-feature-id",
}  # fmt: skip
_INTERNAL = {
    "ditto-entity-id", "ditto-ackgregator-address", "ditto-auth-context", "ditto-read-subjects",
    "ditto-read-revoked-subjects", "ditto-origin", "ditto-sudo", "ditto-reply-target",
    "ditto-partial-access-paths",
}  # fmt: skip
_INTERPRETED = {
    "correlation-id", "x-correlation-id", "requested-acks", "response-required", "timeout",
    "channel", "content-type", "location", "dry-run",
}  # fmt: skip
_BOTH_WAYS = frozenset({"channel", "content-type", "dry-run", "location", "timeout"})
# Facts of one HTTP hop, or secrets of a browser: they say nothing about the signal.
_TRANSPORT = {
    "raw-request-uri", "cache-control", "connection", "timeout-access", "accept-encoding",
    "x-forwarded-scheme", "host", "user-agent", "content-length", "content-encoding",
    "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive", "cookie", "origin",
    "referer", "accept-language", "accept-charset", "proxy-authorization", "via", "forwarded",
    "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip",
    "x-ditto-pre-authenticated", "access_token", "prefer", "priority", "dnt", "pragma",
}  # fmt: skip
NOT_CARRIED = frozenset(_READ_ONLY | _WRITE_ONLY | _INTERNAL | _INTERPRETED | _TRANSPORT)
"""Incoming header names that do not travel on with the signal as they are."""
_NOT_CARRIED_FAMILIES = ("sec-", "divert-", "ditto-pre-defined-extra-fields")
"""How more such names begin (spec websocket-... 1.9)."""


def travels(name: str) -> bool:
    """Whether an incoming header goes on into events and nested ack headers (spec 1.8).

    Unknown names do; facts of the transport (``host``, ``cookie`` ...) do not.
    """
    return name not in NOT_CARRIED and not name.startswith(_NOT_CARRIED_FAMILIES)


def comes_along(name: str) -> bool:
    """Whether a header of an ack or a response is shown to the requester (spec 1.8, 4).

    Beside what travels, these are the known ones that clients may both send and see.
    """
    return name in _BOTH_WAYS or travels(name)


# --- single values ---------------------------------------------------------------------------

_DURATION = re.compile(r"([+-]?)(\d{1,18})(ms|s|mo|m|h|d|w|y)?", re.ASCII)
_UNIT_MS = {
    None: 1_000,
    "s": 1_000,
    "ms": 1,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "mo": 2_629_746_000,
    "y": 31_556_952_000,
}


def parse_duration_ms(text: str) -> int:
    """Read a duration such as ``42``, ``42s``, ``250ms``, ``1m`` as milliseconds (spec 2.1).

    Raises ``timeout.invalid``.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise error("timeout.invalid", reason=f'For input string: "{text}"')
    sign, digits, unit = match.groups()
    if sign == "-" and int(digits) != 0:
        raise error(
            "timeout.invalid", reason=f"The duration must not be negative but was <{text}>!"
        )
    return int(digits) * _UNIT_MS[unit]


def parse_boolean(header: str, text: str) -> bool:
    """Read exactly ``true`` or ``false``; raises ``header.invalid`` (spec 2.3)."""
    if text == "true":
        return True
    if text == "false":
        return False
    raise invalid_header(header, text, "boolean")


def allows_lockout(known: Mapping[str, str]) -> bool:
    """Whether a request may make a policy that locks its sender, or everybody, out.

    Raises ``header.invalid`` (spec websocket-... 5.7).
    """
    return parse_boolean("allow-policy-lockout", known.get("allow-policy-lockout", "false"))


def invalid_header(header: str, value: str, type_name: str) -> GatewayError:
    """``header.invalid`` for a value that is not a valid ``type_name``."""
    return error(
        "header.invalid",
        value=value,
        header=header,
        type=type_name,
        extras={"invalidHeaderKey": header},
    )


def refuse_headers(
    known: Mapping[str, str],
    names: Iterable[str],
    text: str = "This gateway does not serve the header '{name}' yet.",
) -> None:
    """Refuse headers whose meaning would be lost: doing as if they were absent could do harm.

    Raises ``header.invalid`` with ``text`` as its description.
    """
    for name in names:
        if name in known:
            raise error(
                "header.invalid", value=known[name], header=name, type=name,
                description=text.format(name=name), extras={"invalidHeaderKey": name},
            )  # fmt: skip


def split_list(text: str) -> list[object]:
    """Normalise a list-valued HTTP header or query parameter (spec 1.3).

    A JSON array is taken as it is, anything else is split at commas.
    """
    if not text:
        return []
    if text[0] in "[n \t":
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = text
        if parsed is None:
            return []
        if isinstance(parsed, list):
            return parsed
    return [piece.strip() for piece in text.split(",") if piece]


def parse_requested_acks(text: str) -> tuple[str, ...]:
    """Read ``requested-acks`` of an HTTP request: labels in order, without repeats.

    Raises ``header.invalid`` (spec 1.3).
    """
    return check_requested_acks(split_list(text))


def check_requested_acks(values: list[object]) -> tuple[str, ...]:
    """Check an array of ack requests; raises ``header.invalid`` (spec 1.3)."""
    labels: dict[str, None] = {}
    for value in values:
        if not isinstance(value, str):
            raise error(
                "header.invalid",
                message="JSON array for <requested-acks> contained invalid acknowledgement labels.",
                description="Verify that the header has the correct syntax and try again.",
                extras={"invalidHeaderKey": "requested-acks"},
            )
        if not is_label(value):
            shown = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
            raise invalid_header("requested-acks", shown, "JSON array of acknowledgement labels")
        labels[value] = None
    return tuple(labels)


def parse_declared_acks(text: str) -> tuple[str, ...]:
    """Read ``declared-acks`` of an upgrade request, labels not yet checked (spec 1.6).

    Raises ``header.invalid`` if an element is not a string.
    """
    values = split_list(text)
    labels = [value for value in values if isinstance(value, str)]
    if len(labels) != len(values):
        raise error(
            "header.invalid",
            message="JSON array for <declared-acks> contained non-string values!",
            description="Verify that the header has the correct syntax and try again.",
            extras={"invalidHeaderKey": "declared-acks"},
        )
    return tuple(dict.fromkeys(labels))


# --- the three headers together ----------------------------------------------------------------


class Setter(Enum):
    """Which defaulting applies to a command (spec 2.4): its implicit label and what it removes."""

    TWIN_MODIFY = (TWIN_PERSISTED, frozenset({LIVE_RESPONSE}), False)
    LIVE = (LIVE_RESPONSE, frozenset({TWIN_PERSISTED, SEARCH_PERSISTED}), True)

    def __init__(self, implicit: str, negated: frozenset[str], bound: bool) -> None:
        self.implicit = implicit
        self.negated = negated
        self.bound = bound


def aggregates(setter: Setter, labels: Iterable[str]) -> bool:
    """Whether acks are collected for a command with these ``labels`` after defaulting (spec 3).

    The built-in label of the other channel is none that it could ever get.
    """
    foreign = LIVE_RESPONSE if setter is Setter.TWIN_MODIFY else TWIN_PERSISTED
    return any(label != foreign for label in labels)


@dataclass(frozen=True, slots=True)
class AckOptions:
    """The three headers of one command, completed.

    ``custom_acks`` are those of the ``requested_acks`` that somebody outside must fulfil;
    ``given`` is what the client wrote, per header name, as text; it is repeated in answers;
    ``search_persisted`` says whether that is one of the ``requested_acks``.
    """

    requested_acks: tuple[str, ...]
    response_required: bool
    timeout_ms: int
    custom_acks: tuple[str, ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    search_persisted: bool = False


def complete(
    setter: Setter,
    requested_acks: tuple[str, ...] | None,
    response_required: bool | None,
    timeout_ms: int | None,
    defaults: HeaderDefaults = "documented",
    default_timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> AckOptions:
    """Fill in what the client left out (spec 2.4; seed, "Default header values").

    With ``defaults="documented"`` an empty ``requested-acks`` makes ``response-required`` default
    to false, as the seed's table says; with ``"ditto"`` only a zero timeout does.
    """
    zero = timeout_ms == 0
    wanted = response_required is not False
    if requested_acks is None:
        acks: tuple[str, ...] = (setter.implicit,) if wanted and not zero else ()
    elif setter.bound and wanted and requested_acks:
        acks = tuple(dict.fromkeys((*requested_acks, setter.implicit)))
    elif setter.bound and not wanted:
        acks = tuple(label for label in requested_acks if label != setter.implicit)
    else:
        acks = requested_acks
    if requested_acks and not setter.negated.isdisjoint(requested_acks):
        # Computed from what was asked for, so an implicit label may get lost (spec 2.4).
        acks = tuple(label for label in requested_acks if label not in setter.negated)
    if response_required is None:
        response_required = not zero
        if defaults == "documented" and requested_acks is not None and not requested_acks:
            response_required = False
    return AckOptions(
        acks,
        response_required,
        default_timeout_ms if timeout_ms is None else timeout_ms,
        custom(acks),
        search_persisted=SEARCH_PERSISTED in acks,
    )


def check_zero_timeout(options: AckOptions) -> None:
    """Refuse a zero timeout with something to wait for; raises ``header.invalid`` (spec 2.5)."""
    if options.timeout_ms == 0 and (options.response_required or options.requested_acks):
        raise error(
            "header.invalid",
            message="The value of the header 'timeout' must not be zero if response or "
            "acknowledgements are requested.",
            description="Please provide a positive timeout.",
            extras={"invalidHeaderKey": "timeout"},
        )


@lru_cache(maxsize=4096)
def http_options(
    setter: Setter,
    requested_acks: str | None,
    response_required: str | None,
    timeout: str | None,
    defaults: HeaderDefaults = "documented",
    max_timeout_ms: int = MAX_TIMEOUT_MS,
    default_timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> AckOptions:
    """Read and complete the three headers of an HTTP request, given as text or absent.

    Raises ``header.invalid``, ``timeout.invalid``, ``gateway:timeout.invalid`` (spec 2.2).
    Results are cached: clients send the same few combinations again and again.
    """
    acks = None if requested_acks is None else parse_requested_acks(requested_acks)
    wanted = (
        None if response_required is None else parse_boolean("response-required", response_required)
    )
    timeout_ms = None if timeout is None else parse_duration_ms(timeout)
    if timeout_ms is not None and timeout_ms > max_timeout_ms:
        raise error("gateway:timeout.invalid", timeout_ms=timeout_ms, max_ms=max_timeout_ms)
    options = complete(setter, acks, wanted, timeout_ms, defaults, default_timeout_ms)
    check_zero_timeout(options)
    given = (("timeout", timeout),) if timeout is not None else ()
    return replace(options, given=given)


@lru_cache(maxsize=4096)
def visible_acks(requested: tuple[str, ...], declared: frozenset[str]) -> tuple[str, ...] | None:
    """What a subscriber sees as ``requested-acks`` (spec 1.8, 5.3): the labels it declared.

    None means: leave the header out, because nothing custom was asked for.
    """
    if not requested:
        return None
    return tuple(label for label in requested if label in declared)


_SUFFIX = re.compile(r"(.*)#(\d{1,9})", re.DOTALL)


def next_correlation_id(taken: str) -> str:
    """The id after ``taken`` under which a signal is delivered (spec 5.3): c, c#0, c#1 ..."""
    match = _SUFFIX.fullmatch(taken)
    return f"{match[1]}#{int(match[2]) + 1}" if match else f"{taken}#0"
