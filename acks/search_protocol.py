"""The search in Ditto Protocol: commands in, messages out, and what a subscription may send.

Sources: spec websocket-... 6.4; Ditto's protocol examples (kind ``search``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.frame_head import FrameHead
from acks.requests import fields_text, not_supported
from acks.topic import Topic

MAX_DEMAND = 2**63 - 1
"""Pages that can be owed: as many mean without bound (Reactive Streams, rule 3.17)."""

_TOPIC = "_/_/things/twin/search/"
_CONTENT_TYPE = {"content-type": "application/json"}


class Subscribe(NamedTuple):
    """Search for things, as unchecked texts; ``namespaces`` is empty for all of them."""

    filter: str | None = None
    options: str | None = None
    namespaces: tuple[str, ...] = ()
    fields: str | None = None


class Request(NamedTuple):
    """Send ``demand`` more pages, which may be a number that no subscription allows."""

    subscription_id: str
    demand: int


class Cancel(NamedTuple):
    """Send no more of it."""

    subscription_id: str


SearchCommand = Subscribe | Request | Cancel


# --- in ----------------------------------------------------------------------------------------


def read_search(envelope: Envelope, topic: Topic) -> SearchCommand:
    """Read a frame of the criterion ``search``.

    A namespace in the topic counts where the value names none. Raises
    ``protocoladapter:unknown.topicpath``, ``json.field.missing``, ``json.format.invalid``.
    """
    text, path = envelope["topic"], envelope.get("path")
    if topic.action not in ("subscribe", "request", "cancel"):
        raise not_supported(text, f"The gateway sends '{topic.action}'; it does not take it.")
    if topic.name != "_":
        raise not_supported(text, "A search is not about one Thing: its entity name is '_'.")
    if path is None:
        raise error("json.field.missing", field="/path")
    if path != "/":
        raise not_supported(text, "The path of a search is '/'.", str(path))
    value = envelope.get("value")
    if topic.action == "subscribe":
        return _subscribe(envelope, topic, {} if value is None else _object(value))
    if value is None:
        raise error("json.field.missing", field="/value")
    subscription_id = _needed(_object(value), "subscriptionId")
    if not isinstance(subscription_id, str):
        raise _wrong("subscriptionId", "a string")
    if topic.action == "cancel":
        return Cancel(subscription_id)
    demand = _needed(value, "demand")
    if type(demand) is not int:
        raise _wrong("demand", "a whole number of at most 64 bits")
    return Request(subscription_id, demand)


def _subscribe(envelope: Envelope, topic: Topic, value: Mapping[str, Any]) -> Subscribe:
    namespaces = value.get("namespaces")
    if namespaces is None:
        namespaces = []
    if not isinstance(namespaces, list) or not all(isinstance(one, str) for one in namespaces):
        raise _wrong("namespaces", "an array of strings")
    if not namespaces and topic.namespace != "_":
        namespaces = [topic.namespace]
    return Subscribe(
        _text(value, "filter"),
        _text(value, "options"),
        tuple(namespaces),
        fields_text(envelope) or None,
    )


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise error("json.format.invalid", reason="The value of a search must be a JSON object.")
    return value


def _needed(value: Mapping[str, Any], name: str) -> Any:
    found = value.get(name)
    if found is None:
        raise error("json.field.missing", field=f"/value/{name}")
    return found


def _text(value: Mapping[str, Any], name: str) -> str | None:
    found = value.get(name)
    if found is not None and not isinstance(found, str):
        raise _wrong(name, "a string")
    return found


def _wrong(name: str, form: str) -> GatewayError:
    return error("json.format.invalid", reason=f"The field 'value/{name}' must be {form}.")


# --- what may be sent --------------------------------------------------------------------------


class Demand:
    """How many pages of one subscription are owed, and whether it is over.

    The rules are those of Reactive Streams, which Ditto names as its own (1.1, 2.8, 3.6, 3.9).
    """

    __slots__ = ("asked", "over", "owed")

    def __init__(self) -> None:
        self.owed = 0
        self.asked = False  # there has been a request
        self.over = False

    def add(self, pages: int) -> bool:
        """Take a request; False if nothing follows from it.

        Raises ``thing-search:subscription.protocol.error`` if ``pages`` is less than one, or if
        the subscription is over. Its first request may have crossed the end and is no mistake.
        """
        crossed, self.asked = self.over and not self.asked, True
        if crossed:
            return False
        if self.over:
            raise error(
                "thing-search:subscription.protocol.error",
                message="The subscription is over: there are no more pages to request.",
                description="Subscribe again to search again.",
            )
        if pages < 1:
            raise error("thing-search:subscription.protocol.error")
        self.owed = min(self.owed + pages, MAX_DEMAND)
        return True

    def sent(self) -> None:
        """A page has gone out."""
        if self.owed < MAX_DEMAND:
            self.owed -= 1

    def end(self) -> bool:
        """Nothing may be sent any more, except that it is over; False if it was over before."""
        was_over, self.over, self.owed = self.over, True, 0
        return not was_over


# --- out ---------------------------------------------------------------------------------------


def answer_headers(head: FrameHead) -> dict[str, str]:
    """The headers of what a command leads to: its own ones that travel, and its correlation-id."""
    headers = {**head.carried, **_CONTENT_TYPE}
    correlation_id = head.known.get("correlation-id")
    if correlation_id is not None:
        headers["correlation-id"] = correlation_id
    return headers


def created(subscription_id: str, headers: Mapping[str, str]) -> Envelope:
    """``created``: the answer to a subscribe."""
    return _message("created", subscription_id, headers)


def next_page(subscription_id: str, items: Any, headers: Mapping[str, str]) -> Envelope:
    """``next``: one page of things."""
    return _message("next", subscription_id, headers, items=items)


def complete(subscription_id: str, headers: Mapping[str, str]) -> Envelope:
    """``complete``: there are no more things."""
    return _message("complete", subscription_id, headers)


def failed(subscription_id: str, problem: GatewayError, headers: Mapping[str, str]) -> Envelope:
    """``failed``: what went wrong, after which nothing follows."""
    return _message("failed", subscription_id, headers, error=problem.to_json())


def _message(
    action: str, subscription_id: str, headers: Mapping[str, str], **more: Any
) -> Envelope:
    return {
        "topic": _TOPIC + action,
        "headers": dict(headers),
        "path": "/",
        "value": {"subscriptionId": subscription_id, **more},
    }
