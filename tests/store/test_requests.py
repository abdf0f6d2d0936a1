"""Records of accepted requests: what counts, what is late, and that commits complete them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import redis as blocking_redis

from acks.accepted import Accepted, accept
from acks.errors import GatewayError, error
from acks.headers import Setter, http_options
from acks.journal import ASYNC, journal_key, shard_of, twin_key
from acks.signals import Acknowledgement, Command, Response
from app.store.policies import PolicyStore
from app.store.redis_client import Redis, RedisAddress
from app.store.requests import RequestStore
from app.store.twins import TwinStore
from tests.servers import RedisServer, wait_for

SHARDS = 4
KEEP = 60_000
THING = "org.example:t"
CREATED = Response(201, {"ack-a": 1}, {"etag": '"rev:1"'})


@pytest.fixture
def store(redis: Redis, prefix: str) -> RequestStore:
    return RequestStore(redis, prefix=prefix, shards=SHARDS, keep_ms=KEEP)


@pytest.fixture
async def direct(shared: RedisServer) -> AsyncIterator[blocking_redis.Redis]:
    client = blocking_redis.Redis.from_url(shared.url)
    yield client
    client.close()


def request(
    requested: str | None, cid: str = "c", thing_id: str = THING, timeout_ms: int = 30_000
) -> Accepted:
    options = http_options(Setter.TWIN_MODIFY, requested, None, "30")
    command = Command(thing_id, (), {}, cid, options, ("nginx:me",))
    return accept(command, timeout_ms=timeout_ms, keep_ms=KEEP)


def custom(label: str, status: int = 200, payload: Any = None) -> Acknowledgement:
    return Acknowledgement(label, THING, "c", status, payload, {"correlation-id": "c"})


async def record(store: RequestStore, thing: Any, cid: str = "c") -> bool | None:
    counted: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
    store.record(THING, cid, thing, counted.set_result)
    return await counted


async def found(store: RequestStore, cid: str = "c") -> tuple[Accepted, int]:
    result = await store.find(cid)
    assert result is not None
    return result


async def test_the_first_ack_of_an_owed_label_counts(
    store: RequestStore, direct: blocking_redis.Redis
) -> None:
    before = time.time_ns() // 1_000_000
    deadline = await store.create(request("twin-persisted,ack-a,ack-b"))
    assert before + 29_000 < deadline < before + 60_000
    assert await record(store, custom("other")) is False
    assert await record(store, custom("ack-a", 200, {"n": 1})) is True
    assert await record(store, custom("ack-a", 500)) is False
    assert await record(store, CREATED) is True
    assert await record(store, CREATED) is False
    pending, now_ms = await found(store)
    assert pending.outcome(now_ms) is None
    assert pending.deadline_ms == deadline
    assert [came.number for came in pending.came] == [1, 2]
    assert await record(store, custom("ack-b", 201)) is True
    assert await record(store, custom("ack-b", 201)) is False
    done, now_ms = await found(store)
    outcome = done.outcome(now_ms)
    assert outcome is not None
    assert [(ack.label, ack.status) for ack in outcome.acks] == [
        ("twin-persisted", 201),
        ("ack-a", 200),
        ("ack-b", 201),
    ]
    assert outcome.acks[1].payload == {"n": 1}
    assert done.done_ms is not None
    left = direct.pttl(store.key(THING, "c"))
    assert KEEP - 10_000 < left <= KEEP, "from its end on it is kept for its time"


async def test_a_pending_record_is_kept_for_its_timeout_and_its_time(
    store: RequestStore, direct: blocking_redis.Redis
) -> None:
    await store.create(request("ack-a"))
    left = direct.pttl(store.key(THING, "c"))
    assert KEEP + 20_000 < left <= KEEP + 30_000


async def test_nothing_counts_after_the_deadline(store: RequestStore) -> None:
    await store.create(request("twin-persisted,ack-a", timeout_ms=1))
    for _ in range(1000):
        late, now_ms = await found(store)
        if now_ms > late.deadline_ms:
            break
    assert await record(store, custom("ack-a")) is False
    assert await record(store, CREATED) is False
    assert await record(store, error("things:thing.notfound", thing_id=THING)) is False
    late, now_ms = await found(store)
    outcome = late.outcome(now_ms)
    assert outcome is not None
    assert [ack.status for ack in outcome.acks] == [408, 408]


async def test_nothing_counts_without_a_record(
    store: RequestStore, direct: blocking_redis.Redis
) -> None:
    assert await record(store, custom("ack-a"), "nobody") is False
    assert await record(store, CREATED, "nobody") is False
    assert direct.exists(store.key(THING, "nobody")) == 0
    assert await store.find("nobody") is None


async def test_a_response_that_is_not_owed_is_kept_but_ends_nothing(store: RequestStore) -> None:
    await store.create(request("ack-a"))
    assert await record(store, CREATED) is True
    pending, now_ms = await found(store)
    assert pending.outcome(now_ms) is None
    assert await record(store, custom("ack-a", 202)) is True
    done, now_ms = await found(store)
    outcome = done.outcome(now_ms)
    assert outcome is not None
    assert outcome.status == 202


async def test_an_error_ends_it_unless_the_change_was_made(store: RequestStore) -> None:
    problem = error("things:thing.notfound", thing_id=THING)
    await store.create(request("twin-persisted,ack-a"))
    assert await record(store, problem) is True
    assert await record(store, custom("ack-a")) is False
    failed, now_ms = await found(store)
    outcome = failed.outcome(now_ms)
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.to_json() == problem.to_json()
    await store.create(request("twin-persisted,ack-a", "made"))
    assert await record(store, CREATED, "made") is True
    assert await record(store, problem, "made") is False


async def test_an_id_is_taken_once_whatever_the_thing(
    store: RequestStore, direct: blocking_redis.Redis
) -> None:
    other = next(
        name
        for name in (f"org.example:o{n}" for n in range(100))
        if shard_of(name, SHARDS) != shard_of(THING, SHARDS)
    )
    await store.create(request("ack-a"))
    for again in (request("ack-a"), request(None, thing_id=other)):
        with pytest.raises(GatewayError) as refused:
            await store.create(again)
        assert refused.value.code == "acknowledgement:request.duplicate.correlation-id"
    assert direct.exists(store.key(other, "c")) == 0
    assert (await found(store))[0].thing_id == THING
    both = await asyncio.gather(
        store.create(request("ack-a", "same")),
        store.create(request("ack-a", "same", other)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, int) for result in both) <= 1


async def test_strange_ids_labels_and_payloads(store: RequestStore) -> None:
    cid = "a b/ü\U0001f600{}:*"
    await store.create(request("x:y", cid))
    payload = {"ü": ["\u0000", 2**53, 1.5, {}, []]}
    assert await record(store, custom("x:y", 200, payload), cid) is True
    outcome = (await found(store, cid))[0].outcome(0)
    assert outcome is not None
    assert outcome.acks[0].payload == payload


async def test_a_payload_that_cannot_be_told_to_anybody_does_not_count(
    store: RequestStore,
) -> None:
    nested: Any = 1
    for _ in range(500):
        nested = [nested]
    await store.create(request("ack-a"))
    assert await record(store, custom("ack-a", 200, nested)) is False
    assert await record(store, custom("ack-a", 200)) is True


async def test_a_store_that_is_away_is_said_to_be(own: RedisServer, prefix: str) -> None:
    client = Redis(RedisAddress.parse(own.url), name="test", reply_timeout=1.0)
    await client.start()
    try:
        store = RequestStore(client, prefix=prefix, shards=SHARDS, keep_ms=KEEP)
        await store.create(request("ack-a"))
        own.kill9()
        await wait_for(lambda: not client.connected)
        assert await record(store, custom("ack-a")) is None
        for attempt in (store.create(request("ack-a", "d")), store.find("c")):
            with pytest.raises(GatewayError) as refused:
                await attempt
            assert refused.value.code == "gateway:service.unavailable"
        own.start()
        await wait_for(lambda: client.connected)
        assert await record(store, custom("ack-a")) is True, "the record has outlived the store"
    finally:
        await client.close()


def twin_store(redis: Redis, prefix: str, node: str) -> TwinStore:
    return TwinStore(
        redis,
        PolicyStore(redis, prefix, SHARDS),
        prefix=prefix,
        shards=SHARDS,
        node=node,
        max_thing_bytes=100_000,
        journal_entries=1000,
        cache_bytes=1_000_000,
    )


async def changed(
    twins: TwinStore, cid: str, action: str, path: tuple[str, ...], value: Any
) -> Response | GatewayError:
    options = http_options(Setter.TWIN_MODIFY, "twin-persisted,ack-a", None, "30")
    command = Command(
        THING, path, value, cid, options, ("nginx:me",), action=action, answer_to=ASYNC
    )
    done: asyncio.Future[Response | GatewayError] = asyncio.get_running_loop().create_future()
    twins.submit(command, 1_800_000_000_000, done.set_result)
    return await done


async def test_a_commit_records_its_response_in_one_stroke(
    store: RequestStore, redis: Redis, prefix: str, direct: blocking_redis.Redis
) -> None:
    """Nobody but the commit adds to the records here."""
    mine, others = twin_store(redis, prefix, "node-a"), twin_store(redis, prefix, "node-b")
    steps: list[tuple[TwinStore, str, tuple[str, ...], Any, int]] = [
        (mine, "put", (), {"thingId": THING}, 201),
        (others, "put", ("attributes", "n"), 1, 201),
        (mine, "put", ("attributes", "n"), 2, 204),  # in conflict with what it remembers
        (others, "merge", ("attributes",), {"n": None}, 204),
        (mine, "delete", (), None, 204),
    ]
    for number, (twins, action, path, value, status) in enumerate(steps):
        cid = f"c{number}"
        await store.create(request("twin-persisted,ack-a", cid))
        response = await changed(twins, cid, action, path, value)
        assert isinstance(response, Response)
        recorded, now_ms = await found(store, cid)
        assert recorded.outcome(now_ms) is None
        [ack] = recorded.acks()
        assert (ack.label, ack.status, ack.payload) == ("twin-persisted", status, response.payload)
        assert dict(ack.headers) == dict(response.headers)
        assert response.status == status
    assert direct.pttl(twin_key(prefix, shard_of(THING, SHARDS), THING)) > 0, "a tombstone"
    entries: Any = direct.xrange(journal_key(prefix, shard_of(THING, SHARDS)))
    metas = [orjson.loads(fields[b"m"]) for _, fields in entries]
    assert [(meta["c"], meta["o"], meta["r"]) for meta in metas] == [
        (f"c{number}", ASYNC, number + 1) for number in range(5)
    ]


async def test_a_refused_change_and_a_late_one_record_nothing(
    store: RequestStore, redis: Redis, prefix: str
) -> None:
    twins = twin_store(redis, prefix, "node-a")
    await store.create(request("twin-persisted,ack-a", "refused"))
    refused = await changed(twins, "refused", "put", ("attributes", "n"), 1)
    assert isinstance(refused, GatewayError)
    assert (await found(store, "refused"))[0].came == ()
    await store.create(request("twin-persisted,ack-a", "late", timeout_ms=1))
    for _ in range(1000):
        late, now_ms = await found(store, "late")
        if now_ms > late.deadline_ms:
            break
    written = await changed(twins, "late", "put", (), {"thingId": THING})
    assert isinstance(written, Response), "it was written, only nobody waited for it any more"
    assert (await found(store, "late"))[0].came == ()
    assert isinstance(await changed(twins, "gone", "put", (), {"thingId": THING}), Response)
    assert await store.find("gone") is None
