"""Outcomes of commands -> envelopes (spec acks-and-http 4, 5.2, 5.5, 7; websocket-... 1.4, 1.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from acks.aggregator import OURS, Outcome, aggregate_json
from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.frame_head import FrameHead
from acks.headers import AckOptions
from acks.labels import LIVE_RESPONSE
from acks.live import is_error
from acks.payloads import JSON_TYPE
from acks.signals import Acknowledgement, Response
from acks.topic import Topic, acks_topic, errors_topic, parse_topic


class Asked(NamedTuple):
    """What an answer repeats of the frame that it answers.

    ``thing_id`` is None if it names none, ``channel`` twin or live, ``headers`` those that travel
    along or were given; ``wanted`` says whether a response is required.
    """

    topic: str
    path: str
    thing_id: str | None
    channel: str
    correlation_id: str
    headers: Mapping[str, Any]
    wanted: bool = True

    def shown(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The headers of an answer: what holds for all of them, and ``more``."""
        ours = {"correlation-id": self.correlation_id, "response-required": False}
        return {**ours, **self.headers, **more, **ours}

    def on(self, channel: str) -> Asked:
        """The same, answered from ``channel``."""
        parts = self.topic.split("/")
        parts[3] = channel
        return self._replace(topic="/".join(parts), channel=channel)


def asked_by(
    envelope: Envelope, topic: Topic, head: FrameHead, options: AckOptions, *, live: bool
) -> Asked:
    """What the answer to a frame repeats of it; its path has been read."""
    path = envelope["path"]
    return Asked(
        envelope["topic"],
        path if path[:1] == "/" else f"/{path}",
        None if topic.namespace == "_" else topic.thing_id,
        topic.channel,
        head.correlation_id,
        {**head.carried, **dict(options.given)},
        options.response_required,
    ).on("live" if live else "twin")


def answer_envelope(asked: Asked, outcome: Outcome) -> Envelope:
    """An outcome as the answer to its frame: response, error, or aggregated acks.

    A single ack stands under its label, unless it is the built-in one (spec 5.2).
    """
    if outcome.error is not None:
        return refusal(asked, outcome.error)
    if outcome.response is not None:
        return response_envelope(asked, outcome.response)
    acks = outcome.acks
    if len(acks) == 1 and acks[0].label == LIVE_RESPONSE:
        return _live_response(asked, acks[0])
    assert asked.thing_id is not None  # what asks for acks names its thing
    return {
        "topic": acks_topic(asked.thing_id, asked.channel),
        "headers": asked.shown({"content-type": JSON_TYPE}),
        "path": "/",
        "value": aggregate_json(acks),
        "status": outcome.status,
    }


def response_envelope(asked: Asked, response: Response) -> Envelope:
    """The response to a command or query, on its own topic and path (spec websocket-... 1.8)."""
    return _answer(asked, response.status, response.payload, response.headers)


def _answer(asked: Asked, status: int, payload: Any, headers: Mapping[str, Any]) -> Envelope:
    shown = asked.shown(headers)
    envelope: Envelope = {"topic": asked.topic, "headers": shown, "path": asked.path}
    if payload is not None:
        shown.setdefault("content-type", JSON_TYPE)
        envelope["value"] = payload
    envelope["status"] = status
    return envelope


def _live_response(asked: Asked, ack: Acknowledgement) -> Envelope:
    """What a subscriber has answered to a message or live command."""
    headers = {name: value for name, value in ack.headers.items() if name not in OURS}
    if is_error(ack) and parse_topic(asked.topic).criterion == "commands":
        return {
            "topic": errors_topic(asked.thing_id, "live"),
            "headers": asked.shown({**headers, "content-type": JSON_TYPE}),
            "path": "/",
            "value": ack.payload,
            "status": ack.status,
        }
    return _answer(asked, ack.status, ack.payload, headers)


def refusal(asked: Asked, problem: GatewayError) -> Envelope:
    """An error of ours as an envelope; its topic names the thing, if that is known (spec 5.5)."""
    return {
        "topic": errors_topic(asked.thing_id, asked.channel),
        "headers": asked.shown({**problem.headers, "content-type": JSON_TYPE}),
        "path": "/",
        "value": problem.to_json(),
        "status": problem.status,
    }
