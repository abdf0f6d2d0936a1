"""Twins for extra fields: read once for all, never older than the signal, and when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from acks.errors import GatewayError
from acks.fields import parse_extra_fields
from acks.headers import AckOptions
from acks.journal import MESSAGE, EntryMeta
from acks.signals import Command, Response
from app.enrichment import Enrichment
from app.session import Session, Subscription
from app.sessions import Sessions
from app.store.policies import PolicyStore
from app.store.redis_client import Redis, RedisAddress
from app.store.twins import TwinStore
from tests.servers import RedisServer, wait_for

ID = "ns:t"
NO_ACKS = AckOptions((), True, 1000)
META = EntryMeta(
    ID, "modified", "/attributes/n", 1, "2026-01-01T10:00:00Z", "c", ("my:ack",), "node", 0,
    ("s:1",),
)  # fmt: skip


class Store:
    """The twins of one process over a server that the test may kill."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self.redis = redis
        policies = PolicyStore(redis, prefix, 4)
        self.twins = TwinStore(
            redis, policies, prefix=prefix, shards=4, node="node" * 4, max_thing_bytes=100_000,
            journal_entries=100, cache_bytes=1_000_000,
        )  # fmt: skip
        self.enrichment = Enrichment(self.twins, policies)

    async def put(self, *path: str, value: Any, action: str = "put") -> Response:
        """Change the thing and wait until that is stored."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not path and action == "put":
            value = {"thingId": ID, "policyId": ID, **value}
        command = Command(ID, path, value, "c", NO_ACKS, ("s:1",), action=action)
        self.twins.submit(command, 0, done.set_result)
        async with asyncio.timeout(10):
            result = await done
        assert isinstance(result, Response), result
        return result


@pytest.fixture
async def store(own: RedisServer, prefix: str) -> AsyncIterator[Store]:
    client = Redis(RedisAddress.parse(own.url), name="test", reply_timeout=2.0)
    await client.start()
    yield Store(client, prefix)
    await client.close()


async def test_all_who_want_it_at_once_share_one_read(store: Store) -> None:
    await store.put(value={"attributes": {"n": 1}})
    first, second = store.enrichment.begin(ID), store.enrichment.begin(ID)
    assert first is second
    found = await asyncio.gather(*(store.enrichment.twin(ID, 1, first) for _ in range(3)))
    assert found[0] is not None
    assert found[0] is found[1] is found[2]
    assert found[0].seen_by(("s:1",)) == {"thingId": ID, "policyId": ID, "attributes": {"n": 1}}
    assert found[0].seen_by(("s:2",)) is None
    assert store.enrichment.begin(ID) is not first


async def test_it_is_not_older_than_the_signal(store: Store) -> None:
    await store.put(value={"attributes": {"n": 1}})
    early = store.enrichment.begin(ID)
    await store.put("attributes", "n", value=2)
    found = await store.enrichment.twin(ID, 2, early)
    assert found is not None
    assert found.revision == 2


async def test_a_thing_that_was_made_meanwhile_is_found(store: Store) -> None:
    early = store.enrichment.begin(ID)
    await store.put(value={})
    found = await store.enrichment.twin(ID, 1, early)
    assert found is not None


async def test_a_thing_that_is_gone_is_no_failure(store: Store) -> None:
    await store.put(value={})
    await store.put(value=None, action="delete")
    assert await store.enrichment.twin(ID, 1, store.enrichment.begin(ID)) is None
    assert store.enrichment.failed == 0


async def test_one_who_leaves_takes_the_read_from_nobody(store: Store) -> None:
    await store.put(value={})
    reading = store.enrichment.begin(ID)
    leaving = asyncio.create_task(store.enrichment.twin(ID, 1, reading))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await store.enrichment.twin(ID, 1, reading) is not None


async def test_without_a_store_there_is_an_error_in_place_of_the_event(
    store: Store, own: RedisServer
) -> None:
    await store.put(value={"attributes": {"n": 1}})
    acks: list[Any] = []
    sessions = Sessions(lambda _, ack: acks.append(ack), lambda: True)
    sessions.enrich_from(store.enrichment)
    session = Session(("s:1",), ("my:ack",), outbox_bytes=100_000)
    sessions.add(session)
    wanted = Subscription(extra_fields=parse_extra_fields("attributes"))
    sessions.subscribe(session, wanted)
    sessions.subscribe(session, Subscription(), MESSAGE)
    own.kill9()
    await wait_for(lambda: not store.redis.connected)
    message = META._replace(kind=MESSAGE, action="ask", path="/inbox/messages/ask")
    for meta in (META, message):
        fields = [b"m", json.dumps(meta.to_json()).encode(), b"h", b"{}", b"v", b"1"]
        sessions.route(0, b"1-0", fields)
    await wait_for(lambda: session.backlog is None)
    problem, after = map(json.loads, await session.frames())
    assert problem["topic"] == "ns/t/things/twin/errors"
    assert problem["headers"]["correlation-id"] == "c"
    assert (problem["status"], problem["value"]["error"]) == (500, "signal.enrichment.failed")
    assert after["path"] == "/inbox/messages/ask"
    assert acks == []
    assert sessions.enrichments_failed == 1


async def test_a_policy_that_cannot_be_read_fails_it(store: Store, own: RedisServer) -> None:
    own.kill9()
    await wait_for(lambda: not store.redis.connected)
    with pytest.raises(GatewayError) as caught:
        await store.enrichment.policy(ID, ID, ("s:1",))
    assert caught.value.code == "signal.enrichment.failed"
