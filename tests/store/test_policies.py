"""The policies that a process keeps are the stored ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from acks.errors import GatewayError
from acks.headers import AckOptions
from acks.policy import READ, Policy, implicit_policy
from acks.signals import Command
from app.store.policies import TOMBSTONE_MS, PolicyStore, StoredPolicy
from app.store.policy_changes import PolicyChanges
from app.store.redis_client import Redis, RedisAddress
from app.store.twins import TwinStore
from tests.servers import RedisServer, wait_for

ID = "ns:p"


@pytest.fixture
def policies(redis: Redis, prefix: str) -> PolicyStore:
    return PolicyStore(redis, prefix, 4)


@pytest.fixture
async def other(shared: RedisServer, prefix: str) -> AsyncIterator[PolicyStore]:
    """The policies of another process."""
    client = Redis(RedisAddress.parse(shared.url), name="other")
    await client.start()
    yield PolicyStore(client, prefix, 4)
    await client.close()


def document(subject: str) -> dict[str, Any]:
    return implicit_policy(ID, subject)


def ask(policies: PolicyStore) -> asyncio.Future[Any]:
    """Have a policy loaded; its question is on the way when this returns."""
    loaded: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    policies.load(ID, loaded.set_result)
    return loaded


async def load(policies: PolicyStore) -> Policy | None:
    policy = await ask(policies)
    assert not isinstance(policy, GatewayError)
    return policy  # type: ignore[no-any-return]


def readers(policy: Policy | None) -> tuple[str, ...]:
    return () if policy is None else policy.readers(())


async def test_only_the_state_that_was_seen_is_replaced(policies: PolicyStore) -> None:
    assert await policies.write(ID, b"", document("a:1"))
    assert not await policies.write(ID, b"", document("a:2"))
    stored = await policies.get(ID)
    assert stored is not None
    assert readers(stored.policy) == ("a:1",)
    assert not await policies.write(ID, stored.text + b" ", None)
    assert await policies.write(ID, stored.text, document("a:2"))
    assert readers(await load(policies)) == ("a:2",)
    assert not await policies.write(ID, stored.text, None)
    stored = await policies.get(ID)
    assert stored is not None
    assert await policies.write(ID, stored.text, None)
    assert await policies.get(ID) is None
    assert await load(policies) is None


async def test_what_was_read_is_kept_until_it_changes(policies: PolicyStore, redis: Redis) -> None:
    await policies.write(ID, b"", document("a:1"))
    first = await load(policies)
    assert policies.cached(ID) is first
    await redis.call("SET", policies.key(ID), orjson.dumps(document("a:2")))
    assert await load(policies) is first
    before = policies.generation
    policies.changed(ID)
    assert policies.generation > before
    assert policies.cached(ID) is None
    assert readers(await load(policies)) == ("a:2",)


@pytest.mark.parametrize("missed", [False, True])
async def test_a_policy_that_changes_while_it_is_read_is_read_again(
    policies: PolicyStore, redis: Redis, missed: bool
) -> None:
    await policies.write(ID, b"", document("a:1"))
    loading = ask(policies)
    redis.send(("SET", policies.key(ID), orjson.dumps(document("a:2"))), lambda _: None)
    if missed:
        policies.all_changed()
    else:
        policies.changed(ID)
    assert readers(await loading) == ("a:2",)
    assert readers(policies.cached(ID)) == ("a:2",)


async def test_a_change_of_another_policy_does_not_matter(
    policies: PolicyStore, redis: Redis
) -> None:
    await policies.write(ID, b"", document("a:1"))
    loading = ask(policies)
    redis.send(("SET", policies.key(ID), orjson.dumps(document("a:2"))), lambda _: None)
    policies.changed("ns:other")
    assert readers(await loading) == ("a:1",)
    assert policies.cached(ID) is not None


async def test_what_was_written_before_a_change_is_not_kept(policies: PolicyStore) -> None:
    since = policies.generation
    policies.changed(ID)
    policies.remember(ID, Policy(document("a:1")), since)
    assert policies.cached(ID) is None
    policies.remember(ID, Policy(document("a:1")), policies.generation)
    assert policies.cached(ID) is not None


async def test_another_process_is_told(
    policies: PolicyStore, other: PolicyStore, shared: RedisServer, prefix: str
) -> None:
    changes = PolicyChanges(RedisAddress.parse(shared.url), other, prefix=prefix, node="n")
    await changes.start(10)
    try:
        assert changes.connected
        await policies.write(ID, b"", document("a:1"))
        kept = await load(other)
        assert other.cached(ID) is kept
        stored = await policies.get(ID)
        assert stored is not None
        await policies.write(ID, stored.text, document("a:2"))
        await wait_for(lambda: other.cached(ID) is not kept, 10, "the news")
        assert readers(await load(other)) == ("a:2",)
    finally:
        await changes.close()


async def test_without_news_nothing_is_kept(policies: PolicyStore) -> None:
    await policies.write(ID, b"", document("a:1"))
    policies.listening = False
    assert readers(await load(policies)) == ("a:1",)
    assert policies.cached(ID) is None


async def test_an_expiring_policy_is_kept_until_then(policies: PolicyStore) -> None:
    soon = document("a:1")
    expiry = datetime.fromtimestamp(time.time() + 1, UTC).isoformat()
    soon["entries"]["guest"] = {
        "subjects": {"a:2": {"type": "t", "expiry": expiry}},
        "resources": {"thing:/": {"grant": [READ], "revoke": []}},
    }
    await policies.write(ID, b"", soon)
    first = await load(policies)
    assert policies.cached(ID) is first
    await wait_for(lambda: policies.cached(ID) is None, 20, "the expiry")
    end = time.monotonic() + 20
    while readers(await load(policies)) != ("a:1",):
        assert time.monotonic() < end
    assert policies.cached(ID) is not None


async def test_a_broken_policy_is_an_outage_and_not_a_right(
    policies: PolicyStore, redis: Redis
) -> None:
    await redis.call("SET", policies.key(ID), b"{}")
    with pytest.raises(GatewayError) as caught:
        await policies.get(ID)
    assert caught.value.status == 503
    assert (await ask(policies)).status == 503


# --- deleted policies


@pytest.fixture
def twins(policies: PolicyStore, redis: Redis, prefix: str) -> TwinStore:
    return TwinStore(
        redis,
        policies,
        prefix=prefix,
        shards=4,
        node="n",
        max_thing_bytes=100_000,
        journal_entries=1_000,
        cache_bytes=1_000_000,
    )


def put(
    twins: TwinStore, path: tuple[str, ...], value: Any, subject: str = "a:1"
) -> asyncio.Future[Any]:
    """Send a change of the thing that has the policy's id; its outcome."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    options = AckOptions((), True, 10_000)
    twins.submit(Command(ID, path, value, "c", options, (subject,)), 0, done.set_result)
    return done


