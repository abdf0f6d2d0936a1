"""Headers of a frame: over those of the upgrade request, and what they mean for a command.

Sources: spec websocket-... 1.1, 1.4; acks-and-http 1.4, 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from acks.envelopes import Envelope
from acks.errors import error
from acks.header_values import check_values
from acks.headers import (
    QUERY_AS_HEADERS,
    AckOptions,
    HeaderDefaults,
    Setter,
    aggregates,
    check_requested_acks,
    http_options,
    invalid_header,
    split_list,
    travels,
)

LONGER_MS = 5_000
"""How much longer than over HTTP a command may wait, ms: 65 s in place of 60 s (spec 2.2)."""
_NO_LIMIT = 2**62
_NOT_OF_SESSIONS = frozenset({"accept", "declared-acks", "ack-group"})
"""Headers that concern the upgrade request itself."""
_KNOWN = (QUERY_AS_HEADERS - _NOT_OF_SESSIONS) | {
    "content-type", "if-match", "if-none-match", "if-equal", "merge-thing-patch-conditions",
    "put-metadata", "delete-metadata",
}  # fmt: skip


class FrameHead(NamedTuple):
    """The headers of a frame, completed by those of its session.

    ``known`` are the interpreted ones by lower-case name, ``carried`` those that travel on with
    the signal.
    """

    known: dict[str, str]
    carried: dict[str, str]
    correlation_id: str


def session_defaults(known: Mapping[str, str]) -> dict[str, str]:
    """The headers of an upgrade request that hold for every command of the session (spec 1.1).

    ``known`` are the interpreted ones by lower-case name.
    Raises ``header.invalid``, ``timeout.invalid`` for values that no command can have.
    """
    defaults = {
        name: value for name, value in known.items() if name in _KNOWN and name != "content-type"
    }
    check_values(defaults)
    if "requested-acks" in defaults:
        labels = check_requested_acks(split_list(defaults["requested-acks"]))
        defaults["requested-acks"] = json.dumps(labels)
    return defaults


def read_head(
    envelope: Envelope, defaults: Mapping[str, str], limit: int, fresh_id: str
) -> FrameHead:
    """Read the headers of a frame over those of its session (spec websocket-... 1.4, 2).

    Names are read without case; null is none; values that are no text count in their JSON form
    (spec 1.4). ``limit`` bounds the characters of all of them; ``fresh_id`` is for a frame without
    a correlation-id. Raises ``json.format.invalid``, ``header.invalid``, ``headers.too.large``.
    """
    known = dict(defaults)
    carried: dict[str, str] = {}
    headers = envelope.get("headers")
    if headers is not None and not isinstance(headers, dict):
        raise error("json.format.invalid", reason="The field 'headers' must be a JSON object.")
    size = 0
    for given, value in (headers or {}).items():
        if value is None:
            continue
        name = given.lower()
        text = value if type(value) is str else as_text(value)
        size += len(name) + len(text)
        if name in _KNOWN:
            if name == "requested-acks" and type(value) is not list:
                check_array(text)
            known[name] = text
        elif travels(name):
            carried[given] = text
    if size > limit:
        raise error("headers.too.large", limit=limit)
    return FrameHead(known, carried, known.get("correlation-id") or fresh_id)


def as_text(value: Any) -> str:
    """JSON in its shortest form."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def check_array(text: str) -> None:
    """Refuse ``requested-acks`` of an envelope that are no JSON array, nor the text of one.

    Raises ``header.invalid`` (spec 1.4).
    """
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list):
        raise invalid_header("requested-acks", text, "JSON array")


@lru_cache(maxsize=4096)
def frame_options(
    live: bool,
    requested_acks: str | None,
    response_required: str | None,
    timeout: str | None,
    defaults: HeaderDefaults,
    max_timeout_ms: int,
    default_timeout_ms: int,
    *,
    settled: bool = False,
) -> AckOptions:
    """Read and complete the three headers of a command (spec 2.2, 2.4, 2.5).

    Too long a timeout is cut, not refused. ``settled``: the message is settled with its broker by
    the acks, so that they mean something without a response, too (seed, table "Connectivity").
    Raises ``header.invalid``, ``timeout.invalid``.
    """
    setter = Setter.LIVE if live else Setter.TWIN_MODIFY
    if defaults == "ditto":
        default_timeout_ms += LONGER_MS
    options = http_options(
        setter, requested_acks, response_required, timeout, defaults, _NO_LIMIT, default_timeout_ms
    )
    wanted = aggregates(setter, options.requested_acks)
    if wanted and not options.response_required and not settled:
        raise error(
            "header.invalid",
            message="For WebSocket, it is forbidden to request acknowledgements while "
            "'response-required' is set to false.",
            description="Please set 'requested-acks' to [] or 'response-required' to true.",
            extras={"invalidHeaderKey": "requested-acks"},
        )
    longest = max_timeout_ms + LONGER_MS
    if options.timeout_ms > longest:
        options = replace(options, timeout_ms=longest)
    if live:
        options = replace(options, given=(*options.given, ("channel", "live")))
    return options
