"""``search-persisted`` as clients see it; the test is the indexer, and says what is indexed.

What the real indexer does is in tests/service/test_search_persisted.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from acks.outcomes import ANSWERED, TIMED_OUT, WEAK
from acks.search_acks import Asked, Indexing
from tests.callers import Caller, topic_of
from tests.gateways import (
    Gateway,
    Subscriber,
    ack_all,
    check_error,
    http,
    new_id,
    new_label,
    running,
    thing,
)
from tests.indexing import Indexer
from tests.servers import RedisServer
from tests.service.test_outcomes import Outcomes
from tests.streams import put_async, reached, state

SEARCH = "search-persisted"
PREFIX = "search-acks"
FROM_SCRATCH = {"response-required": False}


@pytest.fixture(scope="module")
def gateway(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway without an indexer."""
    place = tmp_path_factory.mktemp("search-acks")
    one = Gateway(place, redis_url=store.url, prefix=PREFIX, search_index="off")
    with running(one):
        yield one


@pytest.fixture
async def indexer(gateway: Gateway, store: RedisServer) -> AsyncIterator[Indexer]:
    async with Indexer.of(store, PREFIX) as indexer:
        yield indexer


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


def put(
    client: httpx.AsyncClient,
    thing_id: str,
    acks: str = SEARCH,
    *,
    headers: dict[str, str] | None = None,
    **params: str,
) -> asyncio.Task[httpx.Response]:
    """A PUT on its way."""
    wanted = {"requested-acks": acks, "timeout": "20s"}
    wanted |= {name.replace("_", "-"): value for name, value in params.items()}
    return asyncio.create_task(
        client.put(thing(thing_id), json={}, params=wanted, headers=headers or {})
    )


@pytest.mark.parametrize(
    ("indexing", "status", "weak"),
    [
        (Indexing.WRITTEN, 204, None),
        (Indexing.UNCHANGED, 200, "true"),
        (Indexing.FAILED, 500, None),
    ],
)
async def test_requested_alone_it_is_the_answer(
    client: httpx.AsyncClient, indexer: Indexer, indexing: Indexing, status: int, weak: str | None
) -> None:
    name = new_id()
    answering = put(client, name, headers={"correlation-id": name})
    asked = await indexer.answer(name, indexing)
    answer = await answering
    assert (answer.status_code, answer.content) == (status, b"")
    assert answer.headers.get("ditto-weak-ack") == weak
    assert answer.headers["correlation-id"] == name
    assert "etag" not in answer.headers
    assert "location" not in answer.headers
    assert (asked.thing_id, asked.revision, asked.correlation_id) == (name, 1, name)


async def test_it_is_never_given_before_the_indexer_gives_it(
    client: httpx.AsyncClient, indexer: Indexer
) -> None:
    name = new_id()
    answering = put(client, name, f"twin-persisted,{SEARCH}")
    asked = (await indexer.asked(name))[0]
    # Whatever else happens to the thing meanwhile, and is acknowledged, is not this change.
    for _ in range(20):
        assert (await client.put(thing(name), json={})).status_code == 204
    assert not answering.done()
    indexer.acks.issue([(asked, Indexing.WRITTEN)])
    assert (await answering).status_code == 200


@pytest.mark.parametrize(
    ("indexing", "status", "entry"),
    [
        (Indexing.WRITTEN, 200, {"status": 204, "headers": FROM_SCRATCH}),
        (
            Indexing.UNCHANGED,
            200,
            {"status": 200, "headers": {"ditto-weak-ack": True, **FROM_SCRATCH}},
        ),
        (Indexing.FAILED, 424, {"status": 500, "headers": FROM_SCRATCH}),
    ],
)
async def test_with_others_it_is_an_entry_with_headers_from_scratch(
    client: httpx.AsyncClient,
    gateway: Gateway,
    indexer: Indexer,
    indexing: Indexing,
    status: int,
    entry: dict[str, Any],
) -> None:
    name, label = new_id(), new_label()
    async with Subscriber.open(gateway, label, ack=ack_all):
        answering = put(client, name, f"twin-persisted,{SEARCH},{label}")
        await indexer.answer(name, indexing)
        answer = await answering
    body = answer.json()
    assert answer.status_code == status
    assert list(body) == ["twin-persisted", SEARCH, label]
    assert body[SEARCH] == entry
    assert (body["twin-persisted"]["status"], body[label]["status"]) == (201, 200)


