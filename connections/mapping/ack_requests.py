"""The acks that a source requests for what it consumes (spec websocket-... 4.2)."""

from __future__ import annotations

import json
from typing import Any

import orjson

from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.headers import check_requested_acks, invalid_header
from acks.topic import parse_topic
from connections.placeholders.lookups import read_pipeline
from connections.placeholders.templates import Lookup, Pipeline

_HEADER = "requested-acks"


def parse_ack_filter(text: str | None) -> Pipeline | None:
    """Read ``acknowledgementRequests.filter``, with or without braces; None for none.

    Raises PlaceholderError.
    """
    return None if not text else read_pipeline(text)


def can_request(envelope: Envelope) -> bool:
    """Whether a message can ask for acks: twin modify commands, live commands, messages."""
    text = envelope.get("topic")
    if not isinstance(text, str) or "status" in envelope:
        return False
    try:
        topic = parse_topic(text)
    except GatewayError:
        return False
    if topic.group != "things":
        return False
    if topic.channel == "live":
        return topic.criterion in ("commands", "messages")
    return topic.criterion == "commands" and topic.action != "retrieve"


def request_acks(
    envelope: Envelope, includes: tuple[str, ...], ack_filter: Pipeline | None, lookup: Lookup
) -> Envelope:
    """The message with its header ``requested-acks`` as the source wants it.

    The envelope is not changed: it is returned as it is, or a copy is. A message that cannot ask
    for acks is returned as it is. Raises ``header.invalid`` if the result is no list of labels.
    """
    headers = envelope.get("headers") or {}
    if not (includes or ack_filter) or not isinstance(headers, dict) or not can_request(envelope):
        return envelope
    others = {name: value for name, value in headers.items() if name.lower() != _HEADER}
    given = [value for name, value in headers.items() if name.lower() == _HEADER]
    labels = None if not given or given[-1] is None else _labels(given[-1])
    labels = _filtered(_included(labels, includes), ack_filter, lookup)
    if labels is not None:
        others[_HEADER] = list(labels)
    return {**envelope, "headers": others}


def _included(labels: tuple[str, ...] | None, includes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Rule 2: they are added, but not to a message that wants none."""
    if not includes or labels == ():
        return labels
    return tuple(dict.fromkeys((*(labels or ()), *includes)))


def _filtered(
    labels: tuple[str, ...] | None, ack_filter: Pipeline | None, lookup: Lookup
) -> tuple[str, ...] | None:
    """Rule 3; only the first value that comes out of the filter counts."""
    if ack_filter is None:
        return labels
    text = "[]" if labels is None else json.dumps(labels, separators=(",", ":"))
    kept = ack_filter.resolve(lookup, (text if "'" not in text else "[]",))
    if not kept:
        return ()
    if labels is not None:
        return _labels(kept[0])
    added = ack_filter.resolve(lookup)
    return _labels(added[0]) if added else None


def _labels(value: Any) -> tuple[str, ...]:
    """The labels of a header, a JSON array or the text of one; raises ``header.invalid``."""
    given = value
    if isinstance(value, str):
        try:
            value = orjson.loads(value)  # takes no half surrogate pairs
        except ValueError:
            value = None
    if not isinstance(value, list):
        shown = given if isinstance(given, str) else json.dumps(given)
        raise invalid_header(_HEADER, shown, "JSON array")
    return check_requested_acks(value)
