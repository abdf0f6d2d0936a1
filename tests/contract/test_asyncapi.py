"""The AsyncAPI document: its parts fit together, and what a gateway sends fits it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from acks.control import read_control
from acks.errors import CATALOGUE
from acks.topic import parse_topic
from tests.callers import Caller, topic_of
from tests.gateways import ROOT, Gateway, Json, Subscriber, new_id, new_label

DOCUMENT: Json = yaml.safe_load((ROOT / "openapi" / "asyncapi.yaml").read_text())
MESSAGES: Json = DOCUMENT["components"]["messages"]
SEARCH = "_/_/things/twin/search"


def validator(schema: Json) -> Draft202012Validator:
    """For a schema of the document, which may refer to others of it."""
    return Draft202012Validator({"components": DOCUMENT["components"], **schema})


def problems(name: str, frame: Any) -> list[str]:
    """What is wrong with a frame as this message."""
    return [error.message for error in validator(MESSAGES[name]["payload"]).iter_errors(frame)]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_references_lead_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        node = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_every_message_has_its_place() -> None:
    channel = set(DOCUMENT["channels"]["session"]["messages"])
    used = set()
    for operation in DOCUMENT["operations"].values():
        for reference in references([operation["messages"], operation.get("reply", {})]):
            used.add(reference.rpartition("/")[2])
    assert used - {"session"} == channel == set(MESSAGES)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_examples_fit_their_schemas(name: str) -> None:
    message = MESSAGES[name]
    assert message["examples"]
    for example in message["examples"]:
        payload = example["payload"]
        assert problems(name, payload) == []
        if isinstance(payload, str):
            control = read_control(payload.removesuffix(":ACK"))
            assert control is not None
        else:
            parse_topic(payload["topic"])
        value = payload["value"] if name == "error" else None
        if value is not None:
            kind = CATALOGUE[value["error"]]
            assert kind.status == value["status"]


def test_patterns_are_whole() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for pattern in re.findall(r"'pattern': '([^']*)'", repr(schema)):
            assert (pattern[0], pattern[-1]) == ("^", "$"), name


def conversation(name: str, label: str) -> list[tuple[str, Json, str]]:
    """What is sent (message, fields), and which message it is answered by."""
    namespace, _, local = name.partition(":")
    policy = f"{namespace}/{local}/policies/commands/retrieve"
    acks = {"requested-acks": ["twin-persisted", label], "timeout": 10}
    retrieve, several = topic_of(name, "retrieve"), "_/_/things/twin/commands/retrieve"
    message, event = topic_of(name, "ask", "live", "messages"), "modified"
    return [
        ("command", {"topic": topic_of(name, "create"), "value": {}}, "response"),
        (
            "command",
            {
                "topic": topic_of(name, "modify"),
                "path": "/attributes/a",
                "value": 1,
                "headers": acks,
            },
            "acknowledgements",
        ),
        ("command", {"topic": retrieve, "fields": "thingId"}, "response"),
        ("command", {"topic": retrieve, "path": "/attributes/b"}, "error"),
        ("command", {"topic": retrieve, "headers": {"if-none-match": "*"}}, "error"),
        ("command", {"topic": several, "value": {"thingIds": [name]}}, "response"),
        ("command", {"topic": topic_of(name, "modify", "live"), "value": {}}, "response"),
        ("command", {"topic": policy}, "response"),
        ("command", {"topic": policy, "path": "/entries/x"}, "error"),
        ("message", {"topic": message, "path": "/inbox/messages/ask", "value": "hi"}, "response"),
        (
            "liveEvent",
            {"topic": topic_of(name, event, "live", "events"), "path": "/definition", "value": 7},
            "error",
        ),
        ("searchSubscribe", {"topic": f"{SEARCH}/subscribe"}, "searchCreated"),
        (
            "searchCancel",
            {"topic": f"{SEARCH}/cancel", "value": {"subscriptionId": "x"}},
            "searchFailed",
        ),
    ]


async def test_what_a_gateway_sends_fits(gateway: Gateway) -> None:
    label, name = new_label(), new_id()

    def respond(signal: Json) -> Json | None:
        return {"status": 200, "value": 1} if "/live/" in signal["topic"] else None

    def ack(event: Json, _: str) -> Json:
        return {"status": 204}

    async with (
        Subscriber.open(gateway, label, ack=ack, respond=respond) as subscriber,
        Caller.open(gateway) as caller,
    ):
        for kind in ("MESSAGES", "LIVE-COMMANDS", "LIVE-EVENTS"):
            await subscriber.command(f"START-SEND-{kind}?extraFields=attributes")
        for asked, fields, answered in conversation(name, label):
            frame = {"path": "/", **fields}
            assert problems(asked, frame) == []
            answer = await caller.ask(frame.pop("topic"), frame.pop("path"), **frame)
            assert problems(answered, answer) == [], answer
        await caller.tell(topic_of(name, "deleted", "live", "events"), "/attributes/a")
        await subscriber.event(count=5)
    kinds = set()
    for event in subscriber.events:
        topic = parse_topic(event["topic"])
        kinds.add((topic.channel, topic.criterion))
        delivered = "event" if topic.channel == "twin" else "liveSignal"
        assert problems(delivered, event) == [], event
    live = {("live", criterion) for criterion in ("events", "commands", "messages")}
    assert kinds == {("twin", "events"), *live}
    for text in subscriber.texts:
        assert problems("commandAck", text) == []


async def test_pages_of_a_search_fit(gateway: Gateway) -> None:
    name = new_id(f"asyncapi.{new_id().rpartition(':')[2]}")
    namespace, _, _ = name.partition(":")
    async with Caller.open(gateway) as caller:
        acks = {"requested-acks": ["search-persisted"], "timeout": "20s"}
        made = await caller.ask(topic_of(name, "create"), value={}, headers=acks)
        assert made["status"] < 300, made
        asked: Json = {"value": {"namespaces": [namespace]}, "fields": "thingId"}
        frame = {"topic": f"{SEARCH}/subscribe", "path": "/", **asked}
        assert problems("searchSubscribe", frame) == []
        created = await caller.ask(f"{SEARCH}/subscribe", **asked)
        value = {"subscriptionId": created["value"]["subscriptionId"], "demand": 2}
        frame = {"topic": f"{SEARCH}/request", "path": "/", "value": value}
        assert problems("searchRequest", frame) == []
        request = await caller.tell(f"{SEARCH}/request", value=value)
        await caller.answer(request, 2)
        page, end = caller.answers(request)
        assert page["value"]["items"] == [{"thingId": name}]
        assert problems("searchNext", page) == []
        assert problems("searchComplete", end) == []
