"""Leases of declared labels: one owner at a time, whatever happens."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import resources

import pytest
import redis as blocking_redis

from acks.journal import leases_key, owners_key
from app.store.labels import LabelRegistry
from app.store.redis_client import Redis, RedisAddress, StoreUnavailable
from tests.servers import RedisServer, wait_for

SHORT = 400  # ms, a lease that a test can outlive


@asynccontextmanager
async def registry(
    server: RedisServer, prefix: str, holder: str, ttl_ms: int = 6000, reply_timeout: float = 5.0
) -> AsyncIterator[tuple[LabelRegistry, Redis]]:
    """A registry with a connection of its own, as one gateway process has it."""
    redis = Redis(RedisAddress.parse(server.url), name=holder, reply_timeout=reply_timeout)
    labels = LabelRegistry(redis, prefix, holder, ttl_ms)
    await redis.start()
    await labels.start()
    try:
        yield labels, redis
    finally:
        await labels.close()
        await redis.close()


async def test_claims_are_all_or_none(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        assert not a.valid()
        assert await a.claim("s1", ["x", "y"]) is None
        assert a.valid()
        assert not b.valid()
        assert await b.claim("s1", ["free", "y"]) == "y"
        assert await a.claim("s2", ["other", "x"]) == "x"
        assert await b.claim("s2", ["free", "other"]) is None  # nothing of it was kept
        owners = await b.list.owners()
        assert sorted(owner[:3] for owner in owners) == [
            ("free", "b", "s2"),
            ("other", "b", "s2"),
            ("x", "a", "s1"),
            ("y", "a", "s1"),
        ]
        assert all(0 < owner.ms_left <= 6000 for owner in owners)


async def test_released_labels_are_free_at_once(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        assert await a.claim("s1", ["x", "x"]) is None
        assert await a.claim("s2", ["y"]) is None
        await a.release("s1")
        await a.release("s1")
        await a.release("never heard of")
        assert await b.claim("s1", ["x"]) is None
        assert await b.claim("s2", ["y"]) == "y"
        await a.close()
        assert not a.valid()
        assert await b.claim("s3", ["y"]) is None
        with pytest.raises(StoreUnavailable):
            await a.claim("s1", ["z"])


async def test_a_session_claims_once(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "a") as (a, _):
        assert await a.claim("s", []) is None
        assert await a.claim("s", ["x"]) is None
        with pytest.raises(ValueError, match="already"):
            await a.claim("s", ["y"])
        with pytest.raises(ValueError, match="'/'"):
            await a.claim("s/1", ["y"])
        assert [owner[:3] for owner in await a.list.owners()] == [("x", "a", "s")]


async def test_of_simultaneous_claims_one_wins(shared: RedisServer, prefix: str) -> None:
    rng = random.Random(1)
    names = [f"label{n}" for n in range(40)]
    won: dict[str, list[str]] = {}
    async with AsyncExitStack() as stack:
        holders = [
            (await stack.enter_async_context(registry(shared, prefix, f"h{n}")))[0]
            for n in range(6)
        ]

        async def claim(labels: LabelRegistry, session: str, wanted: list[str]) -> None:
            taken = await labels.claim(session, wanted)
            assert taken is None or taken in wanted
            if taken is None:
                won[session] = wanted

        wants = [
            (labels, f"h{n}s{s}", rng.sample(names, rng.choice([1, 1, 2, 3])))
            for n, labels in enumerate(holders)
            for s in range(100)
        ]
        rng.shuffle(wants)
        await asyncio.gather(*(claim(*want) for want in wants))
        count = Counter(label for labels in won.values() for label in labels)
        assert set(count.values()) == {1}
        # What no winner holds was wanted only together with something taken.
        for _, session, wanted in wants:
            assert session in won or any(count[label] for label in wanted)
        owners = {label: session for label, _, session, _, _ in await holders[0].list.owners()}
        assert owners == {label: session for session, labels in won.items() for label in labels}


async def test_a_lease_is_renewed_and_outlives_its_term(shared: RedisServer, prefix: str) -> None:
    async with (
        registry(shared, prefix, "a", SHORT) as (a, _),
        registry(shared, prefix, "b", SHORT) as (b, _),
    ):
        assert await a.claim("s", ["x"]) is None
        end = time.monotonic() + 3 * SHORT / 1000
        attempt = 0
        while time.monotonic() < end:
            attempt += 1
            assert await b.claim(f"s{attempt}", ["x"]) == "x"
            await asyncio.sleep(0.02)


async def test_labels_of_a_vanished_holder_become_free(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "b", SHORT) as (b, _):
        async with registry(shared, prefix, "a", SHORT) as (a, redis):
            assert await a.claim("s", ["x"]) is None
            await redis.close()  # as if its process had died: nothing is released
            assert not a.valid()
        assert await b.claim("s0", ["x"]) == "x"
        attempt = 0
        while await b.claim(f"t{attempt}", ["x"]) is not None:
            attempt += 1
            assert attempt < 500
            await asyncio.sleep(0.02)
        assert [owner[:3] for owner in await b.list.owners()] == [("x", "b", f"t{attempt}")]


async def test_after_a_restart_of_the_server_all_is_claimed_anew(
    own: RedisServer, prefix: str
) -> None:
    async with registry(own, prefix, "a") as (a, redis), registry(own, prefix, "b") as (b, other):
        assert await a.claim("s1", ["x"]) is None
        assert await a.claim("s2", ["y"]) is None
        own.kill9()
        await wait_for(lambda: not redis.connected)
        assert not a.valid()
        own.start()
        await wait_for(a.valid)
        await wait_for(lambda: other.connected)
        assert await b.claim("s1", ["x"]) == "x"
        assert await b.claim("s2", ["y"]) == "y"
        assert sorted(owner[:3] for owner in await a.list.owners()) == [
            ("x", "a", "s1"),
            ("y", "a", "s2"),
        ]


async def test_what_others_took_in_a_gap_is_reported(own: RedisServer, prefix: str) -> None:
    """The data are lost (a failover, a flush), and another holder is quicker."""
    lost: list[tuple[str, str]] = []
    async with registry(own, prefix, "a") as (a, redis), registry(own, prefix, "b") as (b, other):
        a.on_lost = lambda session, label: lost.append((session, label))
        assert await a.claim("s1", ["x", "x2"]) is None
        assert await a.claim("s2", ["y"]) is None
        await other.call("FLUSHALL")
        assert await b.claim("s1", ["x"]) is None
        await other.call("CLIENT", "KILL", "ID", await redis.call("CLIENT", "ID"))  # type: ignore[arg-type] # an integer
        await wait_for(lambda: redis.connections == 2 and a.valid())
        assert lost == [("s1", "x")]
        assert sorted(owner[:3] for owner in await a.list.owners()) == [
            ("x", "b", "s1"),
            ("y", "a", "s2"),
        ]
        assert await b.claim("s2", ["x2"]) is None


async def test_validity_ends_with_a_stall(own: RedisServer, prefix: str) -> None:
    async with registry(own, prefix, "a", SHORT) as (a, _):
        assert await a.claim("s", ["x"]) is None
        time.sleep(SHORT / 1000)  # noqa: ASYNC251 - our own process stands still
        assert not a.valid()
        await wait_for(a.valid)
        own.pause()
        await wait_for(lambda: not a.valid())
        own.resume()
        await wait_for(a.valid)
        assert [owner[:3] for owner in await a.list.owners()] == [("x", "a", "s")]


async def test_a_new_claim_does_not_hide_a_gap(own: RedisServer, prefix: str) -> None:
    lost: list[tuple[str, str]] = []
    script = resources.files("acks").joinpath("declared.lua").read_text(encoding="utf-8")
    async with registry(own, prefix, "a", SHORT) as (a, _):
        a.on_lost = lambda session, label: lost.append((session, label))
        assert await a.claim("s1", ["x"]) is None
        # Our process stands still past its lease, and somebody else takes the label meanwhile.
        time.sleep(1.5 * SHORT / 1000)  # noqa: ASYNC251
        with blocking_redis.Redis(unix_socket_path=str(own.socket)) as other:
            keys = (owners_key(prefix), leases_key(prefix))
            assert other.eval(script, 2, *keys, "claim", "b", "9000", "s", "x") == b""
        assert await a.claim("s2", ["y"]) is None
        assert a.valid()
        assert lost == [("s1", "x")]


async def test_a_claim_without_an_answer_leaves_nothing_behind(
    own: RedisServer, prefix: str
) -> None:
    async with (
        registry(own, prefix, "a", SHORT, reply_timeout=0.1) as (a, redis),
        registry(own, prefix, "b", SHORT) as (b, _),
    ):
        assert await a.claim("s1", ["kept"]) is None
        own.pause()
        with pytest.raises(StoreUnavailable):
            await a.claim("s2", ["x"])
        own.resume()
        await wait_for(lambda: redis.connected and a.valid())
        # The paused server carried the claim out later; the lease lives on through "kept".
        attempt = 0
        while await b.claim(f"s{attempt}", ["x"]) is not None:
            attempt += 1
            assert attempt < 500
            await asyncio.sleep(0.02)
        assert await b.claim("t", ["kept"]) == "kept"


async def test_labels_are_freed_later_if_the_store_refuses_it(
    own: RedisServer, prefix: str
) -> None:
    """The lease goes on for the other sessions, so they would not come free by themselves."""
    async with registry(own, prefix, "a", 1500) as (a, _), registry(own, prefix, "b") as (b, _):
        assert await a.claim("s1", ["x"]) is None
        assert await a.claim("s2", ["y"]) is None
        with blocking_redis.Redis.from_url(own.url) as admin:
            admin.execute_command("ACL", "SETUSER", "default", "-@scripting")
            try:
                await a.release("s1")
            finally:
                admin.execute_command("ACL", "SETUSER", "default", "+@all")

        async with asyncio.timeout(20):
            while [owner[:3] for owner in await b.list.owners()] != [("y", "a", "s2")]:
                assert a.valid()
        assert await b.claim("s1", ["x"]) is None


async def test_a_session_released_while_it_claims_owns_nothing(
    shared: RedisServer, prefix: str
) -> None:
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        claiming = asyncio.create_task(a.claim("s", ["x"]))
        await asyncio.sleep(0)
        await a.release("s")
        with pytest.raises(StoreUnavailable, match="released"):
            await claiming
        assert await b.claim("s", ["x"]) is None


class Gateway:
    """What one process believes to own, and how it behaves: claim, hold, release, again."""

    def __init__(self, labels: LabelRegistry, redis: Redis, rng: random.Random) -> None:
        self.labels = labels
        self.redis = redis
        self.believed: dict[str, list[str]] = {}
        self.wins = 0
        self._rng = rng
        labels.on_lost = self._lost

    def _lost(self, session: str, label: str) -> None:
        self.believed.pop(session, None)

    async def work(self, going_on: Callable[[], bool]) -> None:
        number = 0
        while going_on():
            number += 1
            session = f"s{number}"
            wanted = self._rng.sample("abcde", self._rng.choice([1, 2]))
            try:
                if await self.labels.claim(session, wanted) is None:
                    self.believed[session] = wanted
                    self.wins += 1
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._rng.random() * 0.05)
            if self._rng.random() < 0.7:
                self.believed.pop(session, None)
                await self.labels.release(session)
            for old in list(self.believed)[:-2]:
                self.believed.pop(old, None)
                await self.labels.release(old)


async def test_never_two_owners_under_stalls_and_lost_connections(
    own: RedisServer, prefix: str
) -> None:
    rng = random.Random(7)
    end = time.monotonic() + 4
    checks = 0
    async with AsyncExitStack() as stack:
        gateways = []
        for n in range(4):
            pair = await stack.enter_async_context(
                registry(own, prefix, f"g{n}", ttl_ms=150, reply_timeout=0.2)
            )
            gateways.append(Gateway(*pair, random.Random(n)))

        def check() -> None:
            owners = Counter(
                label
                for gateway in gateways
                if gateway.labels.valid()
                for labels in gateway.believed.values()
                for label in labels
            )
            assert all(count == 1 for count in owners.values()), owners

        async def trouble() -> None:
            while time.monotonic() < end:
                await asyncio.sleep(rng.random() * 0.15)
                kind = rng.choice(["pause", "stall", "drop"])
                if kind == "pause":
                    own.pause()
                    await asyncio.sleep(rng.random() * 0.4)
                    own.resume()
                elif kind == "stall":
                    time.sleep(rng.random() * 0.25)  # noqa: ASYNC251 - the process stands still
                else:
                    wire = rng.choice(gateways).redis._wire
                    if wire is not None:
                        wire.drop("cut by the test")

        tasks = [asyncio.create_task(g.work(lambda: time.monotonic() < end)) for g in gateways]
        tasks.append(asyncio.create_task(trouble()))
        while not all(task.done() for task in tasks):
            check()
            checks += 1
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
    assert checks > 100
    assert all(gateway.wins > 0 for gateway in gateways)
