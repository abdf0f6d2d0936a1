"""Live signals between gateway processes: asked on one, answered on another."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    http,
    new_id,
    new_label,
    response_envelope,
    thing,
)


@pytest.fixture(params=["a to b", "b to a", "a to a"])
def here_and_there(
    request: pytest.FixtureRequest, a: Gateway, b: Gateway
) -> tuple[Gateway, Gateway]:
    pairs = {"a to b": (a, b), "b to a": (b, a), "a to a": (a, a)}
    return pairs[str(request.param)]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", "gr\u00fc\u00df dich".encode()),
        ("application/json", b'{"a":[1.5,null]}'),
        ("application/octet-stream", bytes(range(256))),
    ],
)
async def test_a_message_is_answered_by_another_process(
    here_and_there: tuple[Gateway, Gateway], content_type: str, body: bytes
) -> None:
    here, there = here_and_there

    def echo(signal: Json) -> Json:
        headers = {"content-type": signal["headers"]["content-type"]}
        return {"status": 201, "value": signal["value"], "headers": headers}

    name = new_id()
    async with (
        Subscriber.open(there, respond=echo, start="START-SEND-MESSAGES"),
        http(here) as client,
    ):
        await client.put(thing(name), json={})
        answer = await client.post(
            thing(name, "/outbox/messages/echo"),
            content=body,
            headers={"content-type": content_type},
        )
    assert (answer.status_code, answer.content) == (201, body)
    assert answer.headers["content-type"] == content_type


async def test_a_command_and_its_acks_cross_over(a: Gateway, b: Gateway) -> None:
    label, weak, name = new_label(), new_label(), new_id()
    start = "START-SEND-LIVE-COMMANDS"

    def respond(signal: Json) -> Json:
        return {"status": 204}

    async with (
        Subscriber.open(b, label, ack=lambda *_: {"status": 200}, start=start),
        Subscriber.open(b, weak, user="user2", start=start),
        Subscriber.open(a, respond=respond, start=start),
        http(a) as client,
    ):
        await client.put(thing(name), json={})
        params = {"channel": "live", "requested-acks": f"{label},{weak}"}
        answer = await client.put(thing(name, "/attributes/on"), json=True, params=params)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    statuses = {which: entry["status"] for which, entry in found.items()}
    assert statuses == {label: 200, weak: 200, "live-response": 204}
    assert found[weak]["headers"]["ditto-weak-ack"] is True


async def test_devices_on_both_processes_get_it_and_the_first_answer_counts(
    a: Gateway, b: Gateway
) -> None:
    name, start = new_id(), "START-SEND-MESSAGES"
    async with (
        Subscriber.open(a, start=start) as one,
        Subscriber.open(b, start=start) as two,
        http(a) as client,
    ):
        await client.put(thing(name), json={})
        asked = asyncio.create_task(client.post(thing(name, "/inbox/messages/ask")))
        signal = await one.event()
        assert await two.event() == signal
        await two.send(response_envelope(signal, status=200, value="two"))
        answer = await asked
        await one.send(response_envelope(signal, status=200, value="one"))
        await one.nothing_came()
    assert answer.json() == "two"


async def test_an_invalid_response_is_told_across_processes(a: Gateway, b: Gateway) -> None:
    name = new_id()

    def wrong(signal: Json) -> Json:
        return {"status": 200, "path": "/features/other/inbox/messages/ask"}

    async with (
        Subscriber.open(b, respond=wrong, start="START-SEND-MESSAGES"),
        http(a) as client,
    ):
        await client.put(thing(name), json={})
        answer = await client.post(thing(name, "/inbox/messages/ask"), params={"timeout": "700ms"})
    assert answer.status_code == 408
    assert "Resource path of live response" in answer.json()["description"]


async def test_live_signals_and_events_of_a_thing_keep_their_order(a: Gateway, b: Gateway) -> None:
    name, count = new_id(), 60
    async with Subscriber.open(b) as subscriber, http(a) as client:
        await subscriber.command("START-SEND-MESSAGES")
        await client.put(thing(name), json={})
        for number in range(count):
            if number % 2:
                await client.put(thing(name, "/attributes/n"), json=number)
            else:
                await client.post(
                    thing(name, "/inbox/messages/n"),
                    json=number,
                    params={"response-required": "false"},
                )
        await subscriber.event(count=count + 1)
    assert [event["value"] for event in subscriber.events[1:]] == list(range(count))
