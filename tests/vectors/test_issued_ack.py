"""Vectors of the acks that targets issue; what a broker says is proved with the brokers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from acks.errors import error
from connections.driver import Published
from connections.issued import issued_ack
from connections.publishing import broken, failed
from tests.vectors import load

EVENT: dict[str, Any] = {
    "topic": "ns/thing/things/twin/events/modified",
    "headers": {"correlation-id": "c", "requested-acks": ["C:label"]},
    "path": "/",
}
_EXCEPTION = re.compile(r'(\w+)\("(.*)"(?:, cause (\w+))?\)')


def thrown(text: str) -> BaseException:
    found = _EXCEPTION.fullmatch(text)
    assert found is not None, text
    problem: BaseException = type(found[1], (Exception,), {})(found[2])
    if found[3]:
        problem.__cause__ = type(found[3], (Exception,), {})()
    return problem


def told(given: dict[str, Any]) -> Published:
    """What a driver tells of it: the shapes of 4.5."""
    if "exception" in given:
        return broken(thrown(given["exception"]))
    if "response" in given:
        kind = given["response"]["content-type"]
        return Published(given["response"]["status"], "aGVsbG8h", {"content-type": kind})
    match given["broker"], given["result"]:
        case "amqp-10", "send completed":
            return Published(200)
        case "kafka", _:
            return broken(RuntimeError("disconnected"))
        case "mqtt", "broker refused publish":
            return Published(503, lost=True)
        case _:
            problem = error(
                "connectivity:message.sending.failed",
                status=400,
                reason="Failed to transform ExternalMessage to GenericMqttPublish: Topic "
                "[target/#] must not contain multi level wildcard (#), found at index 7.",
            )
            return failed(400, problem.to_json())


@pytest.mark.parametrize(("given", "expected"), load("issued_ack"))
def test_issued_ack(given: dict[str, Any], expected: dict[str, Any]) -> None:
    published = told(given)
    ack = issued_ack("C:label", EVENT, published, "C")
    assert ack.status == expected["status"]
    if "payload" in expected:
        assert ack.payload == expected["payload"]
    for name, value in expected.get("headers", {}).items():
        assert ack.headers[name] == value
    assert published.lost is ("also" in expected)
