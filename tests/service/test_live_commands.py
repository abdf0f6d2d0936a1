"""Live commands and smart queries: HTTP requests answered by devices over WebSocket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    check_error,
    new_id,
    new_label,
    response_envelope,
    thing,
)

START = "START-SEND-LIVE-COMMANDS"
LIVE = {"channel": "live"}


@pytest.fixture
async def name(client: httpx.AsyncClient) -> str:
    """A thing of the user ditto, with two attributes."""
    thing_id = new_id()
    body = {"attributes": {"on": False, "secret": 1}}
    assert (await client.put(thing(thing_id), json=body)).status_code == 201
    return thing_id


def device(status: int, value: Any = None) -> Any:
    return lambda _: {"status": status} if value is None else {"status": status, "value": value}


# --- commands


@pytest.mark.parametrize(
    ("method", "path", "body", "action", "content_type"),
    [
        ("PUT", "", {"attributes": {}}, "modify", "application/json"),
        ("PUT", "/attributes/on", True, "modify", "application/json"),
        ("PUT", "/definition", None, "modify", "application/json"),
        ("PATCH", "/attributes", {"on": None}, "merge", "application/merge-patch+json"),
        ("DELETE", "/features/lamp/properties/a", ..., "delete", None),
        ("GET", "/attributes/on", ..., "retrieve", None),
        ("GET", "", ..., "retrieve", None),
    ],
)
async def test_commands_reach_the_device(
    gateway: Gateway,
    client: httpx.AsyncClient,
    name: str,
    method: str,
    path: str,
    body: Any,
    action: str,
    content_type: str | None,
) -> None:
    more: Json = {} if body is ... else {"content": json.dumps(body)}
    headers = {"x-y": "z"} if content_type is None else {"x-y": "z", "content-type": content_type}
    params = {"channel": "Live ", "timeout": "10s"}
    async with Subscriber.open(gateway, respond=device(200, {"a": 1}), start=START) as subscriber:
        answer = await client.request(
            method, thing(name, path), params=params, headers=headers, **more
        )
        signal = await subscriber.event()
    assert (answer.status_code, answer.json()) == (200, {"a": 1})
    assert answer.headers["channel"] == "live"
    assert answer.headers["response-required"] == "false"
    namespace, _, local = name.partition(":")
    assert signal["topic"] == f"{namespace}/{local}/things/live/commands/{action}"
    assert signal["path"] == (path or "/")
    shown = signal["headers"]
    assert (shown["channel"], shown["timeout"], shown["x-y"]) == ("live", "10s", "z")
    assert shown["response-required"] is True
    assert shown.get("content-type") == content_type
    assert ("value" in signal) == (body is not ...)
    if body is not ... and path:
        assert signal["value"] == body


async def test_the_twin_stays_as_it_is(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    async with (
        Subscriber.open(gateway, respond=device(204), start=START),
        Subscriber.open(gateway) as events,
    ):
        answer = await client.put(thing(name, "/attributes/on"), json=True, params=LIVE)
        assert (answer.status_code, answer.content) == (204, b"")
        await events.nothing_came()
    assert (await client.get(thing(name, "/attributes/on"))).json() is False


async def test_a_selection_of_fields_is_the_devices_business(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    async with Subscriber.open(gateway, respond=device(200, {}), start=START) as subscriber:
        params = {**LIVE, "fields": "thingId,attributes(on)"}
        assert (await client.get(thing(name), params=params)).status_code == 200
        assert (await subscriber.event())["fields"] == "thingId,attributes(on)"


async def test_nobody_answers(client: httpx.AsyncClient, name: str) -> None:
    params = {**LIVE, "timeout": "200ms"}
    answer = await client.put(thing(name, "/attributes/on"), json=True, params=params)
    check_error(answer, 408, "command.timeout")
    assert answer.headers["channel"] == "live"


async def test_a_query_wants_an_answer_even_without_acks(
    client: httpx.AsyncClient, name: str
) -> None:
    for more in (LIVE, {"live-channel-condition": "exists(attributes/on)"}):
        params = {**more, "requested-acks": "", "timeout": "100ms"}
        check_error(await client.get(thing(name), params=params), 408, "command.timeout")


async def test_responses_of_another_kind_do_not_count(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    async with Subscriber.open(gateway, start=START) as subscriber:
        params = {**LIVE, "timeout": "400ms"}
        address = thing(name, "/attributes/on")
        asked = asyncio.create_task(client.put(address, json=True, params=params))
        signal = await subscriber.event()
        other = {**signal, "topic": signal["topic"].replace("modify", "retrieve")}
        await subscriber.send(response_envelope(other, status=200, value=True))
        answer = await asked
    description = check_error(answer, 408, "command.timeout")["description"]
    assert "An invalid response was received, though: Type of live response" in description


@pytest.mark.parametrize(
    ("query", "status", "shown"),
    [
        ({"response-required": "false"}, 202, None),
        ({"response-required": "false", "requested-acks": "live-response"}, 202, None),
        ({"requested-acks": "twin-persisted"}, 204, None),
        ({"requested-acks": "[]", "response-required": "true"}, 204, None),
    ],
)
async def test_the_three_headers(
    gateway: Gateway,
    client: httpx.AsyncClient,
    name: str,
    query: dict[str, str],
    status: int,
    shown: Any,
) -> None:
    async with Subscriber.open(gateway, respond=device(204), start=START) as subscriber:
        answer = await client.delete(thing(name, "/attributes/on"), params={**LIVE, **query})
        signal = await subscriber.event()
    assert (answer.status_code, answer.content) == (status, b"")
    assert signal["headers"].get("requested-acks") == shown


async def test_acks_of_a_live_command(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    label = new_label()
    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200}, respond=device(204), start=START
    ):
        params = {**LIVE, "requested-acks": f"{label},twin-persisted,live-response"}
        answer = await client.put(thing(name, "/attributes/on"), json=1, params=params)
    assert answer.status_code == 200
    assert {which: entry["status"] for which, entry in answer.json().items()} == {
        label: 200,
        "live-response": 204,
    }


async def test_things_are_not_made_over_the_live_channel(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/2/things", json={}, params=LIVE)
    body = check_error(answer, 405, "things:thing.notcreatable")
    assert body["message"] == "Thing could not be created via channel <live>."
    missing = await client.put(thing(new_id()), json={}, params=LIVE)
    check_error(missing, 404, "things:thing.notfound")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_headers_that_are_refused(client: httpx.AsyncClient, name: str, method: str) -> None:
    address = thing(name, "/attributes/on")
    headers = {"content-type": "application/merge-patch+json" if method == "PATCH" else
               "application/json"}  # fmt: skip
    for extra in ({"channel": "alive"}, {"live-channel-condition": "eq(attributes/on,true)"}):
        answer = await client.request(
            method, address, params=extra, headers=headers, content=b"true"
        )
        if "channel" in extra:
            check_error(answer, 400, "header.invalid")
        else:
            check_error(answer, 405, "things:live.channelcondition.notallowed")


async def test_conditions_look_at_the_twin(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    async with Subscriber.open(gateway, respond=device(204), start=START) as subscriber:
        for value, status in (("true", 412), ("false", 204)):
            params = {**LIVE, "condition": f"eq(attributes/on,{value})"}
            answer = await client.delete(thing(name, "/attributes/on"), params=params)
            assert answer.status_code == status, answer.text
        assert len(subscriber.events) == 1


async def test_what_is_too_large(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.put(thing(name, "/attributes/on"), json="x" * 102_400, params=LIVE)
    check_error(answer, 413, "things:thing.toolarge")


# --- permissions


@pytest.fixture
async def shared(client: httpx.AsyncClient) -> str:
    """A thing of which user2 may read one attribute and write another one."""
    rules = {
        "ditto": {"thing:/": ["READ", "WRITE"], "policy:/": ["READ", "WRITE"]},
        "user2": {"thing:/attributes/on": ["READ"], "thing:/attributes/level": ["WRITE"]},
    }
    entries = {
        user: {
            "subjects": {f"nginx:{user}": {"type": "t"}},
            "resources": {path: {"grant": grant, "revoke": []} for path, grant in paths.items()},
        }
        for user, paths in rules.items()
    }
    thing_id = new_id()
    body = {"_policy": {"entries": entries}, "attributes": {"on": False, "secret": 1}}
    assert (await client.put(thing(thing_id), json=body)).status_code == 201
    return thing_id


async def test_who_may_command_and_who_gets_commands(
    gateway: Gateway, client: httpx.AsyncClient, user2: httpx.AsyncClient, shared: str
) -> None:
    now = {**LIVE, "response-required": "false"}
    async with (
        Subscriber.open(gateway, start=START) as ditto,
        Subscriber.open(gateway, user="user2", start=START) as two,
    ):
        level = thing(shared, "/attributes/level")
        assert (await user2.put(level, json=1, params=now)).status_code == 202
        assert (await ditto.event())["value"] == 1
        on = thing(shared, "/attributes/on")
        refused = await user2.put(on, json=1, params=now)
        check_error(refused, 403, "things:attribute.notmodifiable")
        check_error(await user2.delete(on, params=now), 403, "things:attribute.notmodifiable")
        whole = await user2.delete(thing(shared), params=now)
        check_error(whole, 403, "things:thing.notdeletable")
        hidden = await user2.get(thing(shared, "/attributes/secret"), params=LIVE)
        check_error(hidden, 404, "things:attribute.notfound")
        await two.nothing_came()
        assert (await client.put(on, json=True, params=now)).status_code == 202
        assert (await two.event())["path"] == "/attributes/on"


async def test_a_live_answer_is_cut_to_what_may_be_read(
    gateway: Gateway, user2: httpx.AsyncClient, shared: str
) -> None:
    label = new_label()
    whole = {"on": True, "secret": 2}
    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200}, respond=device(200, whole), start=START
    ):
        attributes = thing(shared, "/attributes")
        alone = await user2.get(attributes, params=LIVE)
        both = await user2.get(attributes, params={**LIVE, "requested-acks": label})
    assert alone.json() == {"on": True}
    assert both.json()["live-response"]["payload"] == {"on": True}


# --- smart queries


async def test_a_condition_decides_about_the_channel(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    address = thing(name, "/attributes/on")
    async with Subscriber.open(gateway, respond=device(200, "live"), start=START) as subscriber:
        unmatched = {"live-channel-condition": "eq(attributes/on,true)"}
        answer = await client.get(address, params=unmatched)
        assert (answer.status_code, answer.json()) == (200, False)
        assert answer.headers["channel"] == "twin"
        assert answer.headers["live-channel-condition-matched"] == "false"
        assert answer.headers["etag"]
        await subscriber.nothing_came()
        matched = {"live-channel-condition": "eq(attributes/on,false)"}
        answer = await client.get(address, params=matched)
        assert (answer.status_code, answer.json()) == (200, "live")
        assert answer.headers["channel"] == "live"
        assert answer.headers["live-channel-condition-matched"] == "true"
        bad = await client.get(address, params={"live-channel-condition": "eq("})
        check_error(bad, 400, "rql.expression.invalid")


@pytest.mark.parametrize("strategy", [None, "fail", "use-twin"])
async def test_strategies_when_no_device_answers(
    client: httpx.AsyncClient, name: str, strategy: str | None
) -> None:
    params = {"live-channel-condition": "exists(attributes/on)", "timeout": "200ms"}
    if strategy is not None:
        params["live-channel-timeout-strategy"] = strategy
    answer = await client.get(thing(name, "/attributes/on"), params=params)
    assert answer.headers["live-channel-condition-matched"] == "true"
    if strategy == "use-twin":
        assert (answer.status_code, answer.json()) == (200, False)
        assert answer.headers["channel"] == "twin"
    else:
        check_error(answer, 408, "command.timeout")
        assert answer.headers["channel"] == "live"


async def test_the_live_channel_with_the_twin_as_a_fallback(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    address = thing(name, "/attributes/on")
    params = {**LIVE, "live-channel-timeout-strategy": "use-twin", "timeout": "300ms"}
    answer = await client.get(address, params=params)
    assert (answer.json(), answer.headers["channel"]) == (False, "twin")
    async with Subscriber.open(gateway, respond=device(200, "live"), start=START):
        answer = await client.get(address, params=params)
    assert (answer.json(), answer.headers["channel"]) == ("live", "live")


async def test_smart_queries_on_what_is_not_there(client: httpx.AsyncClient) -> None:
    params = {"live-channel-condition": "exists(attributes/on)"}
    answer = await client.get(thing(new_id()), params=params)
    check_error(answer, 404, "things:thing.notfound")


async def test_unknown_strategies(client: httpx.AsyncClient, name: str) -> None:
    params = {"live-channel-timeout-strategy": "what"}
    check_error(await client.get(thing(name), params=params), 400, "header.invalid")
