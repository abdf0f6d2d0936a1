"""Vectors of connections: settlement, requested acks, placeholders of topics and times."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest

from acks.errors import error
from acks.settlement import Reply, Settlement, decide
from connections.driver import Delivery, Limits
from connections.mapping.ack_requests import parse_ack_filter, request_acks
from connections.model import Source
from connections.mqtt.inbox import Inbox, Incoming, Routes
from connections.placeholders.lookups import Scope
from connections.publishing import broken
from tests.connections.memory import connection, modify, response, rig, source
from tests.vectors import load
from tests.vectors.test_issued_ack import thrown

Json = Any
NOW = datetime.fromisoformat("2024-05-15T13:47:28.123+00:00")
SETTLEMENTS = {
    ("positive", None): Settlement.ACCEPT,
    ("negative", True): Settlement.REDELIVER,
    ("negative", False): Settlement.DISCARD,
    ("settle", None): Settlement.ACCEPT,
    ("redeliver", None): Settlement.REDELIVER,
    ("reject without redelivery", None): Settlement.DISCARD,
}


# --- settlement


def reply(response: Json) -> Reply | None:
    if response["type"].startswith("none"):
        if "invalid combination" not in response["type"]:
            return None
        return Reply(error=error("header.invalid", value="0", header="timeout", type="timeout"))
    if response.get("delivered_as") == "DittoRuntimeException":
        return Reply(error=error("things:condition.failed", status=response["status"]))
    statuses = response.get("acks", [response["status"]])
    return Reply(tuple(statuses), live="(live)" in response["type"])


@pytest.mark.parametrize(("given", "expected"), load("settlement.decision"))
def test_decision(given: Json, expected: Json) -> None:
    replies = [made for made in map(reply, given["responses"]) if made is not None]
    count = given.get("expected_count", len(given["responses"]))
    # What is not settled by what has come, is settled when the time of waiting is over.
    settlement = decide(replies, count) or decide(replies, count, late=True)
    assert settlement is SETTLEMENTS[expected["settle"], expected.get("redeliver")]


def of_connection_settlement(*fields: str) -> list[Any]:
    return [
        vector
        for vector in load("connection-settlement")
        if any(field in vector.values[0] for field in fields)
    ]


@pytest.mark.parametrize(("given", "expected"), of_connection_settlement("ackStatuses", "outcome"))
def test_settlement_by_acks(given: Json, expected: Json) -> None:
    outcomes = {
        "Ditto error 408 command.timeout": Reply(error=error("command.timeout", timeout_ms=1)),
        "live response 404 (channel live, no acks object)": Reply((404,), live=True),
    }
    acks = Reply(tuple(given.get("ackStatuses", ())))
    made = outcomes.get(given.get("outcome"), acks)
    assert decide([made], 1) is SETTLEMENTS[expected["settlement"], None]


def broker_action(of: str) -> Json:
    [vector] = [p for p in load("settlement.broker_action") if of in p.values[0]["connection"]]
    return vector.values[1]


def test_settlement_of_mqtt_that_reconnects_for_redelivery() -> None:
    expected = broker_action("reconnectForRedelivery=true")
    acked: list[int] = []
    given: list[Delivery] = []
    inbox = Inbox(
        Routes([Source(0, ("t",), ("s",), qos=1)]),
        Limits(),
        1,
        redelivers=True,
        ack=lambda mid, qos: acked.append(mid),
        on_delivery=given.append,
    )
    for mid in (1, 2, 3):
        inbox.take(Incoming(mid, "t", b"%d" % mid, 1, {}, None))
    inbox.settle(given[0], Settlement.ACCEPT)
    inbox.settle(given[1], Settlement.DISCARD)
    assert expected["positive"] == expected["negative_no_redeliver"] == "PUBACK/PUBREC"
    assert acked == [1, 2]
    assert not inbox.held
    inbox.settle(given[2], Settlement.REDELIVER)
    assert expected["negative_redeliver"].startswith("no ack; reconnect")
    assert acked == [1, 2]
    assert inbox.held, "the client reconnects for it"


def test_settlement_of_mqtt_that_does_not_reconnect() -> None:
    expected = broker_action("reconnectForRedelivery=false")
    assert set(expected.values()) == {"PUBACK/PUBREC"}
    acked: list[int] = []
    given: list[Delivery] = []
    inbox = Inbox(
        Routes([Source(0, ("t",), ("s",), qos=1)]),
        Limits(),
        1,
        redelivers=False,
        ack=lambda mid, qos: acked.append(mid),
        on_delivery=given.append,
    )
    for mid in (1, 2, 3):
        inbox.take(Incoming(mid, "t", b"%d" % mid, 1, {}, None))
    for delivery, settlement in zip(given, Settlement, strict=True):
        inbox.settle(delivery, settlement)
    assert acked == [1, 2, 3]
    assert not inbox.held


@pytest.mark.parametrize("status", [204, 404, 503])
async def test_settlement_of_kafka_with_qos_0(status: int) -> None:
    """That the offset is committed on consume is proved with a broker."""
    expected = broker_action("kafka qos=0")
    assert expected["negative_no_redeliver"] == expected["negative_redeliver"] == "nothing"
    it = rig(connection(kind="kafka", sources=(source(),)))
    it.supervisor.start()
    try:
        await it.opened()
        it.driver.deliver(modify(), settles=False)
        it.gate.asked[0].answer(response(status))
        assert it.supervisor.pending == 0
        assert it.settlements == []
    finally:
        await it.supervisor.close(0.0)


@pytest.mark.parametrize(("given", "expected"), of_connection_settlement("publishException"))
def test_ack_of_a_publication_that_fails(given: Json, expected: Json) -> None:
    text = re.sub(r"\) caused by (\w+)$", r", cause \1)", given["publishException"])
    published = broken(thrown(text))
    assert published.status == expected["ack"]["status"]
    assert published.payload == expected["ack"]["payload"]


# --- requested acks


COMMANDS = {
    "DeleteThing": ("twin/commands/delete", "/"),
    "RetrieveThing": ("twin/commands/retrieve", "/"),
    "ModifyAttribute": ("twin/commands/modify", "/attributes/a"),
    "ModifyAttribute (live)": ("live/commands/modify", "/attributes/a"),
    "SendThingMessage": ("live/messages/ask", "/inbox/messages/ask"),
}


def requested(
    given: Json, headers: Json, external: Json, topic: str, path: str = "/"
) -> list[str] | None:
    scope = Scope("C", NOW, external)
    ack_filter = parse_ack_filter(given.get("filter"))
    envelope = {"topic": topic, "headers": headers, "path": path}
    found = request_acks(envelope, tuple(given.get("includes", ())), ack_filter, scope)
    labels: list[str] | None = found["headers"].get("requested-acks")
    return labels


@pytest.mark.parametrize(
    ("given", "expected"),
    load("connection.requested_acks_filter", "connection.requested_acks_includes"),
)
def test_requested_acks_of_a_source(given: Json, expected: Json) -> None:
    rest, path = COMMANDS[given["command"]]
    topic = f"ns/n/things/{rest}"
    labels = requested(given, given["headers"], given.get("external_headers", {}), topic, path)
    assert labels == expected["requested-acks"]


@pytest.mark.parametrize(("given", "expected"), of_connection_settlement("filter"))
def test_requested_acks_by_a_filter(given: Json, expected: Json) -> None:
    labels = given["requested-acks"]
    headers = {} if labels is None else {"requested-acks": labels}
    external = given.get("externalHeaders", {})
    found = requested(given, headers, external, "ns/n/things/twin/commands/delete")
    absent = expected["requested-acks"] == "header absent"
    assert found == (None if absent else expected["requested-acks"])
    # The header may stand as text in a message, too.
    texts = {name: json.dumps(value) for name, value in headers.items()}
    assert requested(given, texts, external, "ns/n/things/twin/commands/delete") == found


# --- placeholders


@pytest.mark.parametrize(("given", "expected"), load("placeholder.topic"))
def test_topic_of_a_message(given: Json, expected: str | None) -> None:
    scope = Scope("C", NOW, envelope={"topic": given["topic"], "path": "/"})
    prefix, _, name = given["placeholder"].partition(":")
    assert scope(prefix, name) == (() if expected is None else (expected,))


@pytest.mark.parametrize(("given", "expected"), load("placeholder.time"))
def test_time(given: Json, expected: str | None) -> None:
    scope = Scope("C", datetime.fromisoformat(given["clock"]))
    prefix, _, name = given["placeholder"].partition(":")
    assert scope(prefix, name) == (() if expected is None else (expected,))
