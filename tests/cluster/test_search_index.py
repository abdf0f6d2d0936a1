"""The search index over crashes, restarts and rebuilds: who works on which shard, what it holds."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from acks.journal import DEFAULT_SHARDS, journal_key, meta_key, shard_of, twin_key
from app.search.child import NICE
from tests.gateways import Gateway, alive, http, new_id, running, thing
from tests.servers import RedisServer, redis_server, wait_for

DEADLINE = 30.0
INDEXED = (204, 200)
"""The second if a rebuild, or an earlier entry of the same thing, has brought it there already."""
PREFIX = "search"
ASKING = {"requested-acks": "search-persisted", "timeout": "20s"}

Json = dict[str, Any]


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A store that a test may hurt."""
    with redis_server() as server:
        yield server


def niceness(pid: int | None) -> tuple[int, int | None]:
    """What a process, and its session, yield to others; None if the kernel weighs no sessions."""
    if pid is None:
        return 0, None
    group = Path(f"/proc/{pid}/autogroup")
    weighed = group.exists() and group.read_text()
    return os.getpriority(os.PRIO_PROCESS, pid), int(weighed.split()[-1]) if weighed else None


def gateway(
    place: Path, store: RedisServer, search_index: str = "sqlite", workers: str = "1"
) -> Gateway:
    """Gateways of one place share the index there."""
    return Gateway(
        place, redis_url=store.url, prefix=PREFIX, search_index=search_index, workers=workers
    )


@pytest.fixture
def two(tmp_path: Path, own: RedisServer) -> Iterator[tuple[Gateway, Gateway]]:
    one, other = gateway(tmp_path, own), gateway(tmp_path, own)
    with running(one, other):
        yield one, other


@pytest.fixture
async def client(two: tuple[Gateway, Gateway]) -> AsyncIterator[httpx.AsyncClient]:
    async with http(two[0]) as client:
        yield client


async def until(
    read: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool], deadline: float = DEADLINE
) -> Any:
    """Read again and again until that holds; what was read then."""
    end = time.monotonic() + deadline
    while not holds(found := await read()):
        assert time.monotonic() < end, found
        await asyncio.sleep(0.02)
    return found


async def status(on: Gateway) -> Json:
    async with http(on, "devops") as operator:
        answer = await operator.get("/devops/search")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def settled(on: Gateway) -> Json:
    """The status once the index is complete and nothing is behind."""
    return await until(  # type: ignore[no-any-return]  # it returns what it reads
        lambda: status(on), lambda found: found["state"] == "complete" and found["lagMs"] == 0
    )


async def rebuilt(on: Gateway) -> Json:
    """Have the index built anew; the status when that is done."""
    async with http(on, "devops") as operator:
        answer = await operator.post("/devops/search/rebuild")
    assert answer.status_code == 202, answer.text
    assert answer.json()["rebuild"]["shards"] == DEFAULT_SHARDS
    return await settled(on)


def owners(found: Json) -> dict[str, int]:
    """How many shards each indexer has."""
    counts: dict[str, int] = {}
    for shard in found.get("shards", ()):
        if shard["owner"]:
            counts[shard["owner"]] = counts.get(shard["owner"], 0) + 1
    return counts


async def put(client: httpx.AsyncClient, name: str, value: object, **query: str) -> int:
    answer = await client.put(thing(name), json={"attributes": {"v": value}}, params=query)
    return answer.status_code


async def value_of(client: httpx.AsyncClient, name: str) -> Any:
    """The value that the index has of a thing, found by searching for all it could be."""
    answer = await client.get(
        "/api/2/search/things", params={"filter": f'eq(thingId,"{name}")', "fields": "attributes/v"}
    )
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    return items[0]["attributes"]["v"] if items else None


async def matches(client: httpx.AsyncClient, expression: str) -> int:
    answer = await client.get("/api/2/search/things/count", params={"filter": expression})
    assert answer.status_code == 200, answer.text
    return int(answer.text)


def on_shard(shard: int) -> str:
    """A new id whose thing is on this shard."""
    while shard_of(name := new_id(), DEFAULT_SHARDS) != shard:
        pass
    return name


# --- who works on what


async def test_two_indexers_share_the_shards_and_leave_them_to_the_one_that_stays(
    two: tuple[Gateway, Gateway],
) -> None:
    one, other = two
    shared = await until(lambda: status(one), lambda found: list(owners(found).values()) == [4, 4])
    assert shared["indexers"] == 2
    other.stop()
    left = await until(lambda: status(one), lambda found: list(owners(found).values()) == [8])
    assert left["indexers"] == 1
    # In peace: nothing was missed, so nothing had to be built again.
    assert len(one.events("search.rebuild_started")) <= DEFAULT_SHARDS


