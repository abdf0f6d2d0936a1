"""What acks look like that the gateway gives for a session that does not get a signal (spec 6)."""

from __future__ import annotations

from typing import Any

from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from app.entry import headers_of
from app.offers import Verdict

WEAK = {
    Verdict.UNAUTHORIZED: WEAK_UNSUBSCRIBED,
    Verdict.UNSUBSCRIBED: WEAK_UNSUBSCRIBED,
    Verdict.FILTERED: WEAK_FILTERED,
    Verdict.HIDDEN: WEAK_FILTERED,
}
"""Payload of the weak ack after a verdict; after all others there is none (spec 6)."""


def weak_headers(correlation_id: str, headers: bytes, *, weak: bool = True) -> dict[str, Any]:
    """The headers of a weak ack: an entry's, but for those that say of what kind it is.

    Without ``weak`` they do not say that it is one.
    """
    copied = {
        **headers_of(headers),
        "correlation-id": correlation_id,
        "response-required": False,
    }
    if weak:
        copied["ditto-weak-ack"] = True
    copied.pop("content-type", None)
    return copied