async def test_without_an_indexer_it_runs_into_the_timeout(client: httpx.AsyncClient) -> None:
    alone = await put(client, new_id(), timeout="300ms")
    assert check_error(alone, 408, "acknowledgement:request.timeout")
    both = await put(client, new_id(), f"twin-persisted,{SEARCH}", timeout="300ms")
    assert both.status_code == 424
    assert both.json()[SEARCH]["status"] == 408


@pytest.mark.parametrize(("indexing", "status"), [(Indexing.WRITTEN, 202), (Indexing.FAILED, 500)])
async def test_without_a_response_it_still_waits(
    client: httpx.AsyncClient, indexer: Indexer, indexing: Indexing, status: int
) -> None:
    name = new_id()
    answering = put(client, name, response_required="false")
    await indexer.answer(name, indexing)
    answer = await answering
    assert (answer.status_code, answer.content) == (status, b"")


async def test_every_way_to_change_a_thing(client: httpx.AsyncClient, indexer: Indexer) -> None:
    name = new_id()
    wanted = {"requested-acks": SEARCH, "timeout": "20s"}
    merge = {"content-type": "application/merge-patch+json"}
    changes: list[Awaitable[httpx.Response]] = [
        client.patch(thing(name), content=b'{"attributes":{"a":1}}', params=wanted, headers=merge),
        client.put(thing(name, "/attributes/a"), json=2, params=wanted),
        client.patch(thing(name, "/attributes"), json={"b": 1}, params=wanted, headers=merge),
        client.delete(thing(name, "/attributes/a"), params=wanted),
        client.delete(thing(name), params=wanted),
        client.put(thing(name), json={"policyId": name}, params=wanted),
    ]
    for number, change in enumerate(changes, 1):
        answering = asyncio.ensure_future(change)
        asked = await indexer.answer(name, Indexing.WRITTEN, number)
        assert asked.revision == number
        assert (await answering).status_code == 204, number


async def test_a_thing_whose_id_is_made_here(client: httpx.AsyncClient, indexer: Indexer) -> None:
    cid = new_id()
    params = {"requested-acks": f"twin-persisted,{SEARCH}", "namespace": "org.posted"}
    async with Subscriber.open(gateway_of(client), start=None) as watcher:
        await watcher.command("START-SEND-EVENTS?namespaces=org.posted")
        posting = asyncio.ensure_future(
            client.post("/api/2/things", json={}, params=params, headers={"correlation-id": cid})
        )
        event = await watcher.event()
        await indexer.answer(event["value"]["thingId"], Indexing.WRITTEN)
        answer = await posting
    assert answer.status_code == 200
    statuses = {label: entry["status"] for label, entry in answer.json().items()}
    assert statuses == {"twin-persisted": 201, SEARCH: 204}


def gateway_of(client: httpx.AsyncClient) -> Any:
    """What a subscriber needs to know of the gateway of a client."""

    class Known:
        port = client.base_url.port
        url = str(client.base_url).rstrip("/")

    return Known()


async def test_an_error_of_our_own_ends_the_wait(
    client: httpx.AsyncClient, indexer: Indexer
) -> None:
    answer = await client.put(
        thing(new_id(), "/attributes/a"), json=1, params={"requested-acks": SEARCH}
    )
    check_error(answer, 404, "things:thing.notfound")


async def test_subscribers_see_nothing_of_it(
    client: httpx.AsyncClient, gateway: Gateway, indexer: Indexer
) -> None:
    name, label = new_id(), new_label()
    async with (
        Subscriber.open(gateway, label, ack=ack_all) as owner,
        Subscriber.open(gateway) as watcher,
    ):
        answering = put(client, name)
        await indexer.answer(name, Indexing.WRITTEN)
        await answering
        for one in (owner, watcher):
            event = await one.event()
            assert "requested-acks" not in event["headers"]
            assert SEARCH not in str(event)
        answering = put(client, name, f"{SEARCH},{label}")
        await indexer.answer(name, Indexing.WRITTEN, 2)
        assert (await answering).status_code == 200
        assert (await owner.event(1, 2))["headers"]["requested-acks"] == [label]
        assert (await watcher.event(1, 2))["headers"]["requested-acks"] == []


async def test_entries_that_do_not_ask_say_nothing_more(
    client: httpx.AsyncClient, indexer: Indexer
) -> None:
    name = new_id()
    await put(client, name, "twin-persisted")
    answering = put(client, name)
    await indexer.answer(name, Indexing.WRITTEN)
    await answering
    plain, asking = await indexer.metas(name)
    assert set(asking) - set(plain) == {"i"}


