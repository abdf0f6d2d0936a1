"""Connections in the store: every change is counted and told, a client has one owner at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from acks.errors import GatewayError
from app.store.connections import ConnectionStore
from app.store.redis_client import Redis, RedisAddress
from tests.servers import RedisServer, wait_for
from tests.streams import until

LONG = 60_000  # ms
SHORT = 100  # ms, a lease that a test can outlive
DEADLINE = 10  # seconds


def document(connection_id: str, **more: Any) -> dict[str, Any]:
    return {"id": connection_id, "connectionStatus": "closed", "uri": "tcp://broker:1883", **more}


@pytest.fixture
def store(redis: Redis, prefix: str) -> ConnectionStore:
    return ConnectionStore(redis, prefix)


@asynccontextmanager
async def told(server: RedisServer, store: ConnectionStore) -> AsyncIterator[list[str]]:
    """What is heard of changes while this is open."""
    heard: list[str] = []
    watcher = store.watch(RedisAddress.parse(server.url), heard.append, node="test")
    await watcher.start()
    try:
        yield heard
    finally:
        await watcher.close()


# --- documents


async def test_a_document_is_there_as_it_was_given(store: ConnectionStore) -> None:
    given = document("a:b_c-1", targets=[], sources=[{}], name="ä\n€", ttl=1.5, none=None)
    assert await store.get("a:b_c-1") is None
    assert await store.create(given) == 1
    stored = await store.get("a:b_c-1")
    assert stored is not None
    assert (stored.document, stored.revision, stored.commands) == (given, 1, {})


async def test_an_id_is_taken_once_and_the_number_is_bounded(store: ConnectionStore) -> None:
    await store.create(document("a"), most=2)
    with pytest.raises(GatewayError) as taken:
        await store.create(document("a", name="other"), most=2)
    await store.create(document("b"), most=2)
    with pytest.raises(GatewayError) as full:
        await store.create(document("c"), most=2)
    assert [taken.value.status, full.value.status] == [409, 409]
    assert "2 connections" in full.value.message
    assert [one.id for one in await store.list()] == ["a", "b"]
    assert await store.delete("a")
    assert await store.create(document("c"), most=2) == 1


async def test_documents_are_replaced_where_they_are(store: ConnectionStore) -> None:
    assert await store.replace("a", document("a")) is None
    await store.create(document("a"))
    assert await store.replace("a", document("a", name="second")) == 2
    assert await store.replace("a", document("a", name="third"), revision=2) == 3
    with pytest.raises(GatewayError) as late:
        await store.replace("a", document("a", name="late"), revision=2)
    assert late.value.code == "connectivity:connection.conflict"
    stored = await store.get("a")
    assert stored is not None
    assert (stored.document["name"], stored.revision) == ("third", 3)
    with pytest.raises(ValueError, match="another connection"):
        await store.replace("a", document("b"))


async def test_opening_keeps_what_others_change_meanwhile(store: ConnectionStore) -> None:
    assert await store.set_open("a", True) is None
    await store.create(document("a", count=0))

    async def rename() -> None:
        for count in range(10):
            await store.replace("a", document("a", count=count))

    await asyncio.gather(store.set_open("a", True), rename(), return_exceptions=True)
    await store.set_open("a", True)
    stored = await store.get("a")
    assert stored is not None
    assert stored.document == document("a", count=9) | {"connectionStatus": "open"}
    await store.set_open("a", False)
    stored = await store.get("a")
    assert stored is not None
    assert stored.document["connectionStatus"] == "closed"


async def test_a_deleted_connection_leaves_nothing(store: ConnectionStore) -> None:
    await store.create(document("a"))
    await store.create(document("a:b"))
    for name in ("a", "a:b"):
        assert await store.command(name, "enableConnectionLogs")
    assert await store.delete("a")
    assert not await store.delete("a")
    await store.create(document("a"))
    fresh, other = await store.list()
    assert (fresh.id, fresh.revision, fresh.commands) == ("a", 1, {})
    assert list(other.commands) == ["enableConnectionLogs"]


async def test_commands_are_given_later_every_time(store: ConnectionStore) -> None:
    assert await store.command("a", "resetConnectionLogs") is None
    await store.create(document("a"))
    given = [await store.command("a", "resetConnectionLogs") for _ in range(20)]
    moments = [moment for moment in given if moment is not None]
    assert len(moments) == 20
    assert moments == sorted(set(moments))
    stored = await store.get("a")
    assert stored is not None
    assert stored.commands == {"resetConnectionLogs": moments[-1]}
    with pytest.raises(ValueError, match="openConnection"):
        await store.command("a", "openConnection")


async def test_every_change_counts_and_is_told(shared: RedisServer, store: ConnectionStore) -> None:
    assert await store.version() == 0
    async with told(shared, store) as heard:
        assert heard == [""]
        await store.create(document("a"))
        await store.replace("a", document("a", name="n"))
        await store.set_open("a", True)
        await store.command("a", "resetConnectionMetrics")
        await store.delete("a")
        await wait_for(lambda: len(heard) == 6)
    assert heard == ["", *["a"] * 5]
    assert await store.version() == 5
    assert await store.snapshot() == (5, [])
    # What changes nothing is not told.
    await store.delete("a")
    await store.replace("a", document("a"))
    assert await store.version() == 5


async def test_two_prefixes_have_nothing_in_common(redis: Redis, prefix: str) -> None:
    one, other = ConnectionStore(redis, prefix), ConnectionStore(redis, f"{prefix}x")
    await one.create(document("a"))
    assert await one.claim("a", 0, "n", LONG) == 1
    assert await other.list() == []
    assert await other.owners("a") == {}
    assert await other.version() == 0


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "a" * 101, "a\n", "{x}"])
async def test_no_id_leaves_its_key(store: ConnectionStore, name: str) -> None:
    for attempt in (store.get(name), store.create(document(name)), store.claim(name, 0, "n", 1)):
        with pytest.raises(ValueError, match="not an id"):
            await attempt


# --- clients


async def test_a_client_has_one_owner(store: ConnectionStore) -> None:
    found = await asyncio.gather(*(store.claim("a", 0, f"n{i}", LONG) for i in range(10)))
    assert len([one for one in found if one]) == 1
    winner = f"n{next(i for i, one in enumerate(found) if one)}"
    assert await store.owners("a") == {0: winner}
    assert await store.claim("a", 1, "other", LONG)
    assert await store.claim("b", 0, "other", LONG)
    assert await store.owners("a") == {0: winner, 1: "other"}


async def test_generations_only_grow(store: ConnectionStore) -> None:
    found = []
    for node in ("n1", "n2", "n1", "n1"):
        generation = await store.claim("a", 0, node, LONG)
        found.append(generation)
        assert await store.release("a", 0, node, generation)
    assert found == sorted(set(found))
    assert await store.owners("a") == {}


async def test_who_claims_again_ends_his_old_lease(store: ConnectionStore) -> None:
    first = await store.claim("a", 0, "n", LONG)
    second = await store.claim("a", 0, "n", LONG)
    assert second > first > 0
    assert not await store.renew("a", 0, "n", first, LONG)
    assert not await store.release("a", 0, "n", first)
    assert await store.renew("a", 0, "n", second, LONG)
    assert not await store.renew("a", 0, "other", second, LONG)


async def test_a_lease_runs_out_and_is_fenced(store: ConnectionStore) -> None:
    old = await store.claim("a", 0, "dead", SHORT)
    heirs: list[int] = []

    async def taken() -> bool:
        heirs.append(await store.claim("a", 0, "heir", LONG))
        return heirs[-1] > 0

    await until(taken)
    assert heirs[-1] > old
    assert not await store.renew("a", 0, "dead", old, LONG)
    assert not await store.release("a", 0, "dead", old)
    assert await store.owners("a") == {0: "heir"}


async def test_renewing_keeps_a_lease(store: ConnectionStore) -> None:
    async with asyncio.timeout(DEADLINE):
        generation = await store.claim("a", 0, "n", SHORT)
        while not await store.renew("a", 0, "n", generation, LONG):
            generation = await store.claim("a", 0, "n", SHORT)
        assert await store.claim("a", 1, "n", SHORT)  # later, and not renewed

    async def first_is_left() -> bool:
        return await store.owners("a") == {0: "n"}

    await until(first_is_left)
    assert await store.claim("a", 0, "other", LONG) == 0


# --- shares


async def test_a_node_takes_its_share_while_others_are_there(store: ConnectionStore) -> None:
    for node in ("n", "other"):
        await store.present(node, LONG)
    found = [await store.claim("a", client, "n", LONG, 3) for client in range(3)]
    assert found[0] > 0
    assert found[1] > 0
    assert found[2] == -1
    assert await store.claim("b", 0, "n", LONG, 1) > 0, "of each connection"
    assert await store.claim("a", 1, "n", LONG, 3) > 0, "what it has it may claim anew"
    assert await store.claim("a", 2, "other", LONG, 3) > 0
    assert not await store.surplus("a", 1, "n", 3)


async def test_a_node_takes_all_where_it_is_alone(store: ConnectionStore) -> None:
    await store.present("n", LONG)
    await store.present("ended", LONG)
    await store.present("ended", 0)
    assert all([await store.claim("a", client, "n", LONG, 2) > 0 for client in range(2)])
    await store.present("gone", 1)

    async def alone() -> bool:
        return await store.claim("b", 1, "n", LONG, 2) > 0

    assert await store.claim("b", 0, "n", LONG, 2) > 0
    await until(alone)


async def test_a_node_that_comes_back_finds_a_surplus(store: ConnectionStore) -> None:
    await store.present("n", LONG)
    for client in range(3):
        assert await store.claim("a", client, "n", LONG, 3) > 0
    assert not any([await store.surplus("a", client, "n", 3) for client in range(3)])
    await store.present("back", LONG)
    assert [await store.surplus("a", client, "n", 3) for client in range(3)] == [0, 0, 1]
    assert not await store.surplus("a", 2, "back", 3)
    assert await store.claim("a", 2, "back", LONG, 3) == 0, "it is not free yet"


# --- reports


async def test_reports_are_those_of_the_owners(store: ConnectionStore) -> None:
    await store.claim("a", 0, "n0", LONG)
    assert await store.report("a", 1, "n1", {"client": 1, "logs": []}, LONG)
    assert await store.report("a", 0, "n0", {"client": 0, "text": "ä 1 2"}, LONG)
    assert not await store.report("a", 0, "stale", {"client": 0}, LONG)
    assert await store.reports("a") == [
        {"client": 0, "text": "ä 1 2"},
        {"client": 1, "logs": []},
    ]
    assert await store.reports("b") == []


async def test_reports_run_out(store: ConnectionStore) -> None:
    await store.report("a", 0, "n", {"client": 0}, LONG)
    await store.report("a", 1, "n", {"client": 1}, 1)

    async def one_is_left() -> bool:
        return len(await store.reports("a")) == 1

    await until(one_is_left)
    assert await store.reports("a") == [{"client": 0}]
