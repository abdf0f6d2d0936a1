"""WebSocket sessions: defaults of the upgrade request, text commands, order, bounds, bad input."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.callers import Caller, check_error, topic_of
from tests.gateways import (
    Gateway,
    Subscriber,
    ack_envelope,
    basic,
    new_id,
    new_label,
    thing,
    ws_connect,
)
from tests.servers import RedisServer, wait_for

MAX_OPEN = 100

# --- the upgrade request


@pytest.mark.parametrize("place", ["query", "header"])
async def test_headers_of_the_upgrade_are_defaults(gateway: Gateway, place: str) -> None:
    query, headers = "?timeout=200ms&requested-acks=nobody:there,nobody:else", {}
    if place == "header":
        query, headers = "", {"timeout": "200ms", "requested-acks": "nobody:there,nobody:else"}
    async with Caller.open(gateway, query, headers=headers) as caller:
        name = new_id()
        late = await caller.ask(topic_of(name, "modify"), value={})
        assert (late["status"], list(late["value"])) == (424, ["nobody:there", "nobody:else"])
        own = await caller.ask(
            topic_of(name, "modify"), value={}, headers={"requested-acks": ["twin-persisted"]}
        )
        assert own["status"] == 204
        assert own["headers"]["timeout"] == "200ms"
        own = await caller.ask(topic_of(name, "modify"), value={}, headers={"timeout": "100ms"})
        message = own["value"]["nobody:else"]["payload"]["message"]
        assert message.endswith("timeout of 100ms.")


async def test_other_defaults(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"a": 1}})
    query = "?condition=eq(attributes/a,1)&correlation-id=mine"
    async with Caller.open(gateway, query, headers={"if-equal": "skip", "x-y": "z"}) as caller:
        topic = topic_of(name, "modify")
        await caller.send({"topic": topic, "path": "/attributes/a", "value": 1})
        same = await caller.answer("mine")
        check_error(same, 412, "things:precondition.failed")
        assert "x-y" not in same["headers"]
        changed = await caller.ask(topic, "/attributes/a", value=2)
        assert changed["status"] == 204
        check_error(
            await caller.ask(topic, "/attributes/a", value=3), 412, "things:condition.failed"
        )
    async with Caller.open(gateway, "?channel=live&timeout=100ms") as caller:
        check_error(await caller.ask(topic_of(name, "retrieve")), 408, "command.timeout")
    async with Caller.open(gateway, "?response-required=false") as caller:
        sent = await caller.tell(topic_of(name, "modify"), "/attributes/a", value=5)
        wanted = {"response-required": True}
        await caller.ask(topic_of(name, "retrieve"), headers=wanted)
        assert caller.answers(sent) == []


@pytest.mark.parametrize(
    ("query", "headers", "code"),
    [
        ("?timeout=1s", {"timeout": "2s"}, "gateway:duplicate.header.field"),
        ("?timeout=soon", {}, "timeout.invalid"),
        ("?requested-acks=a", {}, "header.invalid"),
        ("?response-required=maybe", {}, "header.invalid"),
        ("?channel=alive", {}, "header.invalid"),
    ],
)
async def test_upgrades_with_bad_defaults(
    gateway: Gateway, query: str, headers: dict[str, str], code: str
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with ws_connect(gateway, f"/ws/2{query}", headers=headers):
            pass
    response = refused.value.response
    body = json.loads(response.body)
    assert (response.status_code, body["status"], body["error"]) == (400, 400, code)


async def test_the_same_value_as_header_and_parameter(gateway: Gateway) -> None:
    async with Caller.open(gateway, "?timeout=2s", headers={"timeout": "2s"}) as caller:
        answer = await caller.ask(topic_of(new_id(), "modify"), value={})
        assert answer["headers"]["timeout"] == "2s"


# --- text commands

KINDS = ["EVENTS", "MESSAGES", "LIVE-COMMANDS", "LIVE-EVENTS", "POLICY-ANNOUNCEMENTS"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_is_started_and_stopped(gateway: Gateway, kind: str) -> None:
    async with Caller.open(gateway) as caller:
        for text in ("", "?namespaces=org.one,org.two", "xyz?unknown=1"):
            await caller.send(f"START-SEND-{kind}{text}")
        await caller.send(f"STOP-SEND-{kind}?namespaces")
        await wait_for(lambda: len(caller.texts) == 4)
        assert caller.texts == [f"START-SEND-{kind}:ACK"] * 3 + [f"STOP-SEND-{kind}:ACK"]
        assert caller.frames == []


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ("filter=", "rql.expression.invalid"),
        ("filter=eq(nothing,1)", "rql.expression.invalid"),
        ("extraFields=faetures", "things:field.selection.invalid"),
        ("extraFields=attributes(", "things:field.selection.invalid"),
        ("namespaces", "gateway:websocket.command.invalid"),
        ("namespaces=a&namespaces=b", "gateway:websocket.command.invalid"),
        ("namespaces=org.example,1bad", "gateway:websocket.command.invalid"),
    ],
)
async def test_bad_parameters_change_nothing(
    gateway: Gateway, kind: str, parameters: str, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        await caller.command(f"START-SEND-{kind}?namespaces=org.example")
        await caller.send(f"START-SEND-{kind}?{parameters}&correlation-id=mine")
        problem = await caller.answer("mine")
        check_error(problem, 400, code)
        assert problem["topic"] == "unknown/unknown/things/twin/errors"
        await caller.command(f"STOP-SEND-{kind}")
        assert len(caller.texts) == 2


async def test_a_bad_filter_leaves_the_old_subscription(gateway: Gateway) -> None:
    start = "START-SEND-EVENTS?namespaces=org.example"
    async with Subscriber.open(gateway, start=start) as subscriber, Caller.open(gateway) as caller:
        await subscriber.send("START-SEND-EVENTS?namespaces=org.other&filter=")
        await subscriber.error()
        await caller.ask(topic_of(new_id("org.other"), "modify"), value={})
        name = new_id("org.example")
        await caller.ask(topic_of(name, "modify"), value={})
        assert (await subscriber.event())["topic"].startswith(name.replace(":", "/"))


async def test_a_token_that_is_none_ends_the_session(gateway: Gateway) -> None:
    async with Caller.open(gateway) as caller:
        await caller.send("JWT-TOKEN?jwtToken=nonsense")
        assert await caller.closed() == 1000
        assert (caller.frames, caller.texts) == ([], [])


# --- order


async def test_commands_are_carried_out_in_their_order(gateway: Gateway) -> None:
    """Nothing is waited for: whatever reads comes after what was sent before it."""
    async with Caller.open(gateway) as caller:
        reads: list[tuple[str, object]] = []
        for _ in range(20):
            name = new_id()
            await caller.tell(topic_of(name, "create"), value={"attributes": {"n": 0}})
            for n in range(3):
                await caller.tell(topic_of(name, "modify"), "/attributes/n", value=n)
                read = await caller.tell(topic_of(name, "retrieve"), "/attributes/n")
                reads.append((read, n))
            many = await caller.tell(
                "_/_/things/twin/commands/retrieve", value={"thingIds": [name]}, fields="attributes"
            )
            reads.append((many, [{"attributes": {"n": 2}}]))
            await caller.tell(topic_of(name, "delete"))
            gone = await caller.tell(topic_of(name, "retrieve"))
            reads.append((gone, "things:thing.notfound"))
        for sent, expected in reads:
            answer = await caller.answer(sent)
            value = answer["value"]
            assert (value["error"] if "/errors" in answer["topic"] else value) == expected


async def test_signals_of_a_session_come_in_its_order(gateway: Gateway) -> None:
    name = new_id()
    async with (
        Subscriber.open(gateway) as subscriber,
        Caller.open(gateway) as caller,
    ):
        for kind in ("MESSAGES", "LIVE-COMMANDS", "LIVE-EVENTS"):
            await subscriber.command(f"START-SEND-{kind}")
        silent = {"response-required": False}
        sent = []
        for n in range(30):
            for topic, path in (
                (topic_of(name, "modify"), "/"),
                (topic_of(name, "ask", "live", "messages"), "/inbox/messages/ask"),
                (topic_of(name, "delete", "live"), "/attributes/a"),
                (topic_of(name, "modified", "live", "events"), "/attributes/a"),
            ):
                value = {"attributes": {"a": n}} if path == "/" else n
                sent.append(await caller.tell(topic, path, value=value, headers=silent))
        await subscriber.event(count=len(sent))
        ids = [event["headers"]["correlation-id"] for event in subscriber.events]
        assert ids == sent


async def test_text_commands_have_their_place_in_the_order(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    async with Caller.open(gateway) as caller:
        name = new_id()
        for n in range(10):
            await caller.send("START-SEND-EVENTS")
            await caller.tell(topic_of(name, "modify"), "/", value={"attributes": {"n": n}})
            await caller.send("STOP-SEND-EVENTS")
            assert (await caller.ask(topic_of(name, "retrieve")))["status"] == 200
        assert caller.texts == ["START-SEND-EVENTS:ACK", "STOP-SEND-EVENTS:ACK"] * 10


async def test_a_flood_of_changes_is_carried_out_without_a_gap(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name, count = new_id(), 2000
    async with Caller.open(gateway) as caller:
        frames = [
            json.dumps({
                "topic": topic_of(name, "modify"),
                "headers": {"correlation-id": f"flood-{n}"},
                "path": "/attributes/n" if n else "/",
                "value": n or {},
            })
            for n in range(count)
        ]  # fmt: skip
        for frame in frames:
            await caller.send(frame)
        await caller.answer(f"flood-{count - 1}", deadline=60)
        assert [frame["status"] for frame in caller.frames] == [201, 201] + [204] * (count - 2)
        assert [f["headers"]["correlation-id"] for f in caller.frames] == [
            f"flood-{n}" for n in range(count)
        ]
        read = await client.get(thing(name, "/attributes/n"))
        assert read.json() == count - 1
        assert int(read.headers["entity-revision"]) == count


# --- bounds


async def test_at_most_a_hundred_commands_are_under_way(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    label, name = new_label(), new_id()
    await client.put(thing(name), json={})
    async with (
        Subscriber.open(gateway, label) as owner,
        Caller.open(gateway) as caller,
        Caller.open(gateway) as other,
    ):
        headers = {"requested-acks": [label], "timeout": "30s"}
        sent = [
            await caller.tell(topic_of(name, "modify"), "/attributes/a", value=n, headers=headers)
            for n in range(MAX_OPEN + 50)
        ]
        await owner.event(count=MAX_OPEN)
        # Others do not notice; this one's next change would be there before that of the other.
        assert (await other.ask(topic_of(name, "modify"), "/attributes/b", value=1))[
            "status"
        ] == 201
        await owner.event(count=MAX_OPEN + 1)
        assert owner.events[-1]["path"] == "/attributes/b"
        assert caller.frames == []
        for n in range(MAX_OPEN + 50):
            events = [event for event in owner.events if event["path"] == "/attributes/a"]
            await owner.send(ack_envelope(events[n], label, status=200))
            await caller.answer(sent[n])
            if n < 50:
                await owner.event(count=MAX_OPEN + n + 2)
        assert {frame["status"] for frame in caller.frames} == {200}
        assert len(caller.frames) == MAX_OPEN + 50


async def test_a_held_session_answers_when_its_commands_have_timed_out(gateway: Gateway) -> None:
    name = new_id()
    headers = {"requested-acks": ["nobody:there"], "timeout": "1s"}
    async with Caller.open(gateway) as caller:
        sent = [
            await caller.tell(topic_of(name, "modify"), value={}, headers=headers)
            for _ in range(MAX_OPEN + 20)
        ]
        await caller.send("START-SEND-EVENTS")
        assert (await caller.answer(sent[-1]))["status"] == 408
        assert len(caller.frames) == MAX_OPEN + 20
        await wait_for(lambda: caller.texts == ["START-SEND-EVENTS:ACK"])


async def test_a_session_that_ends_with_commands_under_way(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    label = new_label()
    for kind in ("modify", "retrieve"):
        name = new_id()
        await client.put(thing(name), json={})
        headers = {"requested-acks": ["nobody:there"], "timeout": "1s", "channel": "live"}
        async with Caller.open(gateway, f"?declared-acks={label}") as caller:
            for _ in range(MAX_OPEN + 1):
                await caller.tell(topic_of(name, kind), value={}, headers=headers)
            caller.connection.transport.abort()
            await caller.closed()
    # Its label is free, and nothing of it was logged as an error.
    async with Subscriber.open(gateway, label) as again:
        await again.nothing_came()
    assert gateway.events("ws.session_failed") == []
    assert gateway.events("ws.command_failed") == []


async def test_a_gateway_that_ends_answers_what_is_under_way(
    store: RedisServer, place: Path
) -> None:
    gateway = Gateway(place, redis_url=store.url, prefix="service", drain_timeout="0.5s")
    await gateway.start_async()
    try:
        async with Caller.open(gateway) as caller:
            headers = {"requested-acks": ["nobody:there"], "timeout": "30s"}
            topic = topic_of(new_id(), "modify")
            sent = [await caller.tell(topic, value={}, headers=headers) for _ in range(3)]
            await caller.ask(topic.replace("modify", "retrieve"))
            gateway.terminate()
            for one in sent:
                check_error(await caller.answer(one), 503, "gateway:service.unavailable")
            assert await caller.closed() == 1012
        await gateway.ended()
    finally:
        gateway.stop()


async def test_a_client_that_does_not_read_its_answers(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"a": "x" * 100_000}})
    frame = json.dumps({"topic": topic_of(name, "retrieve"), "path": "/", "headers": {}})
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**16)
    async with Caller.open(gateway) as other:
        writer.write(
            f"GET /ws/2 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
            f"Authorization: {basic('ditto')}\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        data = frame.encode()
        head = bytes((0x81, 0xFE)) + len(data).to_bytes(2, "big") + bytes(4)

        async def flood() -> None:
            while True:
                writer.write((head + data) * 50)
                await writer.drain()

        flooding = asyncio.create_task(flood())
        # The gateway gives up on it: it is too slow. Meanwhile others are served.
        while not flooding.done():
            assert (await other.ask(topic_of(name, "retrieve"), fields="thingId"))["status"] == 200
        with pytest.raises(ConnectionError):
            await flooding
        writer.close()


# --- bad input


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "json.format.invalid"),
        ("{", "json.invalid"),
        ("\x00", "json.invalid"),
        ("START-SEND-NOTHING", "json.invalid"),
        ("[]", "json.format.invalid"),
        ("null", "json.format.invalid"),
        ('{"topic":"a/b/things/twin/commands/modify"}', "json.field.missing"),
        ('{"topic":"a/b/things/twin/commands/modify","path":[],"value":1}', "json.format.invalid"),
        (
            '{"topic":"a/b/things/twin/commands/modify","path":"/attributes//b","value":1}',
            "json.pointer.invalid",
        ),
        ('{"topic":"' + "a/" * 5000 + '"}', "protocoladapter:unknown.topicpath"),
        ("[" * 100_000, "json.invalid"),
        ('{"topic":' + "[" * 150 + "]" * 150 + "}", "json.invalid"),
        (
            '{"topic":"a/b/things/twin/commands/modify","path":"/attributes/a","value":'
            + '{"a":' * 200
            + "1"
            + "}" * 201,
            "json.invalid",
        ),
        (
            '{"topic":"a/b/things/twin/commands/modify","path":"/attributes'
            + "/a" * 200
            + '","value":1}',
            "json.pointer.invalid",
        ),
        ('{"topic":"a/b/things/twin/commands/modify","headers":{"x":"\\ud800"}}', "json.invalid"),
    ],
)
async def test_bad_frames_are_answered_and_the_session_goes_on(
    gateway: Gateway, frame: str, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        await caller.send(frame)
        await wait_for(lambda: caller.frames)
        problem = caller.frames[0]
        check_error(problem, 400, code)
        assert problem["headers"]["correlation-id"]
        assert len(json.dumps(problem)) < 2 * len(frame) + 1000
        answer = await caller.ask(topic_of(new_id(), "modify"), value={})
        assert answer["status"] == 201
    assert gateway.events("ws.frame_failed") == []


async def test_a_frame_that_is_too_large_ends_its_session_alone(gateway: Gateway) -> None:
    async with Caller.open(gateway) as caller, Caller.open(gateway) as other:
        with suppress(ConnectionClosed):  # the gateway does not read all of it
            await caller.connection.send("x" * (10 * 2**20))
        assert await caller.closed() == 1009
        assert (await other.ask(topic_of(new_id(), "modify"), value={}))["status"] == 201


async def test_fragments_binary_frames_and_pings_between_commands(gateway: Gateway) -> None:
    async with Caller.open(gateway) as caller:
        name = new_id()
        for n in range(5):
            text = json.dumps({
                "topic": topic_of(name, "modify"),
                "headers": {"correlation-id": f"part-{n}"},
                "path": "/",
                "value": {"attributes": {"n": n}},
            })  # fmt: skip
            await caller.connection.send([text[:40], text[40:]])
            await caller.connection.send(b"\xff")
            pong = await caller.connection.ping()
            read = await caller.ask(topic_of(name, "retrieve"), "/attributes/n")
            assert read["value"] == n
            await asyncio.wait_for(pong, 5)
        statuses = [caller.answers(f"part-{n}")[0]["status"] for n in range(5)]
        assert statuses == [201, 204, 204, 204, 204]