async def test_nobody_else_can_give_it(
    client: httpx.AsyncClient, gateway: Gateway, indexer: Indexer
) -> None:
    name = new_id()
    async with Subscriber.open(gateway, SEARCH) as owner:
        answering = put(client, name, headers={"correlation-id": name})
        await owner.event()
        for label in (SEARCH, "search-persisted%23indexed", "search-persisted#indexed"):
            topic = f"{name.replace(':', '/')}/things/twin/acks/{label}"
            await owner.send(
                {"topic": topic, "headers": {"correlation-id": name}, "path": "/", "status": 200}
            )
        await owner.error(3)
        await indexer.answer(name, Indexing.FAILED)
        assert (await answering).status_code == 500
    statuses = {error["status"] for error in owner.errors}
    assert statuses == {400}


# --- which request an ack is for


async def test_an_ack_for_an_earlier_request_is_not_for_a_later_one_with_its_correlation_id(
    client: httpx.AsyncClient, indexer: Indexer
) -> None:
    name, cid = new_id(), new_id()
    headers = {"correlation-id": cid}
    late = await put(client, name, headers=headers, timeout="200ms")
    assert late.status_code == 408
    answering = put(client, name, headers=headers)
    first, second = await indexer.asked(name, 2)
    indexer.acks.issue([(first, Indexing.WRITTEN)])
    indexer.acks.issue([(second, Indexing.FAILED)])  # comes after the other one, and counts
    assert (await answering).status_code == 500


async def test_a_correlation_id_that_is_open_is_refused(
    client: httpx.AsyncClient, indexer: Indexer
) -> None:
    name, other, cid = new_id(), new_id(), new_id()
    answering = put(client, name, headers={"correlation-id": cid})
    await indexer.asked(name)
    refused = await put(client, other, headers={"correlation-id": cid})
    check_error(refused, 409, "acknowledgement:request.duplicate.correlation-id")
    await indexer.answer(name, Indexing.WRITTEN)
    assert (await answering).status_code == 204


async def test_the_first_ack_counts(client: httpx.AsyncClient, indexer: Indexer) -> None:
    name = new_id()
    answering = put(client, name, f"twin-persisted,{SEARCH},{new_label()}", timeout="1s")
    asked = await indexer.answer(name, Indexing.WRITTEN)
    indexer.acks.issue([(asked, Indexing.FAILED), (asked, Indexing.UNCHANGED)])
    assert (await answering).json()[SEARCH]["status"] == 204


async def test_acks_of_requests_and_nodes_that_are_not_there(
    client: httpx.AsyncClient, indexer: Indexer
) -> None:
    name = new_id()
    answering = put(client, name)
    [asked] = await indexer.asked(name)
    strays = [
        asked._replace(correlation_id="unknown"),
        asked._replace(token=asked.token + 1_000_000),
        asked._replace(origin="0" * 16),
        asked._replace(origin="async"),
    ]
    indexer.acks.issue([(stray, Indexing.WRITTEN) for stray in strays])
    indexer.acks.issue([(asked, Indexing.FAILED)])
    assert (await answering).status_code == 500


# --- other wires


@pytest.mark.parametrize(
    ("indexing", "status"),
    [(Indexing.WRITTEN, 204), (Indexing.UNCHANGED, 200), (Indexing.FAILED, 500)],
)
async def test_over_websocket(
    gateway: Gateway, indexer: Indexer, indexing: Indexing, status: int
) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        cid = await caller.tell(
            topic_of(name, "create"), value={}, headers={"requested-acks": [SEARCH]}
        )
        await indexer.answer(name, indexing)
        answer = await caller.answer(cid)
        assert answer["topic"] == f"{name.replace(':', '/')}/things/twin/acks"
        assert answer["status"] == status
        weak = {"ditto-weak-ack": True} if indexing is Indexing.UNCHANGED else {}
        entry = {"status": status, "headers": {**FROM_SCRATCH, **weak}}
        assert answer["value"] == {SEARCH: entry}, "a lone ack is under its label here"
        cid = await caller.tell(
            topic_of(name, "merge"),
            "/attributes",
            value={"a": 1},
            headers={"requested-acks": ["twin-persisted", SEARCH]},
        )
        await indexer.answer(name, indexing, 2)
        answer = await caller.answer(cid)
        assert answer["value"][SEARCH] == entry
        assert answer["value"]["twin-persisted"]["status"] == 204
        cid = await caller.tell(topic_of(name, "delete"), headers={"requested-acks": [SEARCH]})
        await indexer.answer(name, indexing, 3)
        assert (await caller.answer(cid))["status"] == status


