"""``search-persisted`` and the search: what is acknowledged is found at once, by whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.callers import Caller, topic_of
from tests.gateways import Gateway, http, new_id, running, thing
from tests.postgres import postgres_here
from tests.servers import RedisServer
from tests.streams import put_async, reached

SEARCH = "search-persisted"
BOTH = {"requested-acks": f"twin-persisted,{SEARCH}", "timeout": "30s"}
ONLY = {"requested-acks": SEARCH, "timeout": "30s"}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def index(request: pytest.FixtureRequest) -> Iterator[str]:
    """What ``search_index`` says; each database in turn."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    with postgres_here() as server:
        yield server.database()


@pytest.fixture(scope="module")
def gateway(
    store: RedisServer, index: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose index nobody else searches."""
    place = tmp_path_factory.mktemp("search-persisted")
    one = Gateway(place, redis_url=store.url, prefix=place.name, search_index=index)
    with running(one):
        yield one


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose index is built: a rebuild may be faster than a change's entry."""
    async with http(gateway, "devops") as operator:

        async def is_complete() -> bool:
            return bool((await operator.get("/devops/search")).json()["state"] == "complete")

        await eventually(is_complete)
    async with http(gateway) as client:
        yield client


async def found(client: httpx.AsyncClient, filter_: str, **params: str) -> list[dict[str, Any]]:
    """What a search finds now."""
    answer = await client.get(
        "/api/2/search/things", params={"filter": filter_, "option": "size(200)", **params}
    )
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def count(client: httpx.AsyncClient, filter_: str) -> int:
    """How much a search finds now."""
    answer = await client.get("/api/2/search/things/count", params={"filter": filter_})
    assert answer.status_code == 200, answer.text
    return int(answer.text)


def of(thing_id: str, *conditions: str) -> str:
    """A filter for one thing."""
    every = (f'eq(thingId,"{thing_id}")', *conditions)
    return f"and({','.join(every)})" if conditions else every[0]


async def test_every_way_to_change_a_thing(client: httpx.AsyncClient) -> None:
    name = new_id()
    merge = {"content-type": "application/merge-patch+json"}
    created = await client.put(thing(name), json={"attributes": {"n": 1}}, params=BOTH)
    assert created.status_code == 200, created.text
    statuses = {label: entry["status"] for label, entry in created.json().items()}
    assert statuses == {"twin-persisted": 201, SEARCH: 204}
    assert await count(client, of(name, "eq(attributes/n,1)")) == 1
    answer = await client.patch(
        thing(name), json={"attributes": {"n": 2}}, params=ONLY, headers=merge
    )
    assert answer.status_code == 204
    assert await count(client, of(name, "eq(attributes/n,2)")) == 1
    assert await count(client, of(name, "eq(attributes/n,1)")) == 0
    answer = await client.put(thing(name, "/features/f"), json={}, params=ONLY)
    assert answer.status_code == 204
    assert await count(client, of(name, "exists(features/f)")) == 1
    assert (await client.delete(thing(name, "/attributes/n"), params=ONLY)).status_code == 204
    assert await count(client, of(name, "exists(attributes/n)")) == 0
    assert await count(client, of(name)) == 1
    assert (await client.delete(thing(name), params=ONLY)).status_code == 204
    assert await found(client, of(name)) == []
    again = await client.put(thing(name), json={"policyId": name}, params=ONLY)
    assert again.status_code == 204
    assert await count(client, of(name)) == 1


async def test_over_websocket_and_of_requests_that_nobody_waits_for(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    async with Caller.open(gateway) as caller:
        asking = {"requested-acks": [SEARCH]}
        answer = await caller.ask(
            topic_of(name, "create"), value={"attributes": {"n": 1}}, headers=asking
        )
        assert (answer["status"], answer["value"][SEARCH]["status"]) == (204, 204)
        assert await count(client, of(name, "eq(attributes/n,1)")) == 1
        path = await put_async(client, name, "/attributes/n", json=2, requested_acks=SEARCH)
        body = await reached(client, path, state="done")
        assert body["outcome"]["status"] == 204
        assert await count(client, of(name, "eq(attributes/n,2)")) == 1
        answer = await caller.ask(topic_of(name, "delete"), headers=asking)
        assert answer["status"] == 204
        assert await count(client, of(name)) == 0


async def test_what_a_policy_allows_now_counts(gateway: Gateway, client: httpx.AsyncClient) -> None:
    """The requester finds its change, also if the policy that allows it is as new."""
    full = {"grant": ["READ", "WRITE"], "revoke": []}

    def subjects(*names: str) -> dict[str, Any]:
        return {f"nginx:{name}": {"type": "t"} for name in names}

    def policy(*readers: str) -> dict[str, Any]:
        everything = {"thing:/": full, "policy:/": full}
        entries = {"owner": {"subjects": subjects("ditto"), "resources": everything}}
        if readers:
            entries["more"] = {"subjects": subjects(*readers), "resources": {"thing:/": full}}
        return {"entries": entries}

    async with http(gateway, "user2") as user2:
        for _ in range(20):
            name, policy_id = new_id(), new_id()  # in different shards, mostly
            path = f"/api/2/policies/{policy_id}"
            assert (await client.put(path, json=policy())).status_code == 201
            document = {"policyId": policy_id, "attributes": {"n": 0}}
            assert (await client.put(thing(name), json=document, params=ONLY)).status_code == 204
            assert await count(user2, of(name)) == 0
            assert (await client.put(path, json=policy("user2"))).status_code == 204
            answer = await user2.put(thing(name, "/attributes/n"), json=1, params=ONLY)
            assert answer.status_code == 204, answer.text
            assert await count(user2, of(name, "eq(attributes/n,1)")) == 1


async def test_one_thing_and_many_writers(client: httpx.AsyncClient) -> None:
    """Each ack means that its revision or a newer one is found; so do weak acks."""
    name, statuses = new_id(), set()
    assert (await client.put(thing(name), json={}, params=ONLY)).status_code == 204

    async def write(writer: int) -> None:
        for number in range(25):
            path = thing(name, f"/attributes/w{writer}")
            answer = await client.put(path, json=number, params=BOTH)
            assert answer.status_code == 200, answer.text
            acks = answer.json()
            statuses.add(acks[SEARCH]["status"])
            revision = acks["twin-persisted"]["headers"]["entity-revision"]
            assert await count(
                client, of(name, f"ge(_revision,{revision})", f"eq(attributes/w{writer},{number})")
            )

    await asyncio.gather(*(write(writer) for writer in range(20)))
    assert statuses <= {200, 204}
    [item] = await found(client, of(name), fields="_revision,attributes")
    assert item["_revision"] == 501
    assert item["attributes"] == {f"w{writer}": 24 for writer in range(20)}


async def test_thousands_of_acks_and_each_is_true(
    gateway: Gateway, client: httpx.AsyncClient, index: str
) -> None:
    """Changes that ask for nothing go on meanwhile, and are in the index some time later."""
    checked = 0
    rounds = 100 if index == "sqlite" else 50
    stop = asyncio.Event()
    noisy = [new_id() for _ in range(2)]

    async def make_noise(name: str) -> int:
        number = 0
        while not stop.is_set():
            number += 1
            await client.put(thing(name), json={"attributes": {"noise": number}})
        return number

    async def write(writer: int) -> None:
        nonlocal checked
        name = new_id()
        # Over a connection of its own: the answer of a search must not wait for another request.
        async with http(gateway) as own:
            for number in range(1, rounds + 1):
                document = {"attributes": {"n": number, "w": writer, f"x{number % 7}": True}}
                if number % 25 == 0:
                    assert (await own.delete(thing(name), params=ONLY)).status_code == 204
                    assert await count(own, of(name)) == 0
                    document["policyId"] = name  # type: ignore[assignment]  # it is still there
                answer = await own.put(thing(name), json=document, params=ONLY)
                assert answer.status_code == 204, answer.text
                [item] = await found(
                    own, of(name, f"eq(attributes/n,{number})"), fields="thingId,attributes/n"
                )
                assert item == {"thingId": name, "attributes": {"n": number}}
                checked += 1

    noise = [asyncio.create_task(make_noise(name)) for name in noisy]
    await asyncio.gather(*(write(writer) for writer in range(20)))
    stop.set()
    last = await asyncio.gather(*noise)
    assert checked == 20 * rounds
    for name, number in zip(noisy, last, strict=True):

        async def is_there(wanted: str = of(name, f"eq(attributes/noise,{number})")) -> bool:
            return await count(client, wanted) == 1

        await eventually(is_there)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it is so."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - nobody here would set an event
            await asyncio.sleep(0.02)


async def test_a_change_before_the_indexer_is_there(store: RedisServer, place: Path) -> None:
    """The gateway takes requests before its indexer has begun: they wait, and are not early."""
    one = Gateway(place, redis_url=store.url, prefix=place.name, search_index="sqlite")
    for _ in range(2):  # without an index, then with one
        with running(one):
            async with http(one) as client:

                async def write(client: httpx.AsyncClient = client) -> None:
                    name = new_id()
                    answer = await client.put(thing(name), json={}, params=ONLY)
                    assert answer.status_code in (200, 204), answer.text
                    assert await count(client, of(name)) == 1

                await asyncio.gather(*(write() for _ in range(30)))
