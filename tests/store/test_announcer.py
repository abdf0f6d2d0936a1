"""The announcer against a store: what is due is done once, whoever does it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from acks.accepted import Accepted
from acks.errors import GatewayError
from acks.headers import AckOptions
from acks.journal import ANNOUNCEMENT, EntryMeta, due_key, journal_key, shard_of
from acks.policy_document import WATCHES, check_policy, revision
from acks.signals import Acknowledgement, Command
from app.announcements import Announcer
from app.node import Node
from app.settings import Settings
from app.store.policies import TOMBSTONE_MS
from app.store.redis_client import Redis, RedisAddress
from tests.servers import RedisServer

SHARDS = 4
ID = "ns:p"
EVERY = 0.05
MOST = 3
ALL = {"grant": ["READ", "WRITE"], "revoke": []}
Json = dict[str, Any]


def subject(seconds: float | None = None, **announcement: Any) -> Json:
    value: Json = {"type": "t"}
    if seconds is not None:
        value["expiry"] = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()
    if announcement:
        value["announcement"] = {"randomizationInterval": "0s", **announcement}
    return value


def document(policy_id: str = ID, /, **guests: Json) -> Json:
    """A policy of a:me, with these guests of issuer ``a``."""
    value = {
        "entries": {
            "owner": {"subjects": {"a:me": {"type": "t"}}, "resources": {"policy:/": ALL}},
            "guests": {
                "subjects": {f"a:{name}": guest for name, guest in guests.items()},
                "resources": {"thing:/": ALL},
            },
        }
    }
    return check_policy(policy_id, value, "a:me", 0)


class Process:
    """A gateway process in this one, whose announcer looks often."""

    def __init__(self, url: str, prefix: str) -> None:
        settings = Settings(prefix=prefix, shards=SHARDS)
        self.node = Node(settings, url)
        self.gateway = self.node.gateway
        self.policies, self.twins = self.gateway.policies, self.gateway.twins
        self.announcer = Announcer(self.policies, self.gateway, most=MOST, every=EVERY)
        self.node._announcer = self.announcer
        self.prefix = prefix
        self.redis = Redis(RedisAddress.parse(url), name="test")

    @classmethod
    @asynccontextmanager
    async def running(cls, url: str, prefix: str) -> AsyncIterator[Process]:
        process = cls(url, prefix)
        await process.redis.start()
        await process.node.start()
        try:
            yield process
        finally:
            await process.node.stop()
            await process.redis.close()

    async def write(self, policy: Json | None, policy_id: str = ID) -> None:
        stored = await self.policies.find(policy_id)
        assert await self.policies.write(policy_id, stored.text if stored else b"", policy)

    async def stored(self, policy_id: str = ID) -> Json:
        stored = await self.policies.find(policy_id)
        assert stored is not None
        return stored.document

    async def guests(self, policy_id: str = ID) -> list[str]:
        return list((await self.stored(policy_id))["entries"]["guests"]["subjects"])

    async def announced(self) -> list[tuple[EntryMeta, Json]]:
        found = []
        for shard in range(SHARDS):
            page = await self.redis.call("XRANGE", journal_key(self.prefix, shard), "-", "+")
            assert isinstance(page, list)
            for _, fields in page:  # type: ignore[misc]
                entry = dict(zip(fields[::2], fields[1::2], strict=True))  # type: ignore[index]
                meta = EntryMeta.from_json(orjson.loads(entry[b"m"]))
                if meta.kind == ANNOUNCEMENT:
                    found.append((meta, orjson.loads(entry[b"v"])))
        return found

    async def score(self, policy_id: str = ID) -> float | None:
        key = due_key(self.prefix, shard_of(policy_id, SHARDS))
        reply = await self.redis.call("ZSCORE", key, policy_id)
        return float(reply) if isinstance(reply, bytes) else None

    async def until(self, count: int, deadline: float = 20) -> list[tuple[EntryMeta, Json]]:
        """The announcements once there are ``count``."""
        await eventually(self.announced, lambda found: len(found) >= count, deadline)
        return await self.announced()

    def ack(self, meta: EntryMeta, status: int = 200) -> None:
        for label in meta.requested_acks:
            ack = Acknowledgement(label, meta.thing_id, meta.correlation_id, status)
            self.gateway.receive(ack)


async def eventually(
    read: Callable[[], Any], holds: Callable[[Any], bool], deadline: float = 20
) -> None:
    end = time.monotonic() + deadline
    while not holds(value := await read()):
        assert time.monotonic() < end, value
        await asyncio.sleep(0.02)


@pytest.fixture
async def one(shared: RedisServer, prefix: str) -> AsyncIterator[Process]:
    async with Process.running(shared.url, prefix) as process:
        yield process


@pytest.fixture
async def other(shared: RedisServer, prefix: str) -> AsyncIterator[Process]:
    async with Process.running(shared.url, prefix) as process:
        yield process


async def test_an_expired_subject_is_deleted(one: Process) -> None:
    await one.write(document(now=subject(0.3), later=subject(3600), never=subject()))
    before = await one.stored()
    assert await one.score() == before[WATCHES][0][4]
    generation = one.policies.generation
    await eventually(one.guests, lambda names: names == ["a:later", "a:never"])
    after = await one.stored()
    assert revision(after) == revision(before) + 1
    assert after["_modified"] > before.get("_modified", "")
    assert await one.score() == after[WATCHES][0][4]
    assert one.policies.generation > generation
    assert await one.announced() == []
    assert one.announcer.expired == 1


async def test_nothing_is_due_of_a_policy_without_expiries(one: Process) -> None:
    await one.write(document(never=subject(None, whenDeleted=True)))
    assert await one.score() is None
    assert WATCHES not in await one.stored()


async def test_an_expiry_is_announced(one: Process) -> None:
    guest = subject(3600, beforeExpiry="2h", whenDeleted=True)
    await one.write(document(g=guest))
    ((meta, value),) = await one.until(1)
    assert (meta.thing_id, meta.action, meta.path) == (ID, "subjectDeletion", "/")
    assert (meta.readers, meta.requested_acks, meta.origin) == (("a:g",), (), one.node.id)
    assert (meta.revision, meta.deadline) == (1, 0)
    assert value["subjectIds"] == ["a:g"]
    expiry = datetime.fromisoformat(guest["expiry"])
    assert abs((datetime.fromisoformat(value["deleteAt"]) - expiry).total_seconds()) < 0.001
    assert await one.guests() == ["a:g"]
    await one.write(document())
    assert await one.score() is None


async def test_a_deletion_is_announced(one: Process) -> None:
    await one.write(document(g=subject(None, whenDeleted=True)))
    await one.write(document())
    ((meta, _),) = await one.until(1)
    assert meta.readers == ("a:g",)
    await eventually(one.score, lambda score: score is None)


async def test_of_a_deleted_policy_too_and_its_remains_go_in_time(one: Process) -> None:
    await one.write(document(g=subject(None, whenDeleted=True)))
    await one.write(None)
    await one.until(1)
    await eventually(one.score, lambda score: score is None)
    left = await one.policies.find(ID)
    assert left is not None
    assert left.deleted
    lasts = await one.redis.call("PTTL", one.policies.key(ID))
    assert isinstance(lasts, int)
    assert 0 < lasts <= TOMBSTONE_MS


async def test_an_ack_ends_it(one: Process) -> None:
    await one.write(document(g=subject(None, whenDeleted=True, requestedAcks=wants("30s"))))
    await one.write(document())
    ((meta, _),) = await one.until(1)
    assert meta.requested_acks == ("my-ack", "other")
    assert meta.deadline > time.time() * 1000 + 20_000
    assert one.gateway.open_requests == 1
    one.ack(meta)
    await eventually(one.score, lambda score: score is None)
    assert WATCHES not in await one.stored()
    assert one.gateway.open_requests == 0
    assert len(await one.announced()) == 1


def wants(timeout: str) -> Json:
    return {"labels": ["my-ack", "other"], "timeout": timeout}


async def test_an_acknowledged_subject_goes_at_its_expiry(one: Process) -> None:
    guest = subject(1.5, beforeExpiry="1h", whenDeleted=True, requestedAcks=wants("30s"))
    await one.write(document(g=guest))
    ((meta, _),) = await one.until(1)
    one.ack(meta)
    await eventually(one.guests, lambda names: names == [])
    assert datetime.now(UTC) >= datetime.fromisoformat(guest["expiry"])
    assert len(await one.announced()) == 1


@pytest.mark.parametrize("how", ["says not now", "says nothing"])
async def test_without_an_ack_it_comes_again(one: Process, how: str) -> None:
    await one.write(document(g=subject(None, whenDeleted=True, requestedAcks=wants("300ms"))))
    await one.write(document())
    ((first, _),) = await one.until(1)
    if how == "says not now":
        one.ack(first, 503)
    second, _ = (await one.until(2))[1]
    assert second.correlation_id != first.correlation_id
    one.ack(second)
    await eventually(one.score, lambda score: score is None)


async def test_one_that_is_not_acknowledged_stays_after_its_expiry(one: Process) -> None:
    guest = subject(0.2, beforeExpiry="1h", requestedAcks=wants("300ms"))
    await one.write(document(g=guest))
    await one.until(2)
    assert datetime.now(UTC) > datetime.fromisoformat(guest["expiry"])
    assert await one.guests() == ["a:g"]
    stored = await one.policies.find(ID)
    assert stored is not None
    assert not stored.policy.may(("a:g",), "READ", "thing", ())


async def test_of_several_processes_one_does_it(one: Process, other: Process) -> None:
    names = [f"ns:p{number}" for number in range(40)]
    for name in names:
        await one.write(document(name, g=subject(0.3, whenDeleted=True)), name)
    found = await one.until(len(names))
    assert sorted(meta.thing_id for meta, _ in found) == sorted(names)
    for name in names:
        assert revision(await other.stored(name)) == 2
    assert one.announcer.published + other.announcer.published == len(names)


async def test_what_one_was_waiting_for_is_taken_over(one: Process, other: Process) -> None:
    """The acks of the first announcement come to a process that has gone."""
    await other.announcer.close()
    await one.write(document(g=subject(None, whenDeleted=True, requestedAcks=wants("300ms"))))
    await one.write(document())
    await one.until(1)
    await one.announcer.close()
    assert one.gateway.open_requests == 0
    other.announcer.start()
    second, _ = (await one.until(2))[1]
    assert second.origin == other.node.id
    other.ack(second)
    await eventually(one.score, lambda score: score is None)


async def test_a_change_in_between_is_not_lost(one: Process, other: Process) -> None:
    """The announcer's state is that of the policy it has read; whoever is later looks again."""
    guests = {f"g{number}": subject(0.5, whenDeleted=True) for number in range(30)}
    await one.write(document(**guests))
    writes = 0
    end = time.monotonic() + 20
    while await other.guests():
        stored = await other.policies.find(ID)
        assert stored is not None
        entries = {**stored.document["entries"]}
        entries["owner"] = {**entries["owner"], "importable": "never"}
        written = {**stored.document, "entries": entries}
        writes += await other.policies.write(ID, stored.text, written)
        assert time.monotonic() < end
    assert writes > 1
    assert (await one.stored())["entries"]["owner"]["importable"] == "never"
    found = await one.until(len(guests))
    assert sorted(meta.readers for meta, _ in found) == sorted((f"a:{name}",) for name in guests)


