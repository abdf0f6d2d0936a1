"""What a request with ack requests is answered with."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import redis

from acks.envelopes import WEAK_UNSUBSCRIBED
from acks.journal import DEFAULT_SHARDS, ack_channel, journal_key, shard_of
from tests.gateways import (
    Gateway,
    Subscriber,
    ack_all,
    ack_envelope,
    check_error,
    http,
    new_id,
    new_label,
    revision,
    thing,
)
from tests.servers import RedisServer, wait_for

TIMEOUT_TEXT = "The acknowledgement request reached the specified timeout of {}ms."
TIMEOUT_HELP = (
    "Try increasing the timeout and make sure that the requested acknowledgement is sent back in "
    "time."
)


def timed_out(shown_ms: str) -> dict[str, Any]:
    """Payload of the 408 entry of a label nobody answered."""
    return {
        "status": 408,
        "error": "acknowledgement:request.timeout",
        "message": TIMEOUT_TEXT.format(shown_ms),
        "description": TIMEOUT_HELP,
    }


async def test_all_acks_in_make_a_200_with_one_entry_per_label(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name, label = new_id(), new_label()
    async with Subscriber.open(gateway, label, ack=lambda *_: {"status": 200, "value": "ok"}):
        answer = await client.put(
            thing(name),
            json={"attributes": {}},
            headers={"requested-acks": f"twin-persisted,{label}", "correlation-id": name},
        )
    assert answer.status_code == 200
    assert answer.json() == {
        "twin-persisted": {
            "status": 201,
            "payload": {"thingId": name, "policyId": name, "attributes": {}},
            "headers": {
                "correlation-id": name,
                "response-required": False,
                "etag": '"rev:1"',
                "entity-revision": 1,
                "ditto-originator": "nginx:ditto",
                "location": f"{gateway.url}/api/2/things/{name}",
            },
        },
        label: {
            "status": 200,
            "payload": "ok",
            "headers": {"correlation-id": name, "response-required": False},
        },
    }
    assert list(answer.json()) == ["twin-persisted", label]
    assert list(answer.json()["twin-persisted"]) == ["status", "payload", "headers"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["correlation-id"] == name
    for absent in ("etag", "location", "requested-acks"):
        assert absent not in answer.headers


async def test_a_missing_ack_makes_a_424_with_a_408_entry(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name, silent = new_id(), new_label()
    await client.put(thing(name), json={})
    async with Subscriber.open(gateway, silent) as subscriber:
        answer = await client.put(
            thing(name, "/attributes/a"),
            json=1,
            params={"requested-acks": f"{silent},twin-persisted", "timeout": "1234ms"},
            headers={"correlation-id": name},
        )
        await subscriber.event()
    assert answer.status_code == 424
    assert list(answer.json()) == [silent, "twin-persisted"]
    assert answer.json()[silent] == {
        "status": 408,
        "payload": timed_out("1,234"),
        "headers": {"correlation-id": name, "response-required": False},
    }
    persisted = answer.json()["twin-persisted"]
    assert (persisted["status"], "payload" in persisted) == (201, True)
    assert answer.headers["timeout"] == "1234ms"
    assert await revision(client, name) == 2


async def test_a_label_declared_by_nobody_runs_into_408(client: httpx.AsyncClient) -> None:
    name = new_id()
    answer = await client.put(
        thing(name), json={}, params={"requested-acks": new_label(), "timeout": "200ms"}
    )
    assert answer.status_code == 408
    assert answer.json() == timed_out("200")
    assert await revision(client, name) == 1


@pytest.mark.parametrize(
    ("fields", "status", "body"),
    [
        ({"status": 200, "value": {"outcome": "green"}}, 200, {"outcome": "green"}),
        ({"status": 202, "value": {"outcome": "green"}}, 202, {"outcome": "green"}),
        ({"status": 200}, 200, None),
        ({"status": 204, "value": {"ignored": True}}, 204, None),
        ({"status": 404, "value": "no such thing"}, 404, "no such thing"),
        ({"status": 503}, 503, None),
        ({"status": 200, "value": [1, None, "ü"]}, 200, [1, None, "ü"]),
        ({"status": 200, "value": False}, 200, False),
        ({"status": 599, "value": 0}, 599, 0),
    ],
)
async def test_a_single_custom_ack_is_the_answer_itself(
    client: httpx.AsyncClient, gateway: Gateway, fields: dict[str, Any], status: int, body: Any
) -> None:
    name, label = new_id(), new_label()
    async with Subscriber.open(gateway, label, ack=lambda *_: fields):
        answer = await client.put(thing(name), json={}, params={"requested-acks": label})
    assert answer.status_code == status
    if body is None:
        assert answer.content == b""
    else:
        assert answer.json() == body
        assert answer.headers["content-type"] == "application/json"
    assert "location" not in answer.headers


async def test_a_negative_ack_makes_a_424(client: httpx.AsyncClient, gateway: Gateway) -> None:
    name, good, bad = new_id(), new_label(), new_label()

    def ack(event: object, label: str) -> dict[str, Any]:
        return {"status": 200} if label == good else {"status": 400, "value": {"why": "bad"}}

    async with Subscriber.open(gateway, good, bad, ack=ack):
        answer = await client.put(
            thing(name), json={}, params={"requested-acks": f"{good},{bad},twin-persisted"}
        )
    assert answer.status_code == 424
    body = answer.json()
    assert {label: entry["status"] for label, entry in body.items()} == {
        good: 200, bad: 400, "twin-persisted": 201,
    }  # fmt: skip
    assert body[bad]["payload"] == {"why": "bad"}
    assert "payload" not in body[good]


async def test_response_required_false_shortens_the_answers(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name, good, bad = new_id(), new_label(), new_label()

    def ack(event: object, label: str) -> dict[str, Any]:
        return {"status": 200 if label == good else 502, "value": "text"}

    def params(*labels: str) -> dict[str, str]:
        return {"requested-acks": ",".join(labels), "response-required": "false"}

    async with Subscriber.open(gateway, good, bad, ack=ack):
        fine = await client.put(thing(name), json={}, params=params("twin-persisted", good))
        single = await client.put(thing(name), json={}, params=params(bad))
        several = await client.put(thing(name), json={}, params=params("twin-persisted", bad))
    assert (fine.status_code, fine.content) == (202, b"")
    assert "correlation-id" not in fine.headers
    assert (single.status_code, single.content) == (502, b"")
    assert several.status_code == 424
    assert several.json() == {
        "twin-persisted": {"status": 204, "headers": {"response-required": False}},
        bad: {"status": 502, "headers": {"response-required": False}},
    }


async def test_headers_of_an_ack_stay_in_its_entry_and_strange_ones_out_of_the_answer(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label = new_label()

    def ack(*_: object) -> dict[str, Any]:
        headers = {"x-mine": "1", "requested-acks": ["a"], "response-required": True}
        return {"status": 200, "value": 1, "headers": headers}

    async with Subscriber.open(gateway, label, ack=ack):
        both = await client.put(
            thing(new_id()), json={}, params={"requested-acks": f"twin-persisted,{label}"}
        )
        alone = await client.put(thing(new_id()), json={}, params={"requested-acks": label})
    headers = both.json()[label]["headers"]
    assert headers.pop("correlation-id") == both.headers["correlation-id"]
    assert headers == {"x-mine": "1", "response-required": False}
    assert "x-mine" not in alone.headers


async def test_an_entry_shows_the_headers_that_a_subscriber_may_give(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label = new_label()
    given = {
        "X-Mine": 5, "traceparent": "t", "content-type": "application/vnd.eclipse.ditto+json",
        "etag": '"forged"', "entity-revision": 7, "ditto-originator": "nginx:forged",
        "ditto-weak-ack": True, "if-match": '"a"', "authorization": "secret",
    }  # fmt: skip

    def ack(*_: object) -> dict[str, Any]:
        return {"status": 200, "value": 1, "headers": given}

    async with Subscriber.open(gateway, label, ack=ack):
        both = await client.put(
            thing(new_id()), json={}, params={"requested-acks": f"twin-persisted,{label}"}
        )
    entry = both.json()[label]
    assert entry["headers"] == {
        "correlation-id": both.headers["correlation-id"],
        "X-Mine": "5",
        "traceparent": "t",
        "response-required": False,
    }


async def test_an_ack_cannot_write_header_lines_into_the_answer(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label = new_label()

    def ack(*_: object) -> dict[str, Any]:
        value = "a\r\nx-evil: 1\r\n\r\n"
        return {"status": 200, "value": 1, "headers": {"etag": value, "traceparent": value}}

    async with Subscriber.open(gateway, label, ack=ack):
        for first in (True, False):  # both ways of a PUT: unknown and known credentials
            async with http(gateway, "ditto" if first else "user2") as fresh:
                answer = await fresh.put(thing(new_id()), json={}, params={"requested-acks": label})
                assert "x-evil" not in answer.headers
                assert answer.status_code == 200


@pytest.mark.parametrize("started", [True, False])
async def test_weak_ack_when_the_owner_does_not_get_the_event(
    client: httpx.AsyncClient, gateway: Gateway, started: bool
) -> None:
    """Not subscribed; or subscribed to another namespace."""
    name, label = new_id(), new_label()
    start = "START-SEND-EVENTS?namespaces=org.other" if started else None
    async with Subscriber.open(gateway, label, start=start) as subscriber:
        if not started:
            await subscriber.command("STOP-SEND-EVENTS")  # its labels are claimed by then
        answer = await client.put(
            thing(name), json={}, params={"requested-acks": f"twin-persisted,{label}"}
        )
        assert answer.status_code == 200
        entry = answer.json()[label]
        assert (entry["status"], entry["payload"]) == (200, WEAK_UNSUBSCRIBED)
        assert entry["headers"]["ditto-weak-ack"] is True
        assert entry["headers"]["correlation-id"] == answer.headers["correlation-id"]
        alone = await client.put(thing(name), json={}, params={"requested-acks": label})
        assert (alone.status_code, alone.json()) == (200, WEAK_UNSUBSCRIBED)
        assert alone.headers["ditto-weak-ack"] == "true"
        await subscriber.nothing_came()


async def test_weak_ack_when_the_owner_may_not_read(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name, label = new_id(), new_label()
    async with Subscriber.open(gateway, label, user="user2", ack=ack_all) as subscriber:
        answer = await client.put(
            thing(name), json={}, params={"requested-acks": f"twin-persisted,{label}"}
        )
        assert answer.json()[label]["headers"]["ditto-weak-ack"] is True
        await subscriber.nothing_came()


async def test_the_first_ack_of_a_label_counts(client: httpx.AsyncClient, gateway: Gateway) -> None:
    label, other = new_label(), new_label()
    async with Subscriber.open(gateway, label, other) as subscriber:
        request = asyncio.create_task(
            client.put(thing(new_id()), json={}, params={"requested-acks": f"{label},{other}"})
        )
        event = await subscriber.event()
        for status in (200, 500):
            await subscriber.send(ack_envelope(event, label, status=status))
        await subscriber.send(ack_envelope(event, other, status=201))
        answer = await request
        assert answer.status_code == 200
        assert {k: v["status"] for k, v in answer.json().items()} == {label: 200, other: 201}
        await subscriber.send(ack_envelope(event, label, status=500))
        await subscriber.nothing_came()


async def test_own_errors_end_the_wait_and_are_the_answer(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    params = {"requested-acks": f"twin-persisted,{new_label()}"}
    missing = await client.put(thing(name, "/attributes/a"), json=1, params=params)
    check_error(missing, 404, "things:thing.notfound")
    await client.put(thing(name), json={})
    forbidden = await user2.put(thing(name, "/attributes/a"), json=1, params=params)
    check_error(forbidden, 403, "things:attribute.notmodifiable")


async def test_a_correlation_id_of_an_open_request_is_refused(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name, label = new_id(), new_label()
    headers = {"correlation-id": name, "requested-acks": label}
    async with Subscriber.open(gateway, label) as subscriber:
        first = asyncio.create_task(client.put(thing(name), json={}, headers=headers))
        event = await subscriber.event()
        again = await client.put(thing(name), json={"attributes": {}}, headers=headers)
        check_error(again, 409, "acknowledgement:request.duplicate.correlation-id")
        assert name in again.json()["message"]
        plain = await client.put(
            thing(name), json={"attributes": {}}, headers={"correlation-id": name}
        )
        assert plain.status_code == 204, "nobody outside has to name this request"
        await subscriber.send(ack_envelope(event, label, status=200))
        assert (await first).status_code == 200
        afterwards = asyncio.create_task(client.put(thing(name), json={}, headers=headers))
        await wait_for(lambda: len(subscriber.events) == 3)
        event = subscriber.events[-1]
        assert event["headers"]["correlation-id"] == name
        await subscriber.send(ack_envelope(event, label, status=200))
        assert (await afterwards).status_code == 200


async def test_two_hundred_requests_each_get_their_own_acks(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label = new_label()

    def ack(event: dict[str, Any], _: str) -> dict[str, Any]:
        return {"status": 200, "value": {"echo": event["value"]}}

    name = new_id()
    await client.put(thing(name), json={})

    async def one(number: int) -> None:
        answer = await client.put(
            thing(name, f"/attributes/n{number}"),
            json=number,
            params={"requested-acks": f"twin-persisted,{label}"},
        )
        assert answer.json()[label]["payload"] == {"echo": number}
        assert answer.json()["twin-persisted"]["payload"] == number

    async with Subscriber.open(gateway, label, ack=ack):
        await asyncio.gather(*(one(number) for number in range(200)))
    assert await revision(client, name) == 201


async def test_deeply_nested_payloads_of_acks_do_not_hang_the_request(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label = new_label()
    payload: Any = 1
    for _ in range(600):
        payload = [payload]
    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200, "value": payload}
    ) as s:
        answer = await client.put(
            thing(new_id()),
            json={},
            params={"requested-acks": f"twin-persisted,{label}", "timeout": "1s"},
            timeout=5,
        )
        assert answer.status_code == 424
        assert answer.json()[label]["status"] == 408
        assert (await s.error())["value"]["error"] == "json.invalid"


async def test_an_ack_from_elsewhere_that_cannot_be_rendered_does_not_hang_the_request(
    client: httpx.AsyncClient, store: RedisServer
) -> None:
    """The ack channel is open to others, a Spark job for example."""
    name, label = new_id(), new_label()
    await client.put(thing(name), json={})  # the credentials are known from here on
    request = asyncio.create_task(
        client.put(
            thing(name), json={}, params={"requested-acks": label}, headers={"correlation-id": name}
        )
    )
    journal = journal_key("service", shard_of(name, DEFAULT_SHARDS))
    with redis.Redis.from_url(store.url) as channel:
        metas: list[dict[str, Any]] = []

        def written() -> bool:
            entries: Any = channel.xrevrange(journal, count=50)
            metas[:] = [json.loads(fields[b"m"]) for _, fields in entries]
            return any(meta["c"] == name for meta in metas)

        await wait_for(written)
        origin = next(meta["o"] for meta in metas if meta["c"] == name)
        nested = "[" * 500 + "]" * 500
        record = f'[["{name}","{label}","{name}",200,null,{nested}]]'
        assert channel.publish(ack_channel("service", origin), record) == 1
    check_error(await request, 500, "gateway:internalerror")


@pytest.mark.parametrize(("status", "expected"), [(304, 304), (100, 424), (101, 424), (199, 424)])
async def test_an_acks_status_that_has_no_body_in_http_keeps_the_framing(
    client: httpx.AsyncClient, gateway: Gateway, status: int, expected: int
) -> None:
    """The next request on the same connection gets its own answer."""
    name, label = new_id(), new_label()
    await client.put(thing(name), json={})
    async with Subscriber.open(gateway, label, ack=lambda *_: {"status": status, "value": "x"}):
        for _ in range(2):
            answer = await client.put(thing(name), json={}, headers={"requested-acks": label})
            assert answer.status_code == expected
            assert bool(answer.content) == (expected == 424)
    assert (await client.put(thing(name), json={})).status_code == 204
