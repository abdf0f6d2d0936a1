"""The search over WebSocket: what a client gets that subscribes, requests pages and cancels."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.callers import Caller, check_error
from tests.gateways import Gateway, Json, http, running
from tests.servers import RedisServer, wait_for

SEARCH = "_/_/things/twin/search"
INDEXED = {"requested-acks": "search-persisted", "timeout": "20s"}


class Found:
    """A search of ``caller``: its id and what has come of it."""

    def __init__(self, caller: Caller, subscription_id: str) -> None:
        self.caller = caller
        self.id = subscription_id

    @classmethod
    async def by(cls, caller: Caller, fields: str | None = None, **value: Any) -> Found:
        """Subscribe and wait for the id."""
        more = {} if fields is None else {"fields": fields}
        created = await caller.ask(f"{SEARCH}/subscribe", value=value, **more)
        assert created["topic"] == f"{SEARCH}/created", created
        assert created["path"] == "/"
        assert list(created["value"]) == ["subscriptionId"]
        return cls(caller, created["value"]["subscriptionId"])

    async def request(self, pages: int, **headers: Any) -> str:
        """Request pages; the correlation-id."""
        value = {"subscriptionId": self.id, "demand": pages}
        return await self.caller.tell(f"{SEARCH}/request", value=value, headers=headers)

    async def cancel(self) -> None:
        await self.caller.tell(f"{SEARCH}/cancel", value={"subscriptionId": self.id})

    @property
    def frames(self) -> list[Json]:
        """All that came of this search after its id."""
        return [
            frame
            for frame in self.caller.frames
            if frame["topic"].startswith(SEARCH)
            and frame["value"]["subscriptionId"] == self.id
            and not frame["topic"].endswith("/created")
        ]

    async def until(self, *actions: str) -> list[Json]:
        """Wait for so many frames, assert that they are these, and return them."""
        await wait_for(lambda: len(self.frames) >= len(actions), 15, f"{actions}, {self.frames}")
        assert [frame["topic"].rpartition("/")[2] for frame in self.frames] == list(actions)
        return self.frames

    async def all(self) -> list[list[Json]]:
        """Everything it finds, in its pages."""
        await self.request(2**63 - 1)
        await wait_for(lambda: self.frames and not self.frames[-1]["topic"].endswith("/next"), 15)
        *pages, last = self.frames
        assert last["topic"] == f"{SEARCH}/complete", last
        return [page["value"]["items"] for page in pages]


async def failure(found: Found) -> Json:
    """The error of a search that has failed without a page."""
    last = (await found.until("failed"))[-1]
    problem: Json = last["value"]["error"]
    return problem


async def make(client: httpx.AsyncClient, thing_id: str, thing: Json) -> None:
    """Create a thing, and wait until the search knows it."""
    made = await client.put(f"/api/2/things/{thing_id}", json=thing, headers=INDEXED)
    assert made.status_code < 300, made.text


@pytest.fixture
async def namespace(client: httpx.AsyncClient) -> str:
    """A namespace with five lamps: ``l0`` to ``l4``, of ``attributes/n`` 0 to 4."""
    name = f"ws.search.n{uuid.uuid4().hex[:10]}"
    things = [(f"{name}:l{n}", {"attributes": {"n": n, "odd": n % 2 == 1}}) for n in range(5)]
    await asyncio.gather(*(make(client, *one) for one in things))
    return name


def names(pages: list[list[Json]]) -> list[list[str]]:
    """The names of the things of pages."""
    return [[thing["thingId"].partition(":")[2] for thing in page] for page in pages]


async def test_a_search_from_its_beginning_to_its_end(gateway: Gateway, namespace: str) -> None:
    async with Caller.open(gateway) as caller:
        found = await Found.by(
            caller,
            "thingId,attributes/n",
            filter="gt(attributes/n,0)",
            options="size(2),sort(-attributes/n)",
            namespaces=[namespace],
        )
        first = await found.request(1, **{"my-header": "x"})
        (page,) = await found.until("next")
        assert page == {
            "topic": f"{SEARCH}/next",
            "headers": {
                "content-type": "application/json", "correlation-id": first, "my-header": "x",
            },
            "path": "/",
            "value": {
                "subscriptionId": found.id,
                "items": [
                    {"thingId": f"{namespace}:l4", "attributes": {"n": 4}},
                    {"thingId": f"{namespace}:l3", "attributes": {"n": 3}},
                ],
            },
        }  # fmt: skip
        second = await found.request(5)
        _, page, end = await found.until("next", "next", "complete")
        assert names([page["value"]["items"]]) == [["l2", "l1"]]
        assert end == {
            "topic": f"{SEARCH}/complete",
            "headers": {"content-type": "application/json", "correlation-id": second},
            "path": "/",
            "value": {"subscriptionId": found.id},
        }


async def test_ways_to_name_what_is_searched(gateway: Gateway, namespace: str) -> None:
    async with Caller.open(gateway) as caller:
        everything = await Found.by(caller, namespaces=[namespace])
        assert names(await everything.all()) == [["l0", "l1", "l2", "l3", "l4"]]
        odd = await Found.by(
            caller, filter="eq(attributes/odd,true)", options="size(1)", namespaces=[namespace]
        )
        assert names(await odd.all()) == [["l1"], ["l3"]]
        none = await Found.by(caller, filter="eq(attributes/n,99)", namespaces=[namespace])
        assert await none.all() == []
        by_topic = f"{namespace}/_/things/twin/search/subscribe"
        created = await caller.ask(by_topic, value={"filter": "ge(attributes/n,3)"})
        of_topic = Found(caller, created["value"]["subscriptionId"])
        assert names(await of_topic.all()) == [["l3", "l4"]]
        assert len({everything.id, odd.id, none.id, of_topic.id}) == 4
        created = await caller.ask(
            f"{SEARCH}/subscribe",
            value={"namespaces": [namespace]},
            headers={"condition": "eq(attributes/n,2)"},
        )
        conditional = Found(caller, created["value"]["subscriptionId"])
        assert names(await conditional.all()) == [["l2"]]


async def test_pages_hold_what_the_things_are_now(
    gateway: Gateway, namespace: str, client: httpx.AsyncClient
) -> None:
    async with Caller.open(gateway) as caller:
        found = await Found.by(caller, options="size(2)", namespaces=[namespace])
        await found.request(1)
        await found.until("next")
        path = f"/api/2/things/{namespace}:l2"
        assert (await client.delete(path)).status_code == 204
        changed = await client.put(f"/api/2/things/{namespace}:l3/attributes/n", json=33)
        assert changed.status_code == 204
        await found.request(2)
        frames = await wait_for_end(found)
        things = [thing for frame in frames[1:-1] for thing in frame["value"]["items"]]
        assert names([things]) == [["l3", "l4"]]
        assert things[0]["attributes"]["n"] == 33


async def wait_for_end(found: Found) -> list[Json]:
    """Everything that came, once the search is complete."""
    await wait_for(lambda: found.frames[-1]["topic"].endswith("/complete"), 15)
    return found.frames


async def test_others_find_what_they_may_read(gateway: Gateway, namespace: str) -> None:
    mine = f"{namespace}:shown"
    read = {"grant": ["READ"], "revoke": []}
    everything = {"grant": ["READ", "WRITE"], "revoke": []}
    policy = {
        "entries": {
            "owner": {
                "subjects": {"nginx:ditto": {"type": "t"}},
                "resources": {"thing:/": everything, "policy:/": everything},
            },
            "reader": {
                "subjects": {"nginx:user2": {"type": "t"}},
                "resources": {"thing:/attributes/open": read},
            },
        }
    }
    attributes = {"open": 1, "closed": 2}
    async with http(gateway) as client:
        await make(client, mine, {"attributes": attributes, "_policy": policy})
    async with Caller.open(gateway, user="user2") as caller:
        found = await Found.by(caller, namespaces=[namespace])
        (page,) = await found.all()
        assert [thing["attributes"] for thing in page] == [{"open": 1}]
        for hidden in ("exists(attributes/closed)", "not(exists(attributes/open))"):
            blind = await Found.by(caller, filter=hidden, namespaces=[namespace])
            assert await blind.all() == []


async def test_nothing_comes_after_a_cancel(gateway: Gateway, namespace: str) -> None:
    async with Caller.open(gateway) as caller:
        found = await Found.by(caller, options="size(1)", namespaces=[namespace])
        await found.request(1)
        await found.until("next")
        await found.cancel()
        await found.cancel()
        late = await found.request(1)
        problem = (await caller.answer(late))["value"]["error"]
        assert problem["error"] == "thing-search:subscription.protocol.error"
        await found.until("next", "failed")


@pytest.mark.parametrize(
    ("value", "fields", "code"),
    [
        ({"filter": "eq(attributes/a)"}, None, "rql.expression.invalid"),
        ({"options": "size(0)"}, None, "thing-search:search.option.invalid"),
        ({"options": "size(1),cursor(abc)"}, None, "thing-search:search.option.invalid"),
        ({"options": "limit(0,10)"}, None, "thing-search:search.option.invalid"),
        ({"namespaces": ["no space"]}, None, "thing-search:search.namespaces.invalid"),
        ({}, "thingId,", "json.fieldselector.invalid"),
    ],
)
async def test_searches_that_fail_at_once(
    gateway: Gateway, value: Json, fields: str | None, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        found = await Found.by(caller, fields, **value)
        problem = await failure(found)
        assert (problem["error"], problem["status"]) == (code, 400)


async def test_a_demand_of_nothing(gateway: Gateway) -> None:
    async with Caller.open(gateway) as caller:
        found = await Found.by(caller)
        await found.request(0)
        problem = await failure(found)
        assert problem["error"] == "thing-search:subscription.protocol.error"
        assert problem["message"].startswith("Rule 3.9")


async def test_ids_belong_to_their_session(gateway: Gateway, namespace: str) -> None:
    async with Caller.open(gateway) as caller, Caller.open(gateway) as other:
        found = await Found.by(caller, namespaces=[namespace])
        foreign = Found(other, found.id)
        await foreign.request(1)
        problem = await failure(foreign)
        assert (problem["error"], problem["status"]) == ("thing-search:subscription.not.found", 404)
        assert len(await found.all()) == 1


@pytest.mark.parametrize(
    ("action", "fields", "code"),
    [
        ("subscribe", {"value": []}, "json.format.invalid"),
        ("subscribe", {"value": {"filter": 5}}, "json.format.invalid"),
        ("subscribe", {"fields": 5}, "json.format.invalid"),
        ("request", {"value": {"demand": 1}}, "json.field.missing"),
        ("request", {"value": {"subscriptionId": "0", "demand": 0.5}}, "json.format.invalid"),
        ("cancel", {}, "json.field.missing"),
        ("cancel", {"value": {"subscriptionId": "0"}, "headers": {"timeout": "x"}},
         "timeout.invalid"),
    ],
)  # fmt: skip
async def test_frames_that_are_no_search(
    gateway: Gateway, action: str, fields: Json, code: str
) -> None:
    async with Caller.open(gateway) as caller:
        check_error(await caller.ask(f"{SEARCH}/{action}", **fields), 400, code)


async def test_without_an_index_a_search_fails(store: RedisServer, place: Path) -> None:
    gateway = Gateway(place, redis_url=store.url, prefix="search-off", search_index="off")
    with running(gateway):
        async with Caller.open(gateway) as caller:
            found = await Found.by(caller)
            await found.request(1)
            problem = await failure(found)
            assert (problem["error"], problem["status"]) == ("gateway:service.unavailable", 503)


async def test_searches_end_with_their_session(
    gateway: Gateway, namespace: str, client: httpx.AsyncClient
) -> None:
    async with Caller.open(gateway) as caller:
        found = await Found.by(caller, options="size(1)", namespaces=[namespace])
        await found.request(2**63 - 1)
    assert (await client.get("/health/ready")).status_code == 200
    assert not gateway.events("search.subscription_failed")
    assert not gateway.events("ws.session_failed")
