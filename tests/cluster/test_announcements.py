"""Policies' subjects expire and are announced, whichever process lives to do it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from acks.journal import ANNOUNCEMENT, DEFAULT_SHARDS, due_key, journal_key, shard_of
from tests.gateways import Gateway, Json, Subscriber, http, new_id, new_label, running
from tests.servers import RedisServer, redis_server, wait_for
from tests.streams import until

ALL = {"grant": ["READ", "WRITE"], "revoke": []}
DEADLINE = 30.0
START = "START-SEND-POLICY-ANNOUNCEMENTS"
PREFIX = "told"


def policy(**guest: Any) -> Json:
    """A policy of ditto's; with ``guest`` also of user2's, who is that subject."""
    entries = {
        "owner": {"subjects": {"nginx:ditto": {"type": "t"}}, "resources": {"policy:/": ALL}}
    }
    subjects = {"nginx:user2": {"type": "t", **guest}} if guest else {}
    entries["guests"] = {"subjects": subjects, "resources": {"thing:/": ALL}}
    return {"entries": entries}


def in_seconds(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


async def put(client: httpx.AsyncClient, name: str, document: Json) -> None:
    answer = await client.put(f"/api/2/policies/{name}", json=document)
    assert answer.status_code in (201, 204), answer.text


async def guests(client: httpx.AsyncClient, name: str) -> list[str]:
    answer = await client.get(f"/api/2/policies/{name}/entries/guests/subjects")
    return list(answer.json())


async def becomes(client: httpx.AsyncClient, name: str, wanted: list[str]) -> None:
    async def are_so() -> bool:
        return await guests(client, name) == wanted

    await until(are_so, DEADLINE)


def published(store: RedisServer, name: str, prefix: str = PREFIX) -> list[Json]:
    """Metas of the announcements about a policy, in their order."""
    key = journal_key(prefix, shard_of(name, DEFAULT_SHARDS))
    with redis.Redis.from_url(store.url) as client:
        metas = [json.loads(fields[b"m"]) for _, fields in client.xrange(key)]
    return [meta for meta in metas if meta["id"] == name and meta.get("k") == ANNOUNCEMENT]


def is_due(store: RedisServer, name: str) -> bool:
    """Whether anything is still to be done about a policy."""
    key = due_key(PREFIX, shard_of(name, DEFAULT_SHARDS))
    with redis.Redis.from_url(store.url) as client:
        return client.zscore(key, name) is not None


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


async def test_an_expiry_is_announced_on_every_process_and_then_carried_out(
    a: Gateway, b: Gateway, store: RedisServer
) -> None:
    name = new_id()
    async with (
        http(a) as owner,
        Subscriber.open(a, user="user2", start=START) as here,
        Subscriber.open(b, user="user2", start=START) as there,
        Subscriber.open(b, start=START) as stranger,
    ):
        expiry = in_seconds(3)
        announcement = {"beforeExpiry": "1h", "whenDeleted": True, "randomizationInterval": "0s"}
        await put(owner, name, policy(expiry=expiry, announcement=announcement))
        for subscriber in (here, there):
            event = await subscriber.event()
            namespace, _, rest = name.partition(":")
            assert event["topic"] == f"{namespace}/{rest}/policies/announcements/subjectDeletion"
            assert event["path"] == "/"
            assert event["value"]["subjectIds"] == ["nginx:user2"]
            told = datetime.fromisoformat(event["value"]["deleteAt"])
            assert abs((told - datetime.fromisoformat(expiry)).total_seconds()) < 0.001
        await becomes(owner, name, [])
        assert datetime.now(UTC) >= datetime.fromisoformat(expiry)
        revision = (await owner.get(f"/api/2/policies/{name}")).headers["etag"]
        assert revision == '"rev:2"'
        for subscriber, count in ((here, 1), (there, 1), (stranger, 0)):
            await subscriber.nothing_came()
            assert len(subscriber.events) == count
    assert len(published(store, name, "pair")) == 1


async def test_killed_before_the_expiry(own: RedisServer, tmp_path: Path) -> None:
    """The process that took the policy dies; another one deletes the subject in time."""
    one, two = (Gateway(tmp_path, redis_url=own.url, prefix=PREFIX) for _ in range(2))
    with running(one, two):
        name = new_id()
        async with http(one) as owner:
            await put(owner, name, policy(expiry=in_seconds(2)))
        one.kill9()
        async with http(two) as owner:
            await becomes(owner, name, [])


async def test_killed_while_it_waits_for_acks(own: RedisServer, tmp_path: Path) -> None:
    """Another process publishes again, and the ack finds its way to that one."""
    name, label = new_id(), new_label()
    announcement = {"whenDeleted": True, "requestedAcks": {"labels": [label], "timeout": "2s"}}
    one, two = (Gateway(tmp_path, redis_url=own.url, prefix=PREFIX) for _ in range(2))
    with running(one):
        async with http(one) as owner:
            await put(owner, name, policy(announcement=announcement))
            await put(owner, name, policy())
        await wait_for(lambda: published(own, name), DEADLINE, "the first announcement")
        with running(two):
            one.kill9()
            async with Subscriber.open(two, label, user="user2", start=START) as subscriber:
                event = await subscriber.event(deadline=DEADLINE)
                assert event["headers"]["requested-acks"] == [label]
                await subscriber.send(ack(event, label))
                await wait_for(lambda: not is_due(own, name), DEADLINE, "the end of it")
    metas = published(own, name)
    assert len({meta["o"] for meta in metas}) == 2
    assert metas[-1]["c"] == event["headers"]["correlation-id"]
    assert {meta["d"] > 0 for meta in metas} == {True}


async def test_a_restart_goes_on(own: RedisServer, tmp_path: Path) -> None:
    """Nobody is there when it is due; whoever starts next does it."""
    name = new_id()
    gateway = Gateway(tmp_path, redis_url=own.url, prefix=PREFIX)
    with running(gateway):
        async with http(gateway) as owner:
            expiry = in_seconds(1.5)
            await put(owner, name, policy(expiry=expiry))
        gateway.kill9()
        over = datetime.fromisoformat(expiry)
        await wait_for(lambda: datetime.now(UTC) > over, DEADLINE, "the expiry")
        assert is_due(own, name)
        await gateway.start_async()
        async with http(gateway) as owner:
            await becomes(owner, name, [])
    assert not is_due(own, name)


def ack(event: Json, label: str) -> Json:
    """The ack of an announcement, on the topic of its policy."""
    base = event["topic"].partition("/announcements/")[0]
    headers = {"correlation-id": event["headers"]["correlation-id"]}
    return {"topic": f"{base}/acks/{label}", "headers": headers, "path": "/", "status": 200}
