"""The WebSocket wire: upgrade, commands, events, acks and their errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    ack_all,
    ack_envelope,
    basic,
    check_error,
    new_id,
    new_label,
    thing,
    ws_connect,
)
from tests.servers import wait_for

# --- upgrade


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/ws/2", None, 401, "gateway:authentication.failed"),
        ("/ws/2", basic("ditto", "wrong"), 401, "gateway:authentication.failed"),
        ("/ws/2", "Basic !", 401, "gateway:authentication.failed"),
        ("/ws/1", basic("ditto"), 404, "api.version.notsupported"),
        ("/ws/3", basic("ditto"), 404, "api.version.notsupported"),
        ("/ws/2?declared-acks=a", basic("ditto"), 400, "acknowledgement:label.invalid"),
        ("/ws/2?declared-acks=abc,d%20e%20f", basic("ditto"), 400, "acknowledgement:label.invalid"),
        ("/ws/2?declared-acks=[1]", basic("ditto"), 400, "header.invalid"),
        ("/ws/2?timeout=1&timeout=2", basic("ditto"), 400, "gateway:duplicate.header.field"),
        ("/ws/2?x=" + "y" * 6000, basic("ditto"), 431, "headers.too.large"),
    ],
)
async def test_refused_upgrades(
    gateway: Gateway, path: str, headers: str | None, status: int, code: str
) -> None:
    given = {"Authorization": headers} if headers else {}
    with pytest.raises(InvalidStatus) as refused:
        async with ws_connect(gateway, path, user=None, headers=given):
            pass
    response = refused.value.response
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.headers["correlation-id"]
    assert ("www-authenticate" in response.headers) == (status == 401)
    body = json.loads(response.body)
    assert (body["status"], body["error"]) == (status, code)


async def test_a_plain_request_on_the_websocket_path_is_an_error_of_the_catalogue(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/ws/2")
    assert 400 <= answer.status_code < 500
    assert answer.json()["status"] == answer.status_code
    for path in ("/ws/1", "/ws/3/x"):
        check_error(await client.get(path), 404, "api.version.notsupported")
    check_error(await client.get("/ws/"), 404, "gateway:resource.notfound")


@pytest.mark.parametrize("form", ["csv", "json", "header"])
async def test_declared_acks_come_in_three_forms(
    gateway: Gateway, client: httpx.AsyncClient, form: str
) -> None:
    one, two = new_label(), new_label()
    csv, array = f"{one}, {two},,", json.dumps([one, two])
    query = {"csv": f"?declared-acks={csv}", "json": f"?declared-acks={array}", "header": ""}[form]
    headers: Mapping[str, str] = {"declared-acks": csv} if form == "header" else {}
    path = "/ws/2" + query.replace(" ", "%20").replace('"', "%22")
    async with ws_connect(gateway, path, headers=headers) as connection:
        subscriber = Subscriber(connection, ack_all)
        await subscriber.command("START-SEND-EVENTS")
        answer = await client.put(
            thing(new_id()), json={}, params={"requested-acks": f"{two},{one}"}
        )
    assert answer.status_code == 200
    assert list(answer.json()) == [two, one]


async def test_a_label_with_a_placeholder_is_reported_and_the_session_stays(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    async with Subscriber.open(gateway, "{{connection:id}}:abc") as subscriber:
        assert (await subscriber.error())["value"]["error"] == "acknowledgement:label.invalid"
        await client.put(thing(new_id()), json={})
        await subscriber.event()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same process", "another process"])
async def test_a_second_declaration_is_refused_and_closed(
    gateway: Gateway, sibling: Gateway, elsewhere: bool
) -> None:
    label, other = new_label(), new_label()
    async with Subscriber.open(gateway, label) as first:
        where = sibling if elsewhere else gateway
        async with Subscriber.open(where, other, label, start=None) as second:
            assert await second.closed() == (1000, second.connection.close_reason)
            (problem,) = second.errors
            assert problem["topic"] == "unknown/unknown/things/twin/errors"
            assert (problem["status"], problem["path"]) == (409, "/")
            assert problem["value"] == {
                "status": 409,
                "error": "acknowledgement:label.not.unique",
                "message": "One or more declared acknowledgement labels are taken by other "
                "subscribers.",
                "description": "Please ensure all other subscribers with the declared "
                "acknowledgement labels are offline.",
            }
        # All or nothing: the label that was free is still free.
        async with Subscriber.open(where, other):
            await first.nothing_came()


async def test_a_label_is_free_at_once_after_the_end_of_its_session(
    gateway: Gateway, sibling: Gateway
) -> None:
    label = new_label()
    for where in (gateway, sibling, gateway):
        async with Subscriber.open(where, label) as subscriber:
            assert subscriber.errors == []
            await subscriber.connection.close()
            await wait_for_free(gateway, label)
    async with Subscriber.open(gateway, label) as subscriber:
        subscriber.connection.transport.abort()
        await wait_for_free(sibling, label)


async def wait_for_free(gateway: Gateway, label: str) -> None:
    """Declare the label again and again until it is accepted; well before a lease runs out."""
    async with asyncio.timeout(2):
        while True:
            async with ws_connect(gateway, f"/ws/2?declared-acks={label}") as connection:
                await connection.send("START-SEND-EVENTS")
                if await connection.recv() == "START-SEND-EVENTS:ACK":
                    return


# --- commands and events


async def test_events_have_the_documented_envelope(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    local = name.partition(":")[2]
    async with Subscriber.open(gateway) as subscriber:
        await client.put(thing(name), json={}, headers={"correlation-id": "c1", "x-a": "b"})
        created = await subscriber.event()
        await client.put(thing(name, "/attributes/a~1b"), json=0)
        assert (await subscriber.event(1, 2))["topic"].endswith("/created")
        await client.put(thing(name, "/attributes/a~1b"), json=[1])
        modified = await subscriber.event(2, 3)
    moment = created.pop("timestamp")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", moment)
    headers = created.pop("headers")
    assert {k: headers[k] for k in headers if k not in ("accept", "host")} == {
        "correlation-id": "c1",
        "response-required": False,
        "entity-revision": 1,
        "ditto-originator": "nginx:ditto",
        "content-type": "application/json",
        "x-a": "b",
    }
    assert created == {
        "topic": f"org.example/{local}/things/twin/events/created",
        "path": "/",
        "value": {"thingId": name, "policyId": name},
        "revision": 1,
    }
    assert list(modified) == ["topic", "headers", "path", "value", "revision", "timestamp"]
    assert modified["topic"] == f"org.example/{local}/things/twin/events/modified"
    assert (modified["path"], modified["value"]) == ("/attributes/a~1b", [1])
    assert modified["revision"] == modified["headers"]["entity-revision"] == 3


async def test_null_is_a_value(gateway: Gateway, client: httpx.AsyncClient) -> None:
    async with Subscriber.open(gateway) as subscriber:
        name = new_id()
        await client.put(thing(name), json={})
        await client.put(thing(name, "/attributes/a"), content=b"null")
        event = await subscriber.event(1, 2)
    assert (event["path"], event["value"]) == ("/attributes/a", None)


async def test_requested_acks_are_cut_to_the_sessions_own(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    mine, theirs = new_label(), new_label()
    async with (
        Subscriber.open(gateway, mine, ack=ack_all) as owner,
        Subscriber.open(gateway, theirs, ack=ack_all),
        Subscriber.open(gateway) as watcher,
    ):
        await client.put(
            thing(new_id()),
            json={},
            params={"requested-acks": f"twin-persisted,{theirs},{mine},search-persisted"},
            headers={"timeout": "100ms"},
        )
        assert (await owner.event())["headers"]["requested-acks"] == [mine]
        assert (await watcher.event())["headers"]["requested-acks"] == []
        await client.put(thing(new_id()), json={}, params={"requested-acks": "twin-persisted"})
        assert "requested-acks" not in (await owner.event(1, 2))["headers"]
        assert "requested-acks" not in (await watcher.event(1, 2))["headers"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, None),
        ({"requested-acks": "twin-persisted"}, None),
        ({"requested-acks": "[]"}, []),
        ({"response-required": "false"}, []),
        ({"requested-acks": "[]", "x-mine": "1"}, []),
    ],
)
async def test_that_no_acks_are_wanted_is_shown(
    gateway: Gateway, client: httpx.AsyncClient, given: dict[str, str], shown: list[str] | None
) -> None:
    async with Subscriber.open(gateway) as events:
        assert (await client.put(thing(new_id()), json={}, headers=given)).is_success
        assert (await events.event())["headers"].get("requested-acks") == shown


async def test_start_and_stop(gateway: Gateway, client: httpx.AsyncClient) -> None:
    async with Subscriber.open(gateway, start=None) as subscriber:
        await client.put(thing(new_id()), json={})
        await subscriber.command("STOP-SEND-EVENTS")
        for count in (1, 2):
            await subscriber.command("START-SEND-EVENTS")
            await client.put(thing(new_id()), json={})
            await subscriber.event(count=count)
            await subscriber.command("STOP-SEND-EVENTS")
            await client.put(thing(new_id()), json={})
        await subscriber.nothing_came()
        assert len(subscriber.events) == 2


async def test_namespaces(gateway: Gateway, client: httpx.AsyncClient) -> None:
    start = "START-SEND-EVENTS?namespaces=org.one,%20org.two&unknown=1"
    async with Subscriber.open(gateway, start=start) as subscriber:
        for namespace in ("org.one", "org.three", "org.one.sub", "org.two"):
            await client.put(thing(new_id(namespace)), json={})
        await subscriber.event(count=2)
        await subscriber.command("START-SEND-EVENTS?namespaces=org.three")  # replaces the first
        for namespace in ("org.one", "org.three"):
            await client.put(thing(new_id(namespace)), json={})
        await subscriber.event(count=3)
    seen = [event["topic"].partition("/")[0] for event in subscriber.events]
    assert seen == ["org.one", "org.two", "org.three"]


async def test_events_come_only_to_those_who_may_read_something_of_the_change(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    full = {"grant": ["READ", "WRITE"], "revoke": []}
    everything = {"thing:/": full, "policy:/": full}
    policy = {
        "entries": {
            "owner": {"subjects": {"nginx:ditto": {"type": "t"}}, "resources": everything},
            "part": {
                "subjects": {"nginx:user2": {"type": "t"}},
                "resources": {"thing:/attributes/open": {"grant": ["READ"], "revoke": []}},
            },
        }
    }
    name = new_id()
    async with Subscriber.open(gateway, user="user2") as subscriber:
        await client.put(thing(name), json={"_policy": policy})
        await client.put(thing(name, "/attributes/closed"), json=1)
        await client.put(thing(name, "/attributes/open"), json=2)
        await client.put(thing(name, "/attributes/open/deeper"), json=3)
        await subscriber.event(count=3)
        await subscriber.nothing_came()
    assert [(event["path"], event["value"]) for event in subscriber.events] == [
        ("/", {"thingId": name}),
        ("/attributes/open", 2),
        ("/attributes/open/deeper", 3),
    ]


async def test_events_of_a_thing_come_in_their_order(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    names = [new_id() for _ in range(4)]
    async with Subscriber.open(gateway) as subscriber:

        async def write(name: str) -> None:
            await client.put(thing(name), json={})
            changes = (client.put(thing(name, "/attributes/n"), json=n) for n in range(50))
            await asyncio.gather(*changes)

        await asyncio.gather(*(write(name) for name in names))
        await subscriber.event(count=4 * 51)
    for name in names:
        topic = name.replace(":", "/")
        revisions = [e["revision"] for e in subscriber.events if e["topic"].startswith(topic)]
        assert revisions == list(range(1, 52))


# --- acks

WRONG: list[tuple[Any, str, str]] = [
    ("", "json.format.invalid", ""),
    ("{", "json.invalid", ""),
    ("[]", "json.format.invalid", ""),
    ("1", "json.format.invalid", ""),
    ({"no": "topic"}, "json.field.missing", "/topic"),
    ({"topic": 1}, "json.format.invalid", ""),
    (
        {"topic": "a/b/things/twin/acks/LABEL", "headers": 1, "status": 200},
        "json.format.invalid",
        "",
    ),
    *(
        (
            {
                "topic": "a/b/things/twin/acks/LABEL",
                "headers": {"correlation-id": "mine", **headers},
                "status": 200,
            },
            code,
            text,
        )
        for headers, code, text in (
            ({"response-required": "5"}, "header.invalid", "is not a valid boolean."),
            ({"timeout": "1a"}, "timeout.invalid", '"1a"'),
            ({"requested-acks": "a,b"}, "header.invalid", "is not a valid JSON array."),
        )
    ),
    ({"topic": "a"}, "protocoladapter:unknown.topicpath", "no entity name part"),
    ({"topic": "a/b/devices/twin/acks/LABEL"}, "protocoladapter:unknown.topicpath", "<devices>"),
    ({"topic": "a/b/things/dead/acks/LABEL"}, "protocoladapter:unknown.topicpath", "<dead>"),
    ({"topic": "a/b/things/twin/acks/x/y/z"}, "protocoladapter:unknown.topicpath", "'status'"),
    ({"topic": "a/b/things/twin/acks/LABEL"}, "protocoladapter:unknown.topicpath", "'status'"),
    (
        {"topic": "a/b/things/twin/acks", "status": 200},
        "protocoladapter:unknown.topicpath",
        "label",
    ),
    *(
        (
            {"topic": "a/b/things/twin/acks/LABEL", "status": status},
            "protocoladapter:unknown.topicpath",
            "'status'",
        )
        for status in (99, 600, "200", 200.0, True, None)
    ),
    ({"topic": "a/b/things/twin/acks/x", "status": 200}, "acknowledgement:label.invalid", "<x>"),
    (
        {"topic": "a/b/things/twin/acks/a/b", "status": 200},
        "acknowledgement:label.invalid",
        "<a/b>",
    ),
    (
        {"topic": "a/b/things/twin/acks/other", "status": 200},
        "acknowledgement:label.not.declared",
        "<other>",
    ),
    *(
        (
            {"topic": f"a/b/things/twin/acks/{label}", "status": 200},
            "acknowledgement:ditto.acklabel.forbidden",
            f"<{label}>",
        )
        for label in ("twin-persisted", "live-response", "search-persisted")
    ),
]


@pytest.mark.parametrize(("frame", "code", "text"), WRONG)
async def test_wrong_frames_get_an_error_envelope_and_the_session_goes_on(
    gateway: Gateway, client: httpx.AsyncClient, frame: Any, code: str, text: str
) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, "twin-persisted-2", ack=ack_all) as subscriber:
        if isinstance(frame, dict):
            frame = {"headers": {"Correlation-ID": "mine"}, **frame}
            frame = json.dumps(frame).replace("LABEL", label)
        await subscriber.send(frame)
        problem = await subscriber.error()
        value = problem["value"]
        assert (value["error"], value["status"], problem["status"]) == (code, 400, 400)
        assert text in value["message"] + value.get("description", "")
        assert problem["topic"] == "unknown/unknown/things/twin/errors"
        assert problem["headers"]["content-type"] == "application/json"
        assert problem["headers"]["response-required"] is False
        assert problem["headers"]["correlation-id"]
        if isinstance(frame, str) and '"mine"' in frame:
            assert problem["headers"]["correlation-id"] == "mine"
        answer = await client.put(thing(new_id()), json={}, params={"requested-acks": label})
        assert answer.status_code == 200


async def test_a_declared_built_in_label_may_still_not_be_acknowledged(gateway: Gateway) -> None:
    async with Subscriber.open(gateway, "search-persisted") as subscriber:
        frame = {"topic": "a/b/things/twin/acks/search-persisted", "status": 200}
        await subscriber.send(frame)
        code = (await subscriber.error())["value"]["error"]
        assert code == "acknowledgement:ditto.acklabel.forbidden"


async def test_a_weak_ack_of_a_built_in_label_is_ignored(gateway: Gateway) -> None:
    async with Subscriber.open(gateway, new_label()) as subscriber:
        for weak in (True, "TRUE", "false"):
            frame = {
                "topic": "a/b/things/twin/acks/twin-persisted",
                "headers": {"correlation-id": f"weak-{weak}", "ditto-weak-ack": weak},
                "status": 200,
            }
            await subscriber.send(frame)
        problem = await subscriber.error()
        assert problem["value"]["error"] == "acknowledgement:ditto.acklabel.forbidden"
        assert problem["headers"]["correlation-id"] == "weak-false"
        assert len(subscriber.errors) == 1


async def test_binary_frames_are_ignored(gateway: Gateway, client: httpx.AsyncClient) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, ack=ack_all) as subscriber:
        for data in (b"", b"START-SEND-EVENTS", b"{", b"\xff" * 1000):
            await subscriber.connection.send(data)
        await subscriber.nothing_came()
        answer = await client.put(thing(new_id()), json={}, params={"requested-acks": label})
        assert answer.status_code == 200


async def test_stray_acks_are_ignored_in_silence(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    label, other = new_label(), new_label()
    async with (
        Subscriber.open(gateway, label, other) as subscriber,
        Subscriber.open(gateway, (third := new_label())) as stranger,
    ):
        request = asyncio.create_task(
            client.put(thing(new_id()), json={}, params={"requested-acks": label, "timeout": "5s"})
        )
        event = await subscriber.event()
        unknown = json.loads(json.dumps(event))
        unknown["headers"]["correlation-id"] = "never seen"
        strays: list[Json] = [
            ack_envelope(unknown, label, status=500),
            ack_envelope(event, other, status=500),  # declared, but nobody asked for it
            {**ack_envelope(event, label, status=500), "headers": {}},
            {**ack_envelope(event, label, status=500), "headers": {"correlation-id": 5}},
        ]
        for stray in strays:
            await subscriber.send(stray)
        await stranger.event()
        await stranger.send(ack_envelope(event, third, status=500))
        await stranger.nothing_came()
        await subscriber.nothing_came()
        assert not request.done()
        # The thing's id is not checked: label and correlation-id name the request.
        good = ack_envelope(event, label, status=201)
        await subscriber.send({**good, "topic": f"any/thing/things/twin/acks/{label}"})
        assert (await request).status_code == 201


async def test_large_and_fragmented_frames(gateway: Gateway, client: httpx.AsyncClient) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label) as subscriber:
        for size in (10, 125, 126, 60_000, 70_000, 500_000):
            request = asyncio.create_task(
                client.put(thing(new_id()), json={}, params={"requested-acks": label})
            )
            count = len(subscriber.events) + 1
            event = await subscriber.event(count - 1, count)
            ack = ack_envelope(event, label, status=200, value="ü" * (size // 2))
            text = json.dumps(ack, ensure_ascii=False)
            middle = len(text) // 2
            await subscriber.connection.send([text[:middle], "", text[middle:]])
            assert (await request).json() == "ü" * (size // 2)


async def test_a_frame_that_is_too_large_closes_the_session(gateway: Gateway) -> None:
    async with Subscriber.open(gateway, new_label()) as subscriber:
        await subscriber.connection.send("x" * ((1 << 20) + 1))
        code, _ = await subscriber.closed()
        assert code == 1009


async def test_large_events_arrive_whole(gateway: Gateway, client: httpx.AsyncClient) -> None:
    async with Subscriber.open(gateway) as subscriber:
        for size in (0, 100, 60_000, 70_000, 100_000):
            await client.put(thing(new_id()), json={"attributes": {"a": "x" * size}})
            await wait_for(lambda: subscriber.events)
            assert len(subscriber.events.pop()["value"]["attributes"]["a"]) == size


async def test_ping_is_answered(gateway: Gateway) -> None:
    async with Subscriber.open(gateway) as subscriber:
        await asyncio.wait_for(await subscriber.connection.ping(), 5)
