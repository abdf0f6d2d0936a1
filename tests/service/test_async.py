"""``Prefer: respond-async``: accepted at once, carried out, told to whoever asks for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

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
    running,
    thing,
)
from tests.servers import RedisServer, redis_server, wait_for
from tests.service.test_operations import metrics
from tests.streams import ASYNC, STREAM, location, put_async, reached, state, stream, until


async def test_a_put_is_accepted_carried_out_and_told(client: httpx.AsyncClient) -> None:
    name = new_id()
    answer = await client.put(thing(name), json={}, headers={**ASYNC, "correlation-id": name})
    path = location(answer)
    assert answer.headers["correlation-id"] == name
    assert path.endswith(f"/{quote(name, safe='')}")
    body = await reached(client, path, state="done")
    assert body["outcome"]["status"] == 201
    assert body["outcome"]["body"] == {"thingId": name, "policyId": name}
    headers = body["outcome"]["headers"]
    assert headers["location"] == str(client.base_url) + thing(name)
    assert (headers["etag"], headers["correlation-id"]) == ('"rev:1"', name)
    assert headers["content-type"] == "application/json"
    assert body["acks"]["twin-persisted"]["status"] == 201
    assert (body["owed"], body["requestedAcks"]) == ([], ["twin-persisted"])
    assert (body["correlationId"], body["thingId"]) == (name, name)
    assert body["acceptedAt"] < body["deadline"] < body["expiresAt"]
    assert await revision(client, name) == 1


async def test_the_outcome_is_the_answer_that_waiting_would_have_given(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    label, failing = new_label(), new_label()

    def ack(event: dict[str, Any], name: str) -> dict[str, Any]:
        status = 422 if name == failing else 200
        return {"status": status, "value": {"n": 1}, "headers": {"x-mine": "1"}}

    async with Subscriber.open(gateway, label, failing, ack=ack):
        for requested in (
            label,
            failing,
            f"twin-persisted,{label}",
            f"twin-persisted,{label},{failing}",
            "twin-persisted",
            "",
        ):
            for required in (None, "false"):
                params = {"requested-acks": requested}
                if required is not None:
                    params["response-required"] = required
                first, second = new_id(), new_id()
                waited = await client.put(thing(first), json={}, params=params)
                answer = await client.put(thing(second), json={}, params=params, headers=ASYNC)
                told = (await reached(client, location(answer), state="done"))["outcome"]
                assert told["status"] == waited.status_code
                body = waited.text.replace(first, second).replace(
                    waited.headers.get("correlation-id", "-"), answer.headers["correlation-id"]
                )
                assert told.get("body") == (json.loads(body) if body else None)
                assert told["headers"].get("etag") == waited.headers.get("etag")


async def test_what_came_and_what_is_owed_can_be_seen(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name, one, two = new_id(), new_label(), new_label()
    async with Subscriber.open(gateway, one, two) as subscriber:
        path = await put_async(client, name, requested_acks=f"twin-persisted,{one},{two}")
        event = await subscriber.event()
        assert event["headers"]["requested-acks"] == [one, two]
        body = await reached(client, path, owed=[one, two])
        assert list(body["acks"]) == ["twin-persisted"]
        await subscriber.send(ack_envelope(event, two, status=200, value={"x": 1}))
        body = await reached(client, path, owed=[one])
        assert body["state"] == "pending"
        assert "outcome" not in body
        assert "expiresAt" not in body
        assert body["acks"][two] == {
            "status": 200,
            "payload": {"x": 1},
            "headers": {"correlation-id": body["correlationId"], "response-required": False},
        }
        await subscriber.send(ack_envelope(event, two, status=500))  # the first one counts
        await subscriber.send(ack_envelope(event, one, status=403, value="no"))
        body = await reached(client, path, state="done")
    assert body["outcome"]["status"] == 424
    statuses = {label: entry["status"] for label, entry in body["outcome"]["body"].items()}
    assert statuses == {"twin-persisted": 201, one: 403, two: 200}
    assert await state(client, path) == body, "it stays what it is"


async def test_a_request_that_nobody_acknowledges_expires(client: httpx.AsyncClient) -> None:
    label = new_label()
    path = await put_async(
        client, new_id(), requested_acks=f"twin-persisted,{label}", timeout="300ms"
    )
    body = await reached(client, path, state="done")
    assert body["outcome"]["status"] == 424
    assert body["outcome"]["headers"]["timeout"] == "300ms"
    entry = body["outcome"]["body"][label]
    assert entry["payload"]["error"] == "acknowledgement:request.timeout"
    assert list(body["acks"]) == ["twin-persisted"]


async def test_an_error_of_ours_is_the_outcome(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name, label = new_id(), new_label()
    missing = await put_async(
        client, name, "/attributes/a", requested_acks=f"twin-persisted,{label}", timeout="30s"
    )
    body = await reached(client, missing, state="done")
    assert body["outcome"]["status"] == 404
    assert body["outcome"]["body"]["error"] == "things:thing.notfound"
    assert body["outcome"]["headers"]["timeout"] == "30s"
    await client.put(thing(name), json={})
    forbidden = await put_async(
        user2,
        name,
        "/attributes/a",
        json=1,
        timeout="0",
    )
    body = await reached(user2, forbidden, state="done")
    assert body["outcome"]["body"]["error"] == "things:attribute.notmodifiable"


async def test_bad_requests_are_refused_at_once(client: httpx.AsyncClient) -> None:
    bad = await client.put(thing(new_id()), content=b"{", headers=ASYNC)
    check_error(bad, 400, "json.invalid")
    bad = await client.put(thing("no-id"), json={}, headers=ASYNC)
    check_error(bad, 400, "things:id.invalid")
    bad = await client.put(thing(new_id()), json={}, headers={**ASYNC, "timeout": "2m"})
    check_error(bad, 400, "gateway:timeout.invalid")


async def test_only_its_requester_may_see_it(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    path = await put_async(client, new_id())
    await state(client, path)
    for headers in ({}, STREAM):
        foreign = await user2.get(path, headers=headers)
        body = check_error(foreign, 404, "acknowledgement:request.notfound")
        unknown = await client.get("/api/2/acks/nobody", headers=headers)
        check_error(unknown, 404, "acknowledgement:request.notfound")
        assert body["description"] == unknown.json()["description"]
    check_error(await user2.put(path, json={}), 405, "gateway:method.notallowed")
    check_error(await client.get("/api/2/acks/"), 404, "gateway:resource.notfound")
    check_error(await client.get(f"{path}/more"), 404, "gateway:resource.notfound")
    async with httpx.AsyncClient(base_url=client.base_url, trust_env=False) as nobody:
        check_error(await nobody.get(path), 401, "gateway:authentication.failed")


async def test_an_id_is_used_once_while_it_is_remembered(client: httpx.AsyncClient) -> None:
    cid = new_id()
    first = new_id()
    path = await put_async(client, first, headers={"correlation-id": cid})
    await reached(client, path, state="done")
    others = [first, *(new_id() for _ in range(10))]  # some of them in other shards
    for name in others:
        again = await client.put(thing(name), json={}, headers={**ASYNC, "correlation-id": cid})
        check_error(again, 409, "acknowledgement:request.duplicate.correlation-id")
    assert await revision(client, first) == 1
    assert [await revision(client, name) for name in others[1:]] == [0] * 10
    assert (await state(client, path))["thingId"] == first


async def test_ids_with_every_kind_of_character(client: httpx.AsyncClient) -> None:
    cid = f"{new_id()} /?#%&{{}}é+;"
    answer = await client.put(
        thing(new_id()),
        json={},
        headers=httpx.Headers({**ASYNC, "correlation-id": cid}, encoding="latin-1"),
    )
    body = await reached(client, location(answer), state="done")
    assert body["correlationId"] == cid


@pytest.mark.parametrize(
    ("lines", "applied"),
    [
        ([("prefer", "respond-async")], True),
        ([("Prefer", 'wait=10, Respond-Async; x="y"')], True),
        ([("prefer", "handling=lenient"), ("prefer", "respond-async")], True),
        ([("prefer", "respond-async"), ("prefer", "wait=10")], True),
        ([("prefer", 'x="a, respond-async"')], False),
        ([("prefer", "return=minimal")], False),
        ([("prefer", "respond-asynchronous")], False),
        ([("prefer", "")], False),
    ],
)
async def test_how_the_preference_is_said(
    client: httpx.AsyncClient, lines: list[tuple[str, str]], applied: bool
) -> None:
    answer = await client.put(thing(new_id()), json={}, headers=lines)
    assert answer.status_code == (202 if applied else 201)
    assert ("preference-applied" in answer.headers) == applied


async def test_other_changes_and_reads(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"a": 1}})
    merge = await client.patch(
        thing(name, "/attributes"),
        content=b'{"b": 2}',
        headers={**ASYNC, "content-type": "application/merge-patch+json"},
    )
    assert (await reached(client, location(merge), state="done"))["outcome"]["status"] == 204
    read = await client.get(thing(name), headers=ASYNC)
    assert read.json()["attributes"] == {"a": 1, "b": 2}
    gone = await client.delete(thing(name), headers=ASYNC)
    body = await reached(client, location(gone), state="done")
    assert body["outcome"]["status"] == 204
    assert (await client.get(thing(name))).status_code == 404
    made = await client.post("/api/2/things", json={}, headers=ASYNC)
    outcome = (await reached(client, location(made), state="done"))["outcome"]
    assert outcome["headers"]["location"].endswith(outcome["body"]["thingId"])
    assert (await client.get(outcome["headers"]["location"])).status_code == 200


async def test_without_any_wish_it_is_done_when_it_is_processed(
    client: httpx.AsyncClient,
) -> None:
    name = new_id()
    path = await put_async(client, name, timeout="0")
    body = await reached(client, path, state="done")
    assert (body["outcome"]["status"], "body" in body["outcome"]) == (202, False)
    assert await revision(client, name) == 1


async def test_weak_acks_count(client: httpx.AsyncClient, gateway: Gateway) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, start="START-SEND-EVENTS?namespaces=org.other"):
        path = await put_async(client, new_id(), requested_acks=f"twin-persisted,{label}")
        body = await reached(client, path, state="done")
    assert body["outcome"]["status"] == 200
    assert body["acks"][label]["headers"]["ditto-weak-ack"] is True


async def test_an_ack_counts_whatever_thing_it_names(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    """As for a request whose sender waits: the correlation-id decides."""
    label = new_label()
    async with Subscriber.open(gateway, label) as subscriber:
        path = await put_async(client, new_id(), requested_acks=label)
        event = await subscriber.event()
        for number in range(20):  # some of these are in other shards
            topic = f"org.example/o{number}/things/twin/acks/{label}"
            frame = {**ack_envelope(event, label, status=200), "topic": topic}
            await subscriber.send(frame)
        body = await reached(client, path, state="done")
    assert body["outcome"]["status"] == 200


async def test_a_message_can_be_accepted_too(client: httpx.AsyncClient, gateway: Gateway) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    async with Subscriber.open(gateway, start="START-SEND-MESSAGES") as subscriber:
        answer = await client.post(
            thing(name, "/inbox/messages/ask"),
            content="How are you?",
            headers={**ASYNC, "content-type": "text/plain"},
        )
        path = location(answer)
        question = await subscriber.event()
        assert (await state(client, path))["owed"] == ["live-response"]
        await subscriber.send(
            {
                "topic": question["topic"],
                "headers": {
                    "correlation-id": question["headers"]["correlation-id"],
                    "content-type": "text/plain",
                },
                "path": question["path"].replace("inbox", "outbox"),
                "value": "Fine.",
                "status": 200,
            }
        )
        body = await reached(client, path, state="done")
    assert (body["outcome"]["status"], body["outcome"]["body"]) == (200, "Fine.")
    assert body["outcome"]["headers"]["content-type"].startswith("text/plain")


async def test_a_message_to_a_thing_that_is_not_there(client: httpx.AsyncClient) -> None:
    answer = await client.post(thing(new_id(), "/inbox/messages/ask"), json=1, headers=ASYNC)
    body = await reached(client, location(answer), state="done")
    assert body["outcome"]["status"] == 404


# --- the stream


async def test_the_stream_tells_each_ack_and_ends_with_the_outcome(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    one, two = new_label(), new_label()
    async with Subscriber.open(gateway, one, two) as subscriber:
        path = await put_async(client, new_id(), requested_acks=f"{one},twin-persisted,{two}")
        event = await subscriber.event()
        async with stream(client, path) as events:
            assert events.answer.status_code == 200
            assert events.answer.headers["content-type"] == "text/event-stream"
            assert events.answer.headers["cache-control"] == "no-store"
            first = await events.next()
            assert first is not None
            assert (first.id, first.kind, first.data["owed"]) == (1, "ack", [one, two])
            await subscriber.send(ack_envelope(event, two, status=200))
            second = await events.next()
            assert second is not None
            assert (second.id, second.kind, second.data["owed"]) == (2, "ack", [one])
            assert second.data["state"] == "pending"
            await subscriber.send(ack_envelope(event, one, status=200))
            last = await events.next()
            assert last is not None
            assert (last.id, last.kind) == (3, "outcome")
            assert last.data == await state(client, path)
            assert await events.next() is None
            assert events.comments
    async with stream(client, path) as again:
        assert [(event.id, event.kind) for event in await again.rest()] == [
            (1, "ack"),
            (2, "ack"),
            (3, "outcome"),
        ]
    async with stream(client, path, last=1) as again:
        assert [event.id for event in await again.rest()] == [2, 3]
    async with stream(client, path, last=3) as again:
        assert again.answer.status_code == 204, "an EventSource does not connect again"
    bad = await client.get(path, headers={**STREAM, "last-event-id": "x"})
    check_error(bad, 400, "header.invalid")


async def test_the_stream_tells_of_the_expiry(client: httpx.AsyncClient) -> None:
    label = new_label()
    path = await put_async(client, new_id(), requested_acks=label, timeout="500ms")
    async with stream(client, path) as events:
        told = await events.rest()
    assert [event.kind for event in told] == ["outcome"]
    assert told[0].data["outcome"]["status"] == 408


async def test_streams_are_bounded_and_freed(place: Path, store: RedisServer) -> None:
    with running(
        one := Gateway(
            place, redis_url=store.url, prefix="streams", max_ack_streams="1", async_keep="1s"
        )
    ):
        async with http(one) as client:
            path = await put_async(client, new_id(), requested_acks=new_label())
            async with stream(client, path):
                refused = await client.get(path, headers=STREAM)
                check_error(refused, 503, "gateway:service.unavailable")
                assert refused.headers["retry-after"] == "1"
                assert (await metrics(one))["ackgate_async_streams"] == {"0": 1}

            async def free() -> bool:
                return (await metrics(one))["ackgate_async_streams"] == {"0": 0}

            await until(free)
            async with stream(client, path) as events:
                assert events.answer.status_code == 200
                one.terminate()
                assert await events.next() is None, "a drain ends the stream without an outcome"
            assert await one.ended() == 0


async def test_an_outcome_is_kept_for_its_time_only(place: Path, store: RedisServer) -> None:
    with running(one := Gateway(place, redis_url=store.url, prefix="kept", async_keep="300ms")):
        async with http(one) as client:
            path = await put_async(client, new_id())

            async def gone() -> bool:
                return (await client.get(path)).status_code != 200

            await until(gone)
            check_error(await client.get(path), 404, "acknowledgement:request.notfound")


async def test_many_at_once(client: httpx.AsyncClient, gateway: Gateway) -> None:
    before = await metrics(gateway)
    name, label = new_id(), new_label()
    await client.put(thing(name), json={})
    async with Subscriber.open(gateway, label, ack=ack_all):
        paths = await asyncio.gather(
            *(
                put_async(
                    client,
                    name,
                    f"/attributes/n{number}",
                    json=number,
                    requested_acks=f"twin-persisted,{label}",
                )
                for number in range(100)
            )
        )
        for path in paths:
            body = await reached(client, path, state="done")
            assert body["outcome"]["status"] == 200
    assert await revision(client, name) == 101
    after = await metrics(gateway)

    def more(metric: str) -> float:
        return sum(after[metric].values()) - sum(before[metric].values())

    assert more("ackgate_async_accepted_total") == 100
    assert more("ackgate_acks_recorded_total") == 100


async def test_a_record_outlives_the_store(place: Path) -> None:
    with redis_server() as own, running(one := Gateway(place, redis_url=own.url)):
        async with http(one) as client:
            label = new_label()
            path = await put_async(client, new_id(), requested_acks=f"twin-persisted,{label}")
            await reached(client, path, owed=[label])
            own.kill9()
            await wait_for(lambda: one.health() == 503)
            check_error(await client.get(path), 503, "gateway:service.unavailable")
            refused = await client.put(thing(new_id()), json={}, headers=ASYNC)
            check_error(refused, 503, "gateway:service.unavailable")
            own.start()
            await wait_for(lambda: one.health() == 200, 15)
            body = await state(client, path)
            assert (body["state"], body["owed"]) == ("pending", [label])


async def test_requests_being_begun_are_bounded(place: Path) -> None:
    with (
        redis_server() as own,
        running(one := Gateway(place, redis_url=own.url, max_pending="1", store_timeout="8s")),
    ):
        async with http(one) as client:
            own.pause()
            two = [
                asyncio.create_task(client.put(thing(new_id()), json={}, headers=ASYNC))
                for _ in range(2)
            ]
            [refused], [begun] = await asyncio.wait(
                two, timeout=5, return_when=asyncio.FIRST_COMPLETED
            )
            body = check_error(refused.result(), 503, "gateway:service.unavailable")
            assert "Too many" in body["description"]
            own.resume()
            path = location(await begun)
            await reached(client, path, state="done")
