"""Outcomes as envelopes: spec acks-and-http 4, 5.2, 5.5; websocket-... 1.4, 1.8."""

from __future__ import annotations

from typing import Any

import pytest

from acks.aggregator import Outcome
from acks.errors import error
from acks.responses import Asked, answer_envelope, refusal, response_envelope
from acks.signals import Acknowledgement, Response

ASKED = Asked(
    "ns/n/things/twin/commands/modify", "/attributes/a", "ns:n", "twin", "c",
    {"x-a": "b", "timeout": "10s"},
)  # fmt: skip
LIVE = ASKED._replace(topic="ns/n/things/live/commands/retrieve", channel="live")
MESSAGE = LIVE._replace(topic="ns/n/things/live/messages/ask", path="/inbox/messages/ask")


def ack(label: str, status: int, payload: Any = None, **headers: Any) -> Acknowledgement:
    return Acknowledgement(label, "ns:n", "c", status, payload, headers)


def test_a_response() -> None:
    outcome = Outcome(204, response=Response(204, None, {"etag": '"a"', "correlation-id": "z"}))
    envelope = answer_envelope(ASKED, outcome)
    assert envelope == {
        "topic": ASKED.topic,
        "headers": {
            "correlation-id": "c",
            "response-required": False,
            "x-a": "b",
            "timeout": "10s",
            "etag": '"a"',
        },
        "path": "/attributes/a",
        "status": 204,
    }
    assert list(envelope) == ["topic", "headers", "path", "status"]


@pytest.mark.parametrize("payload", [{"a": 1}, [], 0, False, ""])
def test_a_response_with_a_value(payload: Any) -> None:
    envelope = response_envelope(ASKED, Response(201, payload, {}))
    assert (envelope["value"], envelope["status"]) == (payload, 201)
    assert envelope["headers"]["content-type"] == "application/json"
    assert list(envelope) == ["topic", "headers", "path", "value", "status"]


def test_an_error() -> None:
    problem = error("things:precondition.failed", header="if-match", given="a", current="b")
    problem.headers["etag"] = '"b"'
    envelope = answer_envelope(ASKED, Outcome(412, error=problem))
    assert envelope == refusal(ASKED, problem)
    assert envelope["topic"] == "ns/n/things/twin/errors"
    assert (envelope["path"], envelope["status"]) == ("/", 412)
    assert envelope["value"] == problem.to_json()
    assert envelope["headers"] == {
        "correlation-id": "c",
        "response-required": False,
        "x-a": "b",
        "timeout": "10s",
        "etag": '"b"',
        "content-type": "application/json",
    }
    assert refusal(LIVE, problem)["topic"] == "ns/n/things/live/errors"
    unknown = refusal(ASKED._replace(thing_id=None), problem)
    assert unknown["topic"] == "unknown/unknown/things/twin/errors"


def test_a_single_ack_stands_under_its_label() -> None:
    for label in ("my:ack", "search-persisted"):
        envelope = answer_envelope(ASKED, Outcome(409, (ack(label, 409, "no"),)))
        assert envelope["topic"] == "ns/n/things/twin/acks"
        assert (envelope["path"], envelope["status"]) == ("/", 409)
        assert envelope["value"] == {
            label: {"status": 409, "payload": "no", "headers": {"response-required": False}}
        }


def test_acks_of_a_live_command() -> None:
    outcome = Outcome(200, (ack("live-response", 200, 1), ack("my:ack", 202)))
    envelope = answer_envelope(LIVE, outcome)
    assert envelope["topic"] == "ns/n/things/live/acks"
    assert list(envelope["value"]) == ["live-response", "my:ack"]
    assert envelope["headers"]["content-type"] == "application/json"


def test_a_live_response_alone_is_the_answer() -> None:
    given = ack(
        "live-response", 200, "ho", **{"content-type": "text/plain", "x-z": "y", "etag": "forged"}
    )
    envelope = answer_envelope(MESSAGE, Outcome(200, (given,)))
    assert (envelope["topic"], envelope["path"]) == (MESSAGE.topic, MESSAGE.path)
    assert (envelope["value"], envelope["status"]) == ("ho", 200)
    assert envelope["headers"]["content-type"] == "text/plain"
    assert envelope["headers"]["x-z"] == "y"
    assert "etag" not in envelope["headers"]


def test_an_error_of_the_device_is_an_error() -> None:
    problem = error("things:attribute.notfound", thing_id="ns:n", path="/a").to_json()
    outcome = Outcome(404, (ack("live-response", 404, problem),))
    envelope = answer_envelope(LIVE, outcome)
    assert (envelope["topic"], envelope["path"]) == ("ns/n/things/live/errors", "/")
    assert (envelope["value"], envelope["status"]) == (problem, 404)
    # What answers a message says is its own business.
    assert answer_envelope(MESSAGE, outcome)["topic"] == MESSAGE.topic
