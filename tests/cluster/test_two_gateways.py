"""Requests on one gateway process, subscribers on another, writers on both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster.journal import assert_gap_free, revisions, twin
from tests.gateways import (
    Gateway,
    Subscriber,
    ack_envelope,
    http,
    new_id,
    new_label,
    thing,
)
from tests.servers import RedisServer, wait_for


@pytest.fixture(params=["a to b", "b to a"])
def here_and_there(
    request: pytest.FixtureRequest, a: Gateway, b: Gateway
) -> tuple[Gateway, Gateway]:
    return (a, b) if request.param == "a to b" else (b, a)


async def test_a_request_here_is_acknowledged_there(
    here_and_there: tuple[Gateway, Gateway],
) -> None:
    here, there = here_and_there
    label, silent = new_label(), new_label()

    def ack(event: dict[str, Any], name: str) -> dict[str, Any] | None:
        headers = {"x-from": "there"}
        return None if name == silent else {"status": 202, "value": [1], "headers": headers}

    async with Subscriber.open(there, label, silent, ack=ack), http(here) as client:
        alone = await client.put(thing(new_id()), json={}, params={"requested-acks": label})
        both = await client.put(
            thing(new_id()),
            json={},
            params={"requested-acks": f"twin-persisted,{label},{silent}", "timeout": "300ms"},
        )
    assert (alone.status_code, alone.json()) == (202, [1])
    assert both.status_code == 424
    statuses = {name: entry["status"] for name, entry in both.json().items()}
    assert statuses == {"twin-persisted": 201, label: 202, silent: 408}
    assert both.json()[label] == {
        "status": 202,
        "payload": [1],
        "headers": {
            "correlation-id": both.headers["correlation-id"],
            "x-from": "there",
            "response-required": False,
        },
    }


async def test_weak_and_negative_acks_cross_over_too(a: Gateway, b: Gateway) -> None:
    weak, negative = new_label(), new_label()
    async with (
        Subscriber.open(b, weak, user="user2"),
        Subscriber.open(b, negative, ack=lambda *_: {"status": 500, "value": "no"}),
        http(a) as client,
    ):
        answer = await client.put(
            thing(new_id()), json={}, params={"requested-acks": f"{weak},{negative}"}
        )
    assert answer.status_code == 424
    assert answer.json()[weak]["headers"]["ditto-weak-ack"] is True
    assert (answer.json()[negative]["status"], answer.json()[negative]["payload"]) == (500, "no")


async def test_two_hundred_requests_at_once_each_get_their_own_answer(
    a: Gateway, b: Gateway
) -> None:
    label = new_label()

    def ack(event: dict[str, Any], _: str) -> dict[str, Any]:
        return {"status": 200, "value": {"echo": event["value"]}}

    async with Subscriber.open(b, label, ack=ack), http(a) as on_a, http(b) as on_b:
        name = new_id()
        await on_a.put(thing(name), json={})

        async def one(number: int) -> None:
            client = on_a if number % 2 else on_b
            answer = await client.put(
                thing(name, f"/attributes/n{number}"),
                json=number,
                params={"requested-acks": f"twin-persisted,{label}"},
            )
            assert answer.status_code == 200
            assert answer.json()[label]["payload"] == {"echo": number}
            assert answer.json()["twin-persisted"]["payload"] == number

        await asyncio.gather(*(one(number) for number in range(200)))


async def test_a_correlation_id_that_is_open_twice_is_delivered_with_a_suffix(
    a: Gateway, b: Gateway
) -> None:
    label, name = new_label(), new_id()
    headers = {"correlation-id": name, "requested-acks": label}
    async with Subscriber.open(b, label) as subscriber, http(a) as on_a, http(b) as on_b:
        first = asyncio.create_task(on_a.put(thing(name), json={}, headers=headers))
        await subscriber.event(count=1)
        second = asyncio.create_task(on_b.put(thing(name), json={}, headers=headers))
        await subscriber.event(count=2)
        one, two = subscriber.events
        assert one["headers"]["correlation-id"] == name
        assert two["headers"]["correlation-id"] == f"{name}#0"
        await subscriber.send(ack_envelope(two, label, status=200, value="second"))
        answer = await second
        assert (answer.json(), answer.headers["correlation-id"]) == ("second", name)
        assert not first.done()
        await subscriber.send(ack_envelope(one, label, status=200, value="first"))
        assert (await first).json() == "first"


async def test_writers_on_both_gateways_lose_nothing(
    a: Gateway, b: Gateway, store: RedisServer
) -> None:
    name, count = new_id(), 150
    async with http(a) as on_a, http(b) as on_b, Subscriber.open(b) as subscriber:
        assert (await on_a.put(thing(name), json={})).status_code == 201

        async def write(client: Any, side: str) -> None:
            limit = asyncio.Semaphore(16)

            async def one(number: int) -> None:
                async with limit:
                    path = f"/attributes/{side}{number}"
                    answer = await client.put(thing(name, path), json=number)
                    assert answer.status_code == 201, answer.text

            await asyncio.gather(*(one(number) for number in range(count)))

        await asyncio.gather(write(on_a, "a"), write(on_b, "b"))
        seen = [event["revision"] for event in subscriber.events]
        await wait_for(lambda: len(subscriber.events) == 2 * count + 1)
        seen = [event["revision"] for event in subscriber.events]
    assert seen == list(range(1, 2 * count + 2))
    found = revisions(store.url, "pair")
    assert found[name] == seen
    assert_gap_free(found)
    revision, document = twin(store.url, name, "pair")
    assert revision == 2 * count + 1
    wanted = {f"{side}{n}": n for side in "ab" for n in range(count)}
    assert document["attributes"] == wanted


async def test_what_one_gateway_writes_the_other_reads(a: Gateway, b: Gateway) -> None:
    name = new_id()
    async with http(a) as on_a, http(b) as on_b:
        for number in range(20):
            writer, reader = (on_a, on_b) if number % 2 else (on_b, on_a)
            answer = await writer.put(thing(name), json={"attributes": {"n": number}})
            assert answer.status_code == (201 if number == 0 else 204)
            found = await reader.get(thing(name))
            assert found.json()["attributes"] == {"n": number}
            assert found.headers["entity-revision"] == str(number + 1)


async def test_creating_the_same_thing_on_both_makes_it_once(a: Gateway, b: Gateway) -> None:
    async with http(a) as on_a, http(b) as on_b:
        for _ in range(10):
            name = new_id()
            answers = await asyncio.gather(
                *(client.put(thing(name), json={}) for client in (on_a, on_b) for _ in range(3))
            )
            assert sorted(answer.status_code for answer in answers) == [201] + [204] * 5


async def test_labels_are_unique_when_many_ask_at_once(a: Gateway, b: Gateway) -> None:
    label = new_label()

    async def attempt(gateway: Gateway, done: asyncio.Event) -> bool:
        async with Subscriber.open(gateway, label, start=None) as subscriber:
            await subscriber.connection.send("START-SEND-EVENTS")
            await wait_for(lambda: subscriber.texts or subscriber.errors)
            won = bool(subscriber.texts)
            if won:
                await done.wait()
            return won

    done = asyncio.Event()
    tasks = [asyncio.create_task(attempt(where, done)) for where in (a, b) * 5]
    await wait_for(lambda: sum(task.done() for task in tasks) == len(tasks) - 1)
    done.set()
    assert sorted(await asyncio.gather(*tasks)) == [False] * 9 + [True]


async def test_acks_for_a_gateway_that_is_gone_harm_nobody(
    a: Gateway, store: RedisServer, tmp_path: Any
) -> None:
    mortal = Gateway(tmp_path, redis_url=store.url, prefix="pair")
    mortal.start()
    label = new_label()
    async with Subscriber.open(a, label) as subscriber, http(a) as client:
        async with http(mortal) as dying:
            request = asyncio.create_task(
                dying.put(thing(new_id()), json={}, params={"requested-acks": label})
            )
            event = await subscriber.event()
            mortal.kill9()
            await asyncio.gather(request, return_exceptions=True)
            assert request.exception() is not None
        await subscriber.send(ack_envelope(event, label, status=200))
        await subscriber.nothing_came()
        async with http(a, "devops") as operator, asyncio.timeout(10):
            none = 'ackgate_acks_undelivered_total{worker="0"} 0.0'
            while none in (await operator.get("/metrics")).text:  # noqa: ASYNC110 - a remote fact
                await asyncio.sleep(0.02)
        request = asyncio.create_task(
            client.put(thing(new_id()), json={}, params={"requested-acks": label})
        )
        event = await subscriber.event(count=2)
        await subscriber.send(ack_envelope(event, label, status=200))
        assert (await request).status_code == 200
