"""What became of requested acks is recorded; the ack report shows what a job made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from acks.journal import outcomes_key, report_window_key, report_windows_key
from acks.outcomes import ANSWERED, TIMED_OUT, WEAK, Finished, read_record
from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    ack_all,
    check_error,
    http,
    new_id,
    new_label,
    running,
    thing,
)
from tests.servers import RedisServer, wait_for

REPORT = "/api/2/acks/report"


class Outcomes:
    """The stream of outcomes of the gateways with this prefix."""

    def __init__(self, store: RedisServer, prefix: str) -> None:
        self.redis = redis.Redis.from_url(store.url, protocol=2)
        self.prefix = prefix

    def all(self) -> list[Finished]:
        entries: Any = self.redis.xrange(outcomes_key(self.prefix))
        return [read_record(one) for _, fields in entries for one in json.loads(fields[b"o"])]

    async def of(self, thing_id: str, count: int = 1) -> list[Finished]:
        """Those of one thing, once there are as many."""
        await wait_for(lambda: len(self._of(thing_id)) >= count, 10, f"outcomes of {thing_id}")
        return self._of(thing_id)

    def _of(self, thing_id: str) -> list[Finished]:
        return [one for one in self.all() if one.thing_id == thing_id]


@pytest.fixture
async def outcomes(store: RedisServer, gateway: Gateway) -> AsyncIterator[Outcomes]:
    reading = Outcomes(store, "service")
    yield reading
    reading.redis.close()


@pytest.fixture
async def operator(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway, "devops") as client:
        yield client


async def put(
    client: httpx.AsyncClient, thing_id: str, acks: str | None, timeout: str = "10s"
) -> httpx.Response:
    params = {"timeout": timeout} | ({"requested-acks": acks} if acks else {})
    return await client.put(thing(thing_id), json={"attributes": {"a": 1}}, params=params)


async def test_every_finished_request_that_names_acks_is_recorded(
    gateway: Gateway, client: httpx.AsyncClient, outcomes: Outcomes
) -> None:
    good, bad, absent, thing_id = new_label(), new_label(), new_label(), new_id()

    def respond(_event: Json, label: str) -> Json:
        return {"status": 200 if label == good else 503}

    async with Subscriber.open(gateway, good, bad, ack=respond):
        answer = await put(client, thing_id, f"twin-persisted,{good},{bad},{absent}", "1s")
    assert answer.status_code == 424
    [record] = await outcomes.of(thing_id)
    assert record.status == 424
    assert 1_000_000 <= record.took_us < 20_000_000
    results = {result.label: result for result in record.acks}
    assert [*results] == ["twin-persisted", good, bad, absent]
    assert results["twin-persisted"][1:3] == (201, ANSWERED)
    assert results[good][1:3] == (200, ANSWERED)
    assert results[bad][1:3] == (503, ANSWERED)
    assert results[absent][1:] == (408, TIMED_OUT, None)
    for label in ("twin-persisted", good, bad):
        came = results[label].us
        assert came is not None
        assert 0 < came < record.took_us


async def test_a_weak_ack_is_recorded_as_one(
    gateway: Gateway, client: httpx.AsyncClient, outcomes: Outcomes
) -> None:
    label, thing_id = new_label(), new_id()
    async with Subscriber.open(gateway, label, user="user2"):  # which may not read the thing
        assert (await put(client, thing_id, label)).status_code == 200
    [record] = await outcomes.of(thing_id)
    assert [result[:3] for result in record.acks] == [(label, 200, WEAK)]


async def test_requests_that_name_no_acks_or_fail_leave_no_record(
    gateway: Gateway, client: httpx.AsyncClient, outcomes: Outcomes
) -> None:
    plain, missing, recorded, label = new_id(), new_id(), new_id(), new_label()
    assert (await put(client, plain, None)).status_code == 201
    assert (await put(client, plain, "twin-persisted")).status_code == 204
    params = {"requested-acks": f"twin-persisted,{label}", "timeout": "5s"}
    refused = await client.put(thing(missing, "/attributes/a"), json=1, params=params)
    assert refused.status_code == 404
    # One that is recorded, after which the others would be there.
    async with Subscriber.open(gateway, label, ack=ack_all):
        assert (await put(client, recorded, label)).status_code == 200
    await outcomes.of(recorded)
    assert {plain, missing}.isdisjoint(one.thing_id for one in outcomes.all())


async def test_requests_that_finish_together_share_an_entry(
    gateway: Gateway, client: httpx.AsyncClient, outcomes: Outcomes
) -> None:
    label, ids = new_label(), [new_id() for _ in range(40)]
    before = outcomes.redis.xlen(outcomes_key("service"))
    params = {"requested-acks": label, "timeout": "300ms"}

    async def all_at_once() -> list[int]:
        sent = (client.put(thing(one), json={}, params=params) for one in ids)
        return [answer.status_code for answer in await asyncio.gather(*sent)]

    assert await all_at_once() == [408] * len(ids)
    for one in ids:
        await outcomes.of(one)
    assert outcomes.redis.xlen(outcomes_key("service")) - before < len(ids) / 2


async def test_what_was_finished_before_the_end_is_written(store: RedisServer, place: Path) -> None:
    one = Gateway(place, redis_url=store.url, prefix="ending")
    thing_id = new_id()
    with running(one):
        async with http(one) as client:
            assert (await put(client, thing_id, new_label(), "200ms")).status_code == 408
    reading = Outcomes(store, "ending")
    assert [record.thing_id for record in reading.all()] == [thing_id]
    reading.redis.close()


async def test_turned_off_nothing_is_recorded(store: RedisServer, place: Path) -> None:
    one = Gateway(place, redis_url=store.url, prefix="silent", outcomes="false")
    with running(one):
        async with http(one) as client:
            assert (await put(client, new_id(), new_label(), "200ms")).status_code == 408
    reading = Outcomes(store, "silent")
    assert not reading.redis.exists(outcomes_key("silent"))
    reading.redis.close()


# --- the report


def level(requested: int) -> str:
    return json.dumps({"requested": requested, "success": requested})


async def test_the_report_shows_the_windows_that_are_asked_for(
    operator: httpx.AsyncClient, outcomes: Outcomes
) -> None:
    one, two = new_label(), new_label()
    for minute, labels in enumerate(((one, two), (two,), (one,))):
        start = 1_768_478_400_000 + minute * 60_000  # 2026-01-15T12:00:00Z
        window = f"{start}-{start + 60_000}"
        key = report_window_key("service", window)
        outcomes.redis.hset(key, mapping={label: level(minute + 1) for label in labels})
        outcomes.redis.zadd(report_windows_key("service"), {window: start})

    async def asked(**params: str) -> list[tuple[str, list[str]]]:
        answer = await operator.get(REPORT, params=params)
        assert answer.status_code == 200, answer.text
        assert answer.json()["more"] is False
        windows = answer.json()["windows"]
        return [(window["start"][11:16], [*window["labels"]]) for window in windows]

    both = sorted([one, two])
    assert await asked() == [("12:00", both), ("12:01", [two]), ("12:02", [one])]
    assert await asked(label=one) == [("12:00", [one]), ("12:02", [one])]
    assert await asked(label=f"{one},{two}") == await asked()
    later = "2026-01-15T12:01:00Z"
    assert await asked(**{"from": later}) == [("12:01", [two]), ("12:02", [one])]
    assert await asked(to=later) == [("12:00", both)]
    assert await asked(**{"from": later, "to": "2026-01-15T12:02:00.000+00:00"}) == [
        ("12:01", [two])
    ]
    answer = await operator.get(REPORT, params={"label": two, "from": later})
    assert answer.json()["windows"] == [
        {
            "start": "2026-01-15T12:01:00.000Z",
            "end": "2026-01-15T12:02:00.000Z",
            "labels": {two: {"requested": 2, "success": 2}},
        }
    ]


async def test_the_report_is_for_operators(client: httpx.AsyncClient) -> None:
    check_error(await client.get(REPORT), 403, "gateway:authorization.missing")


async def test_a_time_that_is_none_is_refused(operator: httpx.AsyncClient) -> None:
    body = check_error(await operator.get(f"{REPORT}?from=soon"), 400, "json.format.invalid")
    assert "'from'" in body["description"]
    check_error(await operator.post(REPORT), 405, "gateway:method.notallowed")


async def test_no_accepted_request_can_have_the_address_of_the_report(
    client: httpx.AsyncClient,
) -> None:
    headers = {"prefer": "respond-async", "correlation-id": "report"}
    answer = await client.put(thing(new_id()), json={}, headers=headers)
    check_error(answer, 400, "header.invalid")