async def test_a_third_indexer_gets_its_share(
    two: tuple[Gateway, Gateway], tmp_path: Path, own: RedisServer
) -> None:
    with running(gateway(tmp_path, own)):
        await until(
            lambda: status(two[0]), lambda found: sorted(owners(found).values()) == [2, 3, 3]
        )


async def test_an_indexer_that_is_killed_is_restarted_and_goes_on(
    two: tuple[Gateway, Gateway], client: httpx.AsyncClient
) -> None:
    one, _ = two
    await settled(one)
    names = [on_shard(shard) for shard in range(DEFAULT_SHARDS)]
    before = one.indexer_pid()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    done = await asyncio.gather(*(put(client, name, 1, **ASKING) for name in names))
    assert set(done) <= set(INDEXED)
    for name in names:
        assert await matches(client, f'and(eq(thingId,"{name}"),eq(attributes/v,1))') == 1
    await wait_for(lambda: one.indexer_pid() not in (None, before))


async def test_an_indexer_takes_less_of_the_processor_than_its_gateway(
    two: tuple[Gateway, Gateway],
) -> None:
    one, _ = two
    await settled(one)
    usual = os.getpriority(os.PRIO_PROCESS, one.child.pid)
    # Its own niceness says nothing where sessions are weighed against each other.
    await wait_for(
        lambda: niceness(one.indexer_pid()) in ((usual + NICE, NICE), (usual + NICE, None)),
        what="a nice indexer",
    )


async def test_a_gateway_that_is_killed_leaves_no_process_and_its_shards_are_taken_over(
    two: tuple[Gateway, Gateway],
) -> None:
    one, other = two
    await until(lambda: status(one), lambda found: list(owners(found).values()) == [4, 4])
    indexer = other.indexer_pid()
    assert indexer is not None
    names = [on_shard(shard) for shard in range(DEFAULT_SHARDS)]
    other.kill9()
    async with http(one) as client:
        done = await asyncio.gather(*(put(client, name, "x", **ASKING) for name in names))
        assert set(done) <= set(INDEXED)
        assert await matches(client, 'eq(attributes/v,"x")') == 8
    await wait_for(lambda: not alive(indexer), 5)
    assert owners(await status(one)) == {f"{_node(one)}-index": 8}


async def test_a_gateway_that_ends_takes_its_indexer_along(
    tmp_path: Path, own: RedisServer
) -> None:
    one = gateway(tmp_path, own)
    with running(one):
        await settled(one)
        indexer = one.indexer_pid()
    assert indexer is not None
    assert not alive(indexer)
    assert one.events("search.indexer_killed") == []
    assert one.events("search.indexer_ended") == []


def _node(one: Gateway) -> str:
    return str(one.events("gateway.started")[-1]["node"])


async def test_a_gateway_with_an_index_of_its_own_waits_for_that(
    tmp_path: Path, own: RedisServer
) -> None:
    places = [tmp_path / "one", tmp_path / "other"]
    for place in places:
        place.mkdir()
    one, other = (gateway(place, own) for place in places)
    with running(one, other):
        for on in (one, other):
            assert owners(await settled(on)) == {f"{_node(on)}-index": 8}
        async with http(one) as client, http(other) as there:
            for number in range(50):
                name = new_id()
                for asked in (client, there):
                    assert await put(asked, name, number, **ASKING) in INDEXED
                    found = await matches(asked, f'and(eq(thingId,"{name}"),exists(attributes/v))')
                    assert found == 1
            indexer = one.indexer_pid()
            assert indexer is not None
            os.kill(indexer, signal.SIGSTOP)
            try:
                # The other one has it in no time, but that is not the index that is asked here.
                late = await put(client, new_id(), 1, **{**ASKING, "timeout": "1s"})
                assert late == 408
                assert await put(there, new_id(), 1, **ASKING) in INDEXED
            finally:
                os.kill(indexer, signal.SIGCONT)


async def test_every_worker_of_a_gateway_has_an_indexer(tmp_path: Path, own: RedisServer) -> None:
    one = gateway(tmp_path, own, workers="2")
    with running(one):
        found = await until(
            lambda: status(one), lambda found: sorted(owners(found).values()) == [4, 4]
        )
    assert found["indexers"] == 2