def creation(**guests: Json) -> Command:
    """A thing that brings its policy along."""
    brought = document(**guests)
    brought["entries"]["owner"]["resources"]["thing:/"] = ALL
    options = AckOptions(("twin-persisted",), True, 9_000)
    return Command(ID, (), {"thingId": ID}, "c", options, ("a:me",), policy=brought)


async def create(process: Process, command: Command) -> None:
    assert (await process.gateway.ask(command)).status == 201


async def test_the_policy_that_a_thing_brings_along_has_its_schedule(
    one: Process,
) -> None:
    await create(one, creation(now=subject(0.3), later=subject(3600)))
    await eventually(one.guests, lambda names: names == ["a:later"])
    assert await one.score() == (await one.stored())[WATCHES][0][4]
    assert revision(await one.stored()) == 2


async def test_also_if_nobody_waits_for_the_thing(one: Process) -> None:
    """Its response goes into the record of the request, and the schedule beside it."""
    accepting = one.gateway.accepting
    await one.gateway.accept(creation(later=subject(3600)))
    await eventually(lambda: accepting.requests.find("c"), has_response)
    assert await one.score() == (await one.stored())[WATCHES][0][4]


def has_response(found: tuple[Accepted, int] | None) -> bool:
    assert found is not None
    return bool(found[0].came)


