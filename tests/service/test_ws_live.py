"""Messages, live commands and live events sent over WebSocket, and what comes back."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.callers import Caller, check_error, topic_of
from tests.gateways import Gateway, Json, Subscriber, ack_all, new_id, new_label, thing
from tests.service.test_ws_commands import policy


@pytest.fixture
async def name(client: httpx.AsyncClient) -> str:
    """A thing of the user ditto; user2 may read one attribute of it, and its messages."""
    thing_id = new_id()
    read = {"grant": ["READ"], "revoke": []}
    others = {"thing:/attributes/on": read, "message:/": read}
    body = {"_policy": policy(**others), "attributes": {"on": False, "secret": 1}}
    assert (await client.put(thing(thing_id), json=body)).status_code == 201
    return thing_id


def ask_topic(name: str, subject: str = "ask") -> str:
    return topic_of(name, subject, "live", "messages")


def live_topic(name: str, action: str) -> str:
    return topic_of(name, action, "live")


# --- messages


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        ("hi", "text/plain"),
        ({"a": [1, None]}, "application/json"),
        ("AQIDBAUG", "application/octet-stream"),
        ("<a/>", "text/xml;charset=utf-8"),
        (None, "application/json"),
    ],
)
async def test_a_message_and_its_response(
    gateway: Gateway, name: str, value: Any, content_type: str
) -> None:
    headers = {"content-type": content_type, "x-a": "b"}

    def respond(message: Json) -> Json:
        answer = {"content-type": content_type, "x-c": "d"}
        return {"status": 202, "value": message["value"], "headers": answer}

    async with (
        Subscriber.open(gateway, start="START-SEND-MESSAGES", respond=respond) as device,
        Caller.open(gateway) as caller,
    ):
        answer = await caller.ask(
            ask_topic(name), "/inbox/messages/ask", value=value, headers=headers
        )
        seen = await device.event()
    correlation_id = answer["headers"].pop("correlation-id")
    assert (seen["topic"], seen["path"]) == (ask_topic(name), "/inbox/messages/ask")
    assert seen["value"] == value
    assert {key: seen["headers"][key] for key in seen["headers"] if key != "timestamp"} == {
        "correlation-id": correlation_id,
        "response-required": True,
        "channel": "live",
        "x-a": "b",
        "content-type": content_type,
        "ditto-message-direction": "TO",
        "ditto-message-subject": "ask",
        "ditto-message-thing-id": name,
        "ditto-originator": "nginx:ditto",
    }
    expected = {
        "topic": ask_topic(name),
        "headers": {
            "response-required": False,
            "channel": "live",
            "content-type": content_type,
            "x-a": "b",
            "x-c": "d",
        },
        "path": "/inbox/messages/ask",
        "status": 202,
    }
    if value is not None:  # a response of null has no payload
        expected["value"] = value
    assert answer == expected


async def test_messages_of_features_and_claims(gateway: Gateway, name: str) -> None:
    def respond(message: Json) -> Json:
        return {"status": 200, "value": message["path"]}

    paths = {
        "a/b": "/outbox/messages/a/b",
        "ask": "/features/l~1amp/inbox/messages/ask",
        "claim": "/inbox/messages/claim",
    }
    async with (
        Subscriber.open(gateway, start="START-SEND-MESSAGES", respond=respond),
        Caller.open(gateway) as caller,
        Caller.open(gateway, user="user2") as stranger,
    ):
        for subject, path in paths.items():
            answer = await caller.ask(ask_topic(name, subject), path, value="x")
            assert (answer["value"], answer["path"]) == (path, path)
        claim = await stranger.ask(ask_topic(name, "claim"), paths["claim"], value="secret")
        assert claim["status"] == 200
        denied = await stranger.ask(ask_topic(name), paths["ask"], value="x")
        check_error(denied, 403, "messages:send.notallowed")
        assert denied["topic"] == topic_of(name, channel="live", criterion="errors")


async def test_messages_that_nobody_answers(gateway: Gateway, name: str) -> None:
    async with Caller.open(gateway) as caller:
        late = await caller.ask(
            ask_topic(name), "/inbox/messages/ask", value="x", headers={"timeout": "200ms"}
        )
        value = check_error(late, 408, "command.timeout")
        assert value["message"] == "The Command reached the specified timeout of 200ms."
        assert late["topic"] == topic_of(name, channel="live", criterion="errors")
        missing = await caller.ask(ask_topic(new_id()), "/inbox/messages/ask", value="x")
        check_error(missing, 404, "things:thing.notfound")
        large = await caller.ask(ask_topic(name), "/inbox/messages/ask", value="x" * 256_001)
        check_error(large, 413, "messages:payload.toolarge")
        other = await caller.ask(ask_topic(name), "/inbox/messages/other", value="x")
        check_error(other, 400, "protocoladapter:unknown.topicpath")
        failed = await caller.ask(
            ask_topic(name), "/inbox/messages/ask", headers={"condition": "eq(attributes/on,true)"}
        )
        check_error(failed, 412, "things:condition.failed")


async def test_acks_of_a_message(gateway: Gateway, name: str) -> None:
    label = new_label()

    def respond(_: Json) -> Json:
        return {"status": 200, "value": "ho"}

    async with (
        Subscriber.open(
            gateway, label, start="START-SEND-MESSAGES", ack=ack_all, respond=respond
        ) as device,
        Caller.open(gateway) as caller,
    ):

        async def ask(*labels: str, **headers: Any) -> Json:
            sent = {"requested-acks": list(labels), **headers}
            return await caller.ask(ask_topic(name), "/inbox/messages/ask", headers=sent)

        both = await ask(label)
        assert both["topic"] == topic_of(name, channel="live", criterion="acks")
        assert list(both["value"]) == [label, "live-response"]
        assert (both["status"], both["value"]["live-response"]["payload"]) == (200, "ho")
        plain = await ask("live-response")
        assert (plain["topic"], plain["value"]) == (ask_topic(name), "ho")
        refused = await ask(label, **{"response-required": False})
        check_error(refused, 400, "header.invalid")
        silent = {"response-required": False}
        before = len(device.events)
        sent = await caller.tell(ask_topic(name), "/inbox/messages/ask", headers=silent)
        seen = await device.event(count=before + 1)
        assert seen["headers"]["response-required"] is False
        await caller.ask(topic_of(name, "retrieve"))
        assert caller.answers(sent) == []


async def test_a_session_does_not_get_its_own_message(gateway: Gateway, name: str) -> None:
    async with Caller.open(gateway) as caller:
        await caller.command("START-SEND-MESSAGES")
        late = await caller.ask(
            ask_topic(name), "/inbox/messages/ask", headers={"timeout": "200ms"}
        )
        check_error(late, 408, "command.timeout")
        assert len(caller.frames) == 1


# --- live commands


@pytest.mark.parametrize(
    ("action", "path", "value", "status", "answer"),
    [
        ("modify", "/attributes/on", True, 204, None),
        ("modify", "/attributes/on", None, 201, 5),
        ("merge", "/", {"attributes": {"a": None}}, 204, None),
        ("delete", "/features/lamp", ..., 204, None),
        ("retrieve", "/attributes/on", ..., 200, False),
        ("retrieve", "/", ..., 200, {"thingId": "x"}),
    ],
)
@pytest.mark.parametrize("by", ["topic", "header"])
async def test_a_live_command_and_its_response(
    gateway: Gateway,
    name: str,
    by: str,
    action: str,
    path: str,
    value: Any,
    status: int,
    answer: Any,
) -> None:
    fields = {} if value is ... else {"value": value}
    if action == "retrieve" and path == "/":
        fields["fields"] = "thingId"

    def respond(_: Json) -> Json:
        return {"status": status} if answer is None else {"status": status, "value": answer}

    async with (
        Subscriber.open(gateway, start="START-SEND-LIVE-COMMANDS", respond=respond) as device,
        Caller.open(gateway) as caller,
    ):
        topic = topic_of(name, action, "live" if by == "topic" else "twin")
        headers = {} if by == "topic" else {"channel": "live"}
        response = await caller.ask(topic, path, headers=headers, **fields)
        seen = await device.event()
    assert (seen["topic"], seen["path"]) == (live_topic(name, action), path)
    assert {key: seen[key] for key in ("value", "fields") if key in seen} == fields
    assert (response["topic"], response["path"]) == (live_topic(name, action), path)
    assert (response["status"], response.get("value")) == (status, answer)
    assert response["headers"]["channel"] == "live"


async def test_live_commands_that_are_refused(gateway: Gateway, name: str) -> None:
    problem = {"status": 404, "error": "things:feature.notfound", "message": "no lamp"}

    def respond(command: Json) -> Json:
        return {"status": 404, "value": problem}

    async with (
        Subscriber.open(gateway, start="START-SEND-LIVE-COMMANDS", respond=respond),
        Caller.open(gateway) as caller,
        Caller.open(gateway, user="user2") as stranger,
    ):
        missing = await caller.ask(live_topic(name, "retrieve"), "/features/lamp")
        assert missing["value"] == problem
        assert missing["topic"] == topic_of(name, channel="live", criterion="errors")
        denied = await stranger.ask(live_topic(name, "modify"), "/attributes/on", value=1)
        check_error(denied, 403, "things:attribute.notmodifiable")
        hidden = await stranger.ask(live_topic(name, "retrieve"), "/attributes/secret")
        check_error(hidden, 404, "things:attribute.notfound")
        assert hidden["topic"] == topic_of(name, channel="live", criterion="errors")


async def test_what_a_device_tells_is_cut_to_what_may_be_read(gateway: Gateway, name: str) -> None:
    def respond(_: Json) -> Json:
        return {"status": 200, "value": {"on": True, "secret": 2}}

    async with (
        Subscriber.open(gateway, start="START-SEND-LIVE-COMMANDS", respond=respond),
        Caller.open(gateway, user="user2") as stranger,
    ):
        read = await stranger.ask(live_topic(name, "retrieve"), "/attributes")
        assert read["value"] == {"on": True}


async def test_smart_queries(gateway: Gateway, name: str) -> None:
    topic = topic_of(name, "retrieve")

    def respond(_: Json) -> Json:
        return {"status": 200, "value": "from the device"}

    async def ask(caller: Caller, asked: str = topic, **headers: str) -> Json:
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        return await caller.ask(asked, "/attributes/on", headers=sent)

    async with Caller.open(gateway) as caller:
        condition, use_twin = "eq(attributes/on,false)", "use-twin"
        late = await ask(caller, live_channel_condition=condition, timeout="200ms")
        check_error(late, 408, "command.timeout")
        twin = await ask(
            caller,
            live_channel_condition=condition,
            live_channel_timeout_strategy=use_twin,
            timeout="200ms",
        )
        assert (twin["value"], twin["topic"]) == (False, topic)
        assert twin["headers"]["channel"] == "twin"
        assert twin["headers"]["live-channel-condition-matched"] == "true"
        other = await ask(caller, live_channel_condition="eq(attributes/on,true)")
        assert (other["value"], other["topic"]) == (False, topic)
        assert other["headers"]["live-channel-condition-matched"] == "false"
        async with Subscriber.open(gateway, start="START-SEND-LIVE-COMMANDS", respond=respond):
            live = await ask(caller, live_channel_condition=condition)
            assert (live["value"], live["topic"]) == (
                "from the device",
                live_topic(name, "retrieve"),
            )
            assert live["headers"]["channel"] == "live"
            by_topic = await ask(
                caller, live_topic(name, "retrieve"), live_channel_timeout_strategy=use_twin
            )
            assert by_topic["value"] == "from the device"
        wrong = await ask(caller, live_channel_condition="eq(")
        check_error(wrong, 400, "rql.expression.invalid")


# --- live events


async def test_live_events_reach_other_sessions(
    gateway: Gateway, sibling: Gateway, name: str, client: httpx.AsyncClient
) -> None:
    start = "START-SEND-LIVE-EVENTS"
    async with (
        Subscriber.open(sibling, start=start) as subscriber,
        Subscriber.open(sibling) as of_twins,
        Caller.open(gateway) as sender,
        Caller.open(gateway, user="user2") as stranger,
    ):
        await sender.command(start)
        sent = await sender.tell(
            topic_of(name, "modified", "live", "events"),
            "/attributes/on",
            value=None,
            revision=7,
            headers={"x-a": "b"},
        )
        seen = await subscriber.event()
        assert (seen["topic"], seen["path"]) == (
            topic_of(name, "modified", "live", "events"),
            "/attributes/on",
        )
        assert (seen["value"], seen["revision"]) == (None, 7)
        assert (seen["headers"]["correlation-id"], seen["headers"]["x-a"]) == (sent, "b")
        assert seen["headers"]["ditto-originator"] == "nginx:ditto"
        topic = topic_of(name, "deleted", "live", "events")
        await sender.tell(topic, "/features/lamp", timestamp="2026-01-01T00:00:00Z")
        gone = await subscriber.event(count=2)
        assert (gone["timestamp"], "value" in gone) == ("2026-01-01T00:00:00Z", False)
        denied = await stranger.ask(topic, "/features/lamp")
        check_error(denied, 403, "things:event.notallowed")
        assert denied["topic"] == topic_of(name, channel="live", criterion="errors")
        await stranger.tell(topic, "/features/lamp", headers={"response-required": False})
        await stranger.nothing_came(1)
        await sender.nothing_came(0)
        assert of_twins.events == []
        assert (await client.get(thing(name, "/attributes/on"))).json() is False


async def test_partly_seen_live_events_stay_away(gateway: Gateway, name: str) -> None:
    async with (
        Subscriber.open(gateway, user="user2", start="START-SEND-LIVE-EVENTS") as subscriber,
        Caller.open(gateway) as sender,
    ):
        for path in ("/attributes/secret", "/attributes/on"):
            await sender.tell(topic_of(name, "modified", "live", "events"), path, value=1)
        assert (await subscriber.event())["path"] == "/attributes/on"
        assert len(subscriber.events) == 1