async def delete(policies: PolicyStore) -> None:
    stored = await policies.get(ID)
    assert stored is not None
    assert await policies.write(ID, stored.text, None)


async def test_what_a_deleted_policy_leaves_goes_after_a_while(
    policies: PolicyStore, redis: Redis
) -> None:
    await policies.write(ID, b"", document("a:1"))
    await delete(policies)
    left = await policies.find(ID)
    assert left is not None
    assert left.deleted
    lasts = await redis.call("PTTL", policies.key(ID))
    assert isinstance(lasts, int)
    assert 0 < lasts <= TOMBSTONE_MS
    assert await policies.write(ID, left.text, document("a:1"))
    assert await redis.call("PTTL", policies.key(ID)) == -1


async def test_what_follows_the_making_of_a_thing_waits_until_its_policy_is_looked_at(
    policies: PolicyStore, twins: TwinStore, redis: Redis
) -> None:
    await policies.write(ID, b"", document("a:1"))
    await delete(policies)
    outcomes = [put(twins, (), {"thingId": ID})]
    outcomes += [put(twins, ("attributes", "n"), n) for n in range(20)]
    replies = await asyncio.wait_for(asyncio.gather(*outcomes), 20)
    assert [reply.status for reply in replies] == [201, 201, *[204] * 19]
    assert [reply.headers["entity-revision"] for reply in replies] == list(range(1, 22))
    stored = await policies.get(ID)
    assert stored is not None
    assert stored.document["_revision"] == 3
    assert await redis.call("PTTL", policies.key(ID)) == -1


async def test_of_two_that_make_things_again_only_the_owner_gets_there(
    policies: PolicyStore, twins: TwinStore
) -> None:
    await policies.write(ID, b"", document("a:1"))
    await delete(policies)
    other, owner = put(twins, (), {"thingId": ID}, "a:2"), put(twins, (), {"thingId": ID})
    refused, made = await asyncio.wait_for(asyncio.gather(other, owner), 20)
    assert (refused.status, refused.code) == (400, "things:thing.notcreatable")
    assert made.status == 201
    assert readers(await load(policies)) == ("a:1",)


async def test_a_policy_that_is_made_again_meanwhile_is_not_overwritten(
    policies: PolicyStore, other: PolicyStore, twins: TwinStore
) -> None:
    """The decision rests on what a deleted policy left; another one is there by now."""
    await policies.write(ID, b"", document("a:1"))
    await delete(policies)
    seen: list[StoredPolicy] = []
    find_later = policies.find_later

    def interrupted(policy_id: str, on_found: Any) -> None:
        def found(left: StoredPolicy) -> None:
            async def make_another() -> None:
                if not seen:
                    seen.append(left)
                    assert await other.write(ID, left.text, document("a:3"))
                on_found(left)

            tasks.append(asyncio.create_task(make_another()))

        find_later(policy_id, found)  # type: ignore[arg-type]

    tasks: list[asyncio.Task[None]] = []
    policies.find_later = interrupted  # type: ignore[method-assign]
    refused = await asyncio.wait_for(put(twins, (), {"thingId": ID}), 20)
    assert (refused.status, refused.code) == (400, "things:thing.notcreatable")
    assert "exists already" in refused.message
    assert seen[0].deleted
    assert readers(await load(policies)) == ("a:3",)