async def test_what_a_deleted_policy_owed_is_owed_by_the_one_that_a_thing_makes(
    one: Process,
) -> None:
    asks = {"whenDeleted": True, "requestedAcks": wants("1s")}
    before = document(g=subject(None, **asks))
    before["entries"]["owner"]["resources"]["thing:/"] = ALL
    await one.write(before)
    await one.write(None)
    ((first, _),) = await one.until(1)
    await create(one, creation()._replace(policy=None))
    assert await one.score() is not None
    again, _ = (await one.until(2))[1]
    assert (again.readers, again.requested_acks) == (first.readers, first.requested_acks)


async def test_a_wrong_time_is_put_right(one: Process) -> None:
    await one.write(document(g=subject(3600)))
    right = await one.score()
    key = due_key(one.prefix, shard_of(ID, SHARDS))
    await one.redis.call("ZADD", key, 1, ID, 1, "ns:gone")
    if shard_of("ns:gone", SHARDS) != shard_of(ID, SHARDS):
        await one.redis.call("ZREM", key, "ns:gone")
        await one.redis.call("ZADD", due_key(one.prefix, shard_of("ns:gone", SHARDS)), 1, "ns:gone")
    await eventually(one.score, lambda score: score == right)
    await eventually(lambda: one.score("ns:gone"), lambda score: score is None)
    assert await one.guests() == ["a:g"]


