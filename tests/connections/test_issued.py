"""The acks that targets issue."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from acks.signals import Acknowledgement
from connections.driver import Published
from connections.issued import DITTO_TYPE, explicit_ack, issued_ack, wants
from connections.publishing import broken, not_sent

EVENT: dict[str, Any] = {
    "topic": "ns/thing/things/twin/events/modified",
    "headers": {"correlation-id": "c", "requested-acks": ["my:label"]},
    "path": "/",
}
MESSAGE: dict[str, Any] = {
    "topic": "ns/thing/things/live/messages/ask",
    "headers": {"correlation-id": "c", "response-required": True},
    "path": "/inbox/messages/ask",
    "value": 1,
}
COMMAND: dict[str, Any] = {
    "topic": "ns/thing/things/live/commands/modify",
    "headers": {"correlation-id": "c", "response-required": True},
    "path": "/attributes/a",
    "value": 1,
}


@pytest.mark.parametrize(
    ("label", "envelope", "wanted"),
    [
        ("my:label", EVENT, True),
        ("my:other", EVENT, False),
        (None, EVENT, False),
        ("live-response", EVENT, False),
        ("live-response", MESSAGE, True),
        ("live-response", COMMAND, True),
        ("live-response", MESSAGE | {"headers": {"response-required": False}}, False),
        ("live-response", EVENT | {"headers": {"response-required": True}}, False),
    ],
)
def test_wanted(label: str | None, envelope: dict[str, Any], wanted: bool) -> None:
    assert wants(label, envelope) is wanted


def answered(body: Any, status: int = 200, content_type: str = DITTO_TYPE) -> Published:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"content-type": content_type}
    return Published(status, "raw", headers, body=raw, content_type=content_type)


def live(envelope: dict[str, Any], published: Published) -> Acknowledgement:
    return issued_ack("live-response", envelope, published, "C")


def response(**more: Any) -> dict[str, Any]:
    headers = {"correlation-id": "c", "content-type": "text/plain"}
    return {**MESSAGE, "headers": headers, "value": "hi", "status": 201, **more}


def test_a_plain_body_is_the_response() -> None:
    ack = live(MESSAGE, answered(b"raw", 418, "text/plain"))
    assert (ack.status, ack.payload) == (418, "raw")
    assert ack.headers == {"content-type": "text/plain", "ditto-connection-id": "C"}


def test_a_ditto_body_is_read_as_the_response() -> None:
    ack = live(MESSAGE, answered(response(), content_type=f"{DITTO_TYPE}; charset=utf-8"))
    assert (ack.status, ack.payload, ack.headers["content-type"]) == (201, "hi", "text/plain")


@pytest.mark.parametrize(
    ("envelope", "body", "text"),
    [
        (
            MESSAGE,
            response(headers={"correlation-id": "d"}),
            "Correlation ID of live response <d> differs from correlation ID of command <c>.",
        ),
        (
            MESSAGE,
            response(topic="ns/other/things/live/messages/ask"),
            "Entity ID of live response <ns:other> differs from entity ID of command <ns:thing>.",
        ),
        (
            COMMAND,
            response(),
            "Type of live response <messages/ask> is not related to type of command "
            "<commands/modify>",
        ),
        (
            COMMAND,
            response(topic="ns/thing/things/twin/commands/modify", path="/attributes/a"),
            "Type of live response <commands/modify> is not related to type of command "
            "<commands/modify>",
        ),
    ],
)
def test_a_response_to_something_else(
    envelope: dict[str, Any], body: dict[str, Any], text: str
) -> None:
    ack = live(envelope, answered(body))
    assert (ack.status, ack.payload["message"]) == (422, text)
    assert "status" not in ack.payload


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"[" * 50_000, {}, {"topic": 7}, response(status="x")]
)
def test_a_body_that_is_no_response_never_raises(body: Any) -> None:
    ack = live(MESSAGE, answered(body))
    assert ack.status in (200, 422)


def test_an_ack_in_the_body_counts_without_a_label() -> None:
    body = {
        "topic": "ns/thing/things/twin/acks/my:label",
        "headers": {"correlation-id": "c"},
        "path": "/",
        "value": {"ok": True},
        "status": 207,
    }
    ack = explicit_ack(EVENT, answered(body), "C")
    assert ack is not None
    assert (ack.label, ack.correlation_id, ack.status) == ("my:label", "c", 207)
    assert ack.payload == {"ok": True}
    found = explicit_ack(MESSAGE, answered(response()), "C")
    assert found is not None
    assert (found.label, found.status) == ("live-response", 201)


@pytest.mark.parametrize(
    "published",
    [
        Published(200),
        answered({"topic": "ns/thing/things/twin/acks/my:label"}, content_type="application/json"),
        answered({"topic": "ns/thing/things/twin/acks/my:label"}),
        answered({"topic": "ns/thing/things/twin/acks/my:label", "status": 9, "headers": 3}),
        answered({"topic": "ns/thing/things/twin/events/modified"}),
        answered(b"{"),
    ],
)
def test_other_bodies_are_no_acks(published: Published) -> None:
    assert explicit_ack(EVENT, published, "C") is None


def test_a_caught_exception_and_an_absent_broker() -> None:
    assert broken(ValueError()).payload == {
        "message": "Encountered <ValueError>.",
        "description": "Unknown error.",
    }
    absent = not_sent("It is away.")
    assert (absent.status, absent.payload["message"]) == (
        503,
        "Failed to send message: It is away.",
    )
    assert "status" not in absent.payload
