"""Many writers of one thing, by every kind of change, on two gateway processes."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx

from tests.cluster.journal import assert_gap_free, revisions, twin
from tests.gateways import Gateway, http, new_id, thing
from tests.servers import RedisServer

WRITERS = 12
ROUNDS = 25
MERGE = {"content-type": "application/merge-patch+json"}


async def test_merges_puts_and_deletes_of_one_thing_lose_nothing(
    store: RedisServer, a: Gateway, b: Gateway
) -> None:
    """Each writer has an attribute of its own: what it wrote last must be there in the end."""
    name = new_id()
    answers: Counter[int] = Counter()

    async def write(client: httpx.AsyncClient, writer: int) -> None:
        for turn in range(ROUNDS):
            url = thing(name, f"/attributes/w{writer}")
            kind = (turn + writer) % 3
            if kind == 0:
                answer = await client.put(url, json=turn)
            elif kind == 1:
                patch = {"attributes": {f"w{writer}": turn}}
                answer = await client.patch(thing(name), json=patch, headers=MERGE)
            else:
                answer = await client.delete(url)
                assert answer.status_code == 204, answer.text
                answer = await client.put(url, json=turn)
            assert answer.status_code in (201, 204), answer.text
            answers[answer.status_code] += 1

    async with http(a) as on_a, http(b) as on_b:
        start = {f"w{writer}": -1 for writer in range(WRITERS)}
        await on_a.put(thing(name), json={"attributes": start})
        await asyncio.gather(
            *(write((on_a, on_b)[writer % 2], writer) for writer in range(WRITERS))
        )
        found = (await on_a.get(thing(name, "/attributes"))).json()
    assert found == {f"w{writer}": ROUNDS - 1 for writer in range(WRITERS)}
    journal = revisions(store.url, "pair")
    assert_gap_free({name: journal[name]})
    deletes = sum((turn + writer) % 3 == 2 for turn in range(ROUNDS) for writer in range(WRITERS))
    assert len(journal[name]) == 1 + WRITERS * ROUNDS + deletes
    assert twin(store.url, name, "pair")[0] == len(journal[name])
    assert answers[201] == deletes


async def test_of_many_conditional_writers_one_wins_each_revision(a: Gateway, b: Gateway) -> None:
    """Compare and set by ``if-match``: a counter that all of them raise misses no step."""
    name = new_id()

    async def count(client: httpx.AsyncClient) -> int:
        refused = 0
        for _ in range(10):
            while True:
                found = await client.get(thing(name))
                value = found.json()["attributes"]["n"] + 1
                answer = await client.put(
                    thing(name),
                    json={"attributes": {"n": value}},
                    headers={"if-match": found.headers["etag"]},
                )
                if answer.status_code == 204:
                    break
                assert answer.status_code == 412, answer.text
                refused += 1
        return refused

    async with http(a) as on_a, http(b) as on_b:
        await on_a.put(thing(name), json={"attributes": {"n": 0}})
        await asyncio.gather(*(count(client) for client in (on_a, on_b) for _ in range(4)))
        assert (await on_b.get(thing(name, "/attributes/n"))).json() == 80


async def test_a_thing_that_is_made_and_deleted_by_many_has_one_line_of_revisions(
    store: RedisServer, a: Gateway, b: Gateway
) -> None:
    name = new_id()

    async def churn(client: httpx.AsyncClient) -> None:
        for _ in range(15):
            made = await client.put(thing(name), json={"policyId": name})
            assert made.status_code in (201, 204), made.text
            gone = await client.delete(thing(name))
            assert gone.status_code in (204, 404), gone.text

    async with http(a) as on_a, http(b) as on_b:
        await on_a.put(thing(name), json={})
        await asyncio.gather(*(churn(client) for client in (on_a, on_b) for _ in range(3)))
    journal = revisions(store.url, "pair")
    assert_gap_free({name: journal[name]})
    assert len(journal[name]) > 30