async def test_the_metrics_tell_of_the_indexer(tmp_path: Path, own: RedisServer) -> None:
    with running(one := gateway(tmp_path, own)):
        async with http(one) as client, http(one, "devops") as operator:
            assert await put(client, new_id(), 1, **ASKING) in INDEXED

            async def figures() -> dict[str, float]:
                lines = (await operator.get("/metrics")).text.splitlines()
                found = [line.split() for line in lines if line.startswith("ackgate_search")]
                return {name: float(figure) for name, figure in found}

            found = await until(
                figures, lambda figures: figures['ackgate_search_acks_total{worker="0"}'] == 1
            )
    assert found['ackgate_search_indexer_up{worker="0"}'] == 1
    assert found['ackgate_search_shards{worker="0"}'] == DEFAULT_SHARDS
    assert found['ackgate_search_lag_seconds{shard="0",worker="0"}'] == 0
    assert found['ackgate_search_rebuilds_finished_total{worker="0"}'] == DEFAULT_SHARDS


# --- what it holds after breaks


async def test_what_is_written_while_no_indexer_runs_is_indexed_afterwards(
    tmp_path: Path, own: RedisServer
) -> None:
    changed, gone, new = new_id(), new_id(), new_id()
    with running(first := gateway(tmp_path, own)):
        async with http(first) as client:
            for name in (changed, gone):
                assert await put(client, name, "old", **ASKING) in INDEXED
    with running(without := gateway(tmp_path, own, search_index="off")):
        async with http(without) as client:
            await put(client, changed, "new")
            await put(client, new, "new")
            await client.delete(thing(gone))
    with running(again := gateway(tmp_path, own)):
        await settled(again)
        async with http(again) as client:
            assert await matches(client, 'eq(attributes/v,"old")') == 0
            assert await matches(client, 'eq(attributes/v,"new")') == 2
        # It went on where it was.
        assert again.events("search.rebuild_started") == []


async def test_a_journal_that_was_trimmed_beyond_the_bookmark_means_a_rebuild(
    tmp_path: Path, own: RedisServer
) -> None:
    names = [on_shard(3) for _ in range(3)]
    with running(first := gateway(tmp_path, own)):
        async with http(first) as client:
            for name in names:
                assert await put(client, name, "old", **ASKING) in INDEXED
    with running(without := gateway(tmp_path, own, search_index="off")):
        async with http(without) as client:
            await put(client, names[0], "new")
            await client.delete(thing(names[1]))
            store = redis.Redis(unix_socket_path=str(own.socket))
            assert store.xtrim(journal_key(PREFIX, 3), maxlen=0, approximate=False) == 5
            store.close()
    with running(again := gateway(tmp_path, own)):
        await wait_for(lambda: again.events("search.rebuild_finished"))
        async with http(again) as client:
            assert await matches(client, 'eq(attributes/v,"old")') == 1
            assert await matches(client, 'eq(attributes/v,"new")') == 1
        assert [e["shard"] for e in again.events("search.rebuild_finished")] == [3]
    # Once is enough, though nothing has been written to that journal since.
    with running(third := gateway(tmp_path, own)):
        await settled(third)
        await wait_for(lambda: len(third.events("search.shard_taken")) == DEFAULT_SHARDS)
    assert len(third.events("search.rebuild_started")) == 0


async def test_data_from_before_the_search_is_indexed(tmp_path: Path, own: RedisServer) -> None:
    names = [new_id() for _ in range(300)]
    with running(without := gateway(tmp_path, own, search_index="off")):
        async with http(without) as client:
            await asyncio.gather(*(put(client, name, "old") for name in names))
    with running(one := gateway(tmp_path, own)):
        found = await settled(one)
        assert found["things"] == 300
        async with http(one) as client:
            assert await matches(client, 'eq(attributes/v,"old")') == 300


async def test_a_store_that_has_lost_its_newest_entries_means_a_rebuild(
    tmp_path: Path, own: RedisServer
) -> None:
    name = on_shard(2)
    with running(one := gateway(tmp_path, own)):
        async with http(one) as client:
            assert await put(client, name, "kept", **ASKING) in INDEXED
            store = redis.Redis(unix_socket_path=str(own.socket))
            key = twin_key(PREFIX, 2, name)
            copies: Any = [(place, store.dump(place)) for place in (key, journal_key(PREFIX, 2))]
            assert await put(client, name, "lost", **ASKING) in INDEXED
            # As after a restart from an older copy.
            for place, copy in copies:
                store.restore(place, 0, copy, replace=True)
            store.client_kill_filter(_type="normal", skipme=True)
            store.close()
            await until(lambda: matches(client, 'eq(attributes/v,"kept")'), lambda n: n == 1)
            assert await matches(client, 'eq(attributes/v,"lost")') == 0


# --- rebuilds