async def test_only_so_many_acks_are_awaited_and_others_come_nevertheless(one: Process) -> None:
    asks = subject(None, whenDeleted=True, requestedAcks={"labels": ["my:l"]})
    await one.write(document(**{f"g{number}": asks for number in range(2 * MOST)}))
    await one.write(None)
    first = await one.until(MOST)
    await one.write(document("ns:q", g=subject(None, whenDeleted=True)), "ns:q")
    await one.write(None, "ns:q")
    assert [meta.thing_id for meta, _ in await one.until(MOST + 1)].count("ns:q") == 1
    for meta, _ in first:
        one.ack(meta)
    found = await one.until(2 * MOST + 1)
    assert len({meta.readers for meta, _ in found}) == 2 * MOST + 1


EMPTY = b'"entries":{"a":{"subjects":{},"resources":{}}}'


@pytest.mark.parametrize("text", [b"{}", b'{%b,"_watches":[[1]]}' % EMPTY])
async def test_a_broken_policy_does_not_hold_up_others(one: Process, text: bytes) -> None:
    await one.write(document(g=subject(0.4)))
    await one.redis.call("SET", one.policies.key(ID), text)
    await one.write(document("ns:q", g=subject(0.4)), "ns:q")
    await eventually(lambda: one.guests("ns:q"), lambda names: names == [])
    later = time.time() * 1000 + 30_000
    await eventually(one.score, lambda score: score is not None and score > later)


async def test_a_store_that_was_away_is_asked_again(own: RedisServer, prefix: str) -> None:
    async with Process.running(own.url, prefix) as process:

        async def guests() -> list[str] | None:
            try:
                return await process.guests()
            except GatewayError:
                return None

        await process.write(document(g=subject(1.0)))
        own.kill9()
        own.start()
        await eventually(guests, lambda names: names == [])
