"""Vectors of the acks that targets issue; what a broker says is proved with the brokers."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError

from acks.errors import error
from connections.driver import Limits, Published
from connections.http_push.driver import HttpPushDriver
from connections.issued import issued_ack
from connections.kafka.errors import not_stored
from connections.model import Connection, Uri
from connections.publishing import broken, failed
from tests.vectors import load

EVENT: dict[str, Any] = {
    "topic": "ns/thing/things/twin/events/modified",
    "headers": {"correlation-id": "c", "requested-acks": ["C:label"]},
    "path": "/",
}
KAFKA = {
    "retriable": KafkaError._TRANSPORT,
    "not retriable": KafkaError.MSG_SIZE_TOO_LARGE,
    "queue full": KafkaError._QUEUE_FULL,
}
_EXCEPTION = re.compile(r'(\w+)\("(.*)"(?:, cause (\w+))?\)')


def thrown(text: str) -> BaseException:
    found = _EXCEPTION.fullmatch(text)
    assert found is not None, text
    problem: BaseException = type(found[1], (Exception,), {})(found[2])
    if found[3]:
        problem.__cause__ = type(found[3], (Exception,), {})()
    return problem


async def answered(response: dict[str, Any]) -> Published:
    """What the driver makes of an HTTP response."""
    connection = Connection("C", "http-push", True, Uri("http", "localhost", 80))
    answer = httpx.Response(
        response["status"],
        headers={"content-type": response["content-type"]},
        stream=httpx.ByteStream(response["body"].encode()),
    )
    return await HttpPushDriver(connection, 0, 1, Limits())._answer(answer)


async def told(given: dict[str, Any]) -> Published:
    """What a driver tells of it: the shapes of 4.5."""
    if "exception" in given:
        return broken(thrown(given["exception"]))
    if "response" in given:
        return await answered(given["response"])
    match given["broker"], given["result"]:
        case "amqp-10", "send completed":
            return Published(200)
        case "kafka", result if result.startswith(tuple(KAFKA)):
            return not_stored(KafkaError(KAFKA[result.partition(" exception")[0]]))
        case "mqtt", "broker refused publish":
            return Published(503, lost=True)
        case "mqtt", result if result.startswith("invalid topic"):
            problem = error(
                "connectivity:message.sending.failed",
                status=400,
                reason="Failed to transform ExternalMessage to GenericMqttPublish: Topic "
                "[target/#] must not contain multi level wildcard (#), found at index 7.",
            )
            return failed(problem)
        case _:
            pytest.skip("What this broker says is proved with it: tests/brokers.")


@pytest.mark.parametrize(("given", "expected"), load("issued_ack"))
async def test_issued_ack(given: dict[str, Any], expected: dict[str, Any]) -> None:
    published = await told(given)
    ack = issued_ack("C:label", EVENT, published, "C")
    assert ack.status == expected["status"]
    if "payload" in expected:
        assert ack.payload == expected["payload"]
    for name, value in expected.get("headers", {}).items():
        assert ack.headers[name] == value
    assert published.lost is ("also" in expected)