async def test_a_rebuild_under_load_ends_with_what_is_in_the_store(
    two: tuple[Gateway, Gateway], own: RedisServer
) -> None:
    one, other = two
    names = [new_id() for _ in range(200)]
    async with http(one) as client, http(other) as there:
        await asyncio.gather(*(put(client, name, 0) for name in names))
        await settled(one)
        stray = new_id()
        assert await put(client, stray, "stray", **ASKING) in INDEXED
        store = redis.Redis(unix_socket_path=str(own.socket))
        store.delete(twin_key(PREFIX, shard_of(stray, DEFAULT_SHARDS), stray))
        store.close()
        assert await matches(client, 'eq(attributes/v,"stray")') == 1

        stop = asyncio.Event()
        answers: list[int] = []

        async def write(on: httpx.AsyncClient, mine: list[str]) -> None:
            number = 0
            while not stop.is_set():
                for name in mine:
                    number += 1
                    answers.append(await put(on, name, number, **ASKING))
                    found = await matches(
                        on, f'and(eq(thingId,"{name}"),ge(attributes/v,{number}))'
                    )
                    assert found == 1, name

        writers = [
            asyncio.create_task(write((client, there)[n % 2], names[n * 10 : n * 10 + 10]))
            for n in range(4)
        ]
        for _ in range(2):
            await rebuilt_under_load(one)
        stop.set()
        await asyncio.gather(*writers)
        assert set(answers) <= set(INDEXED)
        await settled(one)
        assert await matches(client, 'eq(attributes/v,"stray")') == 0
        assert await matches(client, "exists(attributes/v)") == 200


async def rebuilt_under_load(on: Gateway) -> None:
    """Have the index built anew and wait for the end, though there is always something new."""
    async with http(on, "devops") as operator:
        assert (await operator.post("/devops/search/rebuild")).status_code == 202
    await until(lambda: status(on), lambda found: found.get("rebuild", {}).get("shards") == 0)


async def test_an_index_of_other_data_is_not_used_until_it_is_built_anew(
    tmp_path: Path, own: RedisServer
) -> None:
    old, new = new_id(), new_id()
    with running(first := gateway(tmp_path, own)):
        async with http(first) as client:
            assert await put(client, old, "old", **ASKING) in INDEXED
    store = redis.Redis(unix_socket_path=str(own.socket))
    assert store.hget(meta_key(PREFIX), "id")
    store.flushall()
    store.close()
    with running(again := gateway(tmp_path, own)):
        async with http(again) as client:
            found = await status(again)
            assert found["state"] == "unavailable"
            assert "other data" in found["reason"]
            assert (await client.get("/api/2/search/things")).status_code == 503
            await put(client, new, "new")
            async with http(again, "devops") as operator:
                answer = await operator.post("/devops/search/rebuild")
                assert answer.status_code == 202
            await settled(again)
            await until(
                lambda: _found(client), lambda items: [i["thingId"] for i in items] == [new]
            )


async def _found(client: httpx.AsyncClient) -> Any:
    answer = await client.get("/api/2/search/things")
    return answer.json().get("items", [])


# --- policies


async def test_a_changed_policy_changes_what_is_found(
    two: tuple[Gateway, Gateway], client: httpx.AsyncClient
) -> None:
    name, shared = new_id(), new_id()
    all_ = {"grant": ["READ", "WRITE"], "revoke": []}
    entries: Json = {
        "owner": {
            "subjects": {"nginx:ditto": {"type": "t"}},
            "resources": {"policy:/": all_, "thing:/": all_},
        }
    }
    guest = {
        "subjects": {"nginx:user2": {"type": "t"}},
        "resources": {"thing:/": {"grant": ["READ"], "revoke": []}},
    }
    policy = f"/api/2/policies/{shared}"
    assert (await client.put(policy, json={"entries": entries})).status_code == 201
    made = await client.put(
        thing(name), json={"policyId": shared, "attributes": {"v": 1}}, params=ASKING
    )
    assert made.status_code in INDEXED
    async with http(two[1], "user2") as user2:
        assert await matches(user2, "exists(attributes/v)") == 0
        for _ in range(2):
            answer = await client.put(f"{policy}/entries/guest", json=guest)
            assert answer.status_code in (201, 204)
            await until(lambda: matches(user2, "exists(attributes/v)"), lambda n: n == 1)
            assert (await client.delete(f"{policy}/entries/guest")).status_code == 204
            await until(lambda: matches(user2, "exists(attributes/v)"), lambda n: n == 0)
    assert await matches(client, "exists(attributes/v)") == 1


async def test_a_policy_made_again_with_its_thing_counts(
    two: tuple[Gateway, Gateway], client: httpx.AsyncClient
) -> None:
    name = new_id()
    assert await put(client, name, "first", **ASKING) in INDEXED
    assert (await client.delete(thing(name))).status_code == 204
    assert (await client.delete(f"/api/2/policies/{name}")).status_code == 204
    assert await put(client, name, "second", **ASKING) in INDEXED
    assert await matches(client, 'eq(attributes/v,"second")') == 1