async def test_it_is_nothing_for_live_signals_queries_and_policies(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    name = new_id()
    wanted = {"requested-acks": SEARCH, "timeout": "5s"}
    assert (await client.put(thing(name), json={})).status_code == 201
    assert (await client.get(thing(name), params=wanted)).status_code == 200
    policy = f"/api/2/policies/{name}"
    document = (await client.get(policy)).json()
    assert (await client.put(policy, json=document, params=wanted)).status_code == 204
    # It is taken away, and nobody responds: the same as if it had not been there (spec 2.4).
    live = {"channel": "live", **wanted, "timeout": "200ms"}
    unanswered = await client.put(thing(name, "/attributes/a"), json=1, params=live)
    check_error(unanswered, 408, "command.timeout")
    unanswered = await client.post(thing(name, "/inbox/messages/m"), json=1, params=live)
    check_error(unanswered, 408, "command.timeout")


@pytest.mark.parametrize(("indexing", "status"), [(Indexing.WRITTEN, 204), (Indexing.FAILED, 500)])
async def test_of_a_request_that_nobody_waits_for(
    client: httpx.AsyncClient, indexer: Indexer, indexing: Indexing, status: int
) -> None:
    name = new_id()
    path = await put_async(client, name, requested_acks=f"twin-persisted,{SEARCH}")
    [asked] = await indexer.asked(name)
    body = await state(client, path)
    assert (body["state"], body["owed"]) == ("pending", [SEARCH])
    other: Asked = asked._replace(deadline=asked.deadline - 1)  # that of an earlier record
    indexer.acks.issue([(other, Indexing.UNCHANGED), (asked, indexing)])
    body = await reached(client, path, state="done")
    assert body["acks"][SEARCH] == {"status": status, "headers": FROM_SCRATCH}
    assert body["outcome"]["status"] == (200 if status == 204 else 424)
    indexer.acks.issue([(asked, Indexing.FAILED)])
    assert (await state(client, path))["acks"][SEARCH]["status"] == status


@pytest.mark.parametrize("link", ["auto", "off"])
async def test_the_indexer_may_be_anywhere(
    gateway: Gateway, store: RedisServer, client: httpx.AsyncClient, link: str
) -> None:
    """Over a link as well as over pub/sub, which carries what comes before there is a link."""
    async with Indexer.of(store, PREFIX, link) as indexer:
        names = [new_id() for _ in range(100)]
        for name in names:
            answering = put(client, name)
            await indexer.answer(name, Indexing.WRITTEN)
            assert (await answering).status_code == 204
        assert indexer.acks.issued == {Indexing.WRITTEN: 100}


async def test_what_became_of_it_is_recorded(
    client: httpx.AsyncClient, store: RedisServer, indexer: Indexer
) -> None:
    outcomes = Outcomes(store, PREFIX)
    try:
        for indexing, how, status in (
            (Indexing.WRITTEN, ANSWERED, 204),
            (Indexing.UNCHANGED, WEAK, 200),
            (Indexing.FAILED, ANSWERED, 500),
            (None, TIMED_OUT, 408),
        ):
            name = new_id()
            answering = put(client, name, timeout="5s" if indexing else "100ms")
            if indexing is not None:
                await indexer.answer(name, indexing)
            assert (await answering).status_code == status
            [record] = await outcomes.of(name)
            [result] = record.acks
            assert (record.status, result.label) == (status, SEARCH)
            assert (result.status, result.how) == (status, how)
            assert (result.us is None) is (how == TIMED_OUT)
    finally:
        outcomes.redis.close()


async def test_a_request_is_open_until_its_ack_is_there(place: Path, store: RedisServer) -> None:
    """A gateway that drains waits for it."""
    one = Gateway(place, redis_url=store.url, prefix=PREFIX, search_index="off")
    name = new_id()
    async with Indexer.of(store, PREFIX) as indexer:
        with running(one):
            async with http(one) as client:
                answering = put(client, name)
                await indexer.asked(name)
                one.terminate()
                await indexer.answer(name, Indexing.WRITTEN)
                assert (await answering).status_code == 204
            assert await one.ended() == 0
