"""Labels that a group shares, and the rule who owns what, on a real store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from acks.journal import leases_key, owners_key
from app.store.label_list import Owned
from app.store.redis_client import Redis
from tests.servers import RedisServer, wait_for
from tests.store.test_labels import SHORT, registry
from tests.vectors import load


def owners(rows: list[Owned]) -> list[tuple[str, str, str]]:
    """(label, ``holder/session``, group) of every row."""
    return sorted((row.label, f"{row.holder}/{row.session}", row.group) for row in rows)


async def test_members_of_a_group_own_the_same_labels(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        assert await a.claim("s1", ["x", "y"], "workers") is None
        assert await a.claim("s2", ["y", "x"], "workers") is None
        assert await b.claim("s1", ["x", "y"], "workers") is None
        assert a.valid()
        assert b.valid()
        assert (a.owned, b.owned) == (4, 2)
        assert owners(await a.list.owners()) == [
            (label, owner, "workers") for label in "xy" for owner in ("a/s1", "a/s2", "b/s1")
        ]
        assert owners(await b.list.owners(["y"])) == [
            ("y", owner, "workers") for owner in ("a/s1", "a/s2", "b/s1")
        ]
        assert await b.list.owners(["z"]) == []


@pytest.mark.parametrize(
    ("labels", "group", "taken"),
    [
        (["x"], "", "x"),
        (["x", "y"], "", "x"),
        (["x"], "workers", "x"),
        (["x", "y", "z"], "workers", "z"),
        (["free", "y"], "others", "y"),
        (["mine"], "workers", "mine"),
        (["free", "mine"], "others", "mine"),
    ],
)
async def test_nobody_else_gets_them(
    shared: RedisServer, prefix: str, labels: list[str], group: str, taken: str
) -> None:
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        assert await a.claim("s1", ["x", "y"], "workers") is None
        assert await a.claim("s2", ["mine"]) is None
        for claimer in (a, b):
            assert await claimer.claim("s3", labels, group) == taken
        assert await b.claim("s4", ["free", "z"]) is None, "nothing of the refused sets was kept"


async def test_the_last_member_frees_the_labels(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        assert await a.claim("s1", ["x"], "workers") is None
        assert await b.claim("s1", ["x"], "workers") is None
        await a.release("s1")
        assert await a.claim("s2", ["x"]) == "x"
        await b.close()
        assert await a.claim("s3", ["x", "y"], "workers") is None, "with other labels than before"


async def test_a_group_outlives_a_member_that_vanished(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "b", SHORT) as (b, _):
        async with registry(shared, prefix, "a", SHORT) as (a, redis):
            assert await a.claim("s", ["x"], "workers") is None
            assert await b.claim("s", ["x"], "workers") is None
            await redis.close()  # as if its process had died: nothing is released
        members = 2
        while members > 1:
            members = len(await b.list.owners(["x"]))
            await asyncio.sleep(0.01)
        assert await b.claim("t", ["x"]) == "x"
        assert owners(await b.list.owners()) == [("x", "b/s", "workers")]


async def test_a_group_of_vanished_members_is_gone(shared: RedisServer, prefix: str) -> None:
    async with registry(shared, prefix, "b", SHORT) as (b, _):
        async with registry(shared, prefix, "a", SHORT) as (a, redis):
            assert await a.claim("s", ["x", "y"], "workers") is None
            await redis.close()
        assert await b.claim("s0", ["y"]) == "y"
        attempt = 0
        while await b.claim(f"t{attempt}", ["y"]) is not None:
            attempt += 1
            assert attempt < 500
            await asyncio.sleep(0.02)
        assert await b.claim("u", ["x"]) is None
        found = await b.list.groups("")
        assert found.groups == {}


async def test_what_the_dead_leave_behind_is_cleared_away(
    shared: RedisServer, prefix: str, redis: Redis
) -> None:
    """Also what nobody claims again: a store must not fill up with the labels of the killed."""
    async with registry(shared, prefix, "a", SHORT) as (a, dying):
        await asyncio.gather(*(a.claim(f"s{n}", [f"l:{n}"]) for n in range(700)))
        await asyncio.gather(*(a.claim(f"g{n}", ["l:g"], "workers") for n in range(50)))
        await dying.close()
    async with registry(shared, prefix, "b", SHORT) as (b, _):
        assert await b.claim("mine", ["l:mine"]) is None
        keys: set[bytes] = set()
        async with asyncio.timeout(20):
            while True:
                found = await redis.call("KEYS", f"{prefix}:*")
                assert isinstance(found, list)
                keys = {key for key in found if isinstance(key, bytes)}
                if await redis.call("HLEN", owners_key(prefix)) == 1 and len(keys) == 4:
                    break
                await asyncio.sleep(0.01)
        assert {key.decode().partition("{labels}:")[2] for key in keys} == {
            "owners", "leases", "version", "of:b",
        }  # fmt: skip
        assert await redis.call("ZCARD", leases_key(prefix)) == 1


async def test_a_member_claims_anew_after_a_gap(own: RedisServer, prefix: str) -> None:
    lost: list[tuple[str, str]] = []
    async with registry(own, prefix, "a") as (a, redis), registry(own, prefix, "b") as (b, other):
        a.on_lost = lambda session, label: lost.append((session, label))
        assert await a.claim("s1", ["x"], "workers") is None
        assert await a.claim("s2", ["y"], "drivers") is None
        await other.call("FLUSHALL")
        assert await b.claim("s1", ["x"], "workers") is None
        assert await b.claim("s2", ["y", "z"], "drivers") is None
        await other.call("CLIENT", "KILL", "ID", await redis.call("CLIENT", "ID"))  # type: ignore[arg-type] # an integer
        await wait_for(lambda: redis.connections == 2 and a.valid())
        assert lost == [("s2", "y")], "its group has other labels now"
        assert owners(await a.list.owners()) == [
            ("x", "a/s1", "workers"),
            ("x", "b/s1", "workers"),
            ("y", "b/s2", "drivers"),
            ("z", "b/s2", "drivers"),
        ]


async def test_the_version_changes_with_the_groups_only(
    shared: RedisServer, prefix: str, redis: Redis
) -> None:
    async with registry(shared, prefix, "a") as (a, _):
        assert await a.claim("s1", ["x"]) is None
        assert (await a.list.groups("")).version == "0"
        versions: list[str] = []
        for change in (
            a.claim("s2", ["y", "z"], "workers"),
            a.claim("s3", ["z", "y"], "workers"),
            a.release("s2"),
            a.release("s3"),
        ):
            await change
            found = await a.list.groups(versions[-1] if versions else "")
            assert found.groups is not None
            assert list(found.leases) == ["a"]
            versions.append(found.version)
            again = await a.list.groups(found.version)
            assert again._replace(leases={}) == (found.version, {}, None)
            await a.claim(f"t{len(versions)}", [f"t{len(versions)}"])
            assert (await a.list.groups(found.version)).groups is None
        assert len(set(versions)) == 4
        assert (await a.list.groups("")).groups == {}


@pytest.mark.parametrize(("given", "expected"), load("ack.registry"))
async def test_vectors(
    shared: RedisServer, prefix: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Declarations of nodes and groups; with us a label has one owner at once, not eventually."""
    async with registry(shared, prefix, "1") as (one, _), registry(shared, prefix, "2") as (two, _):
        nodes = {1: one, 2: two}

        async def declare(index: int, want: dict[str, Any]) -> bool:
            session = f"{want['subscriber']}-{index}"
            group = want.get("group") or ""
            return await nodes[want["node"]].claim(session, want["labels"], group) is None

        before: list[dict[str, Any]] = given["already_declared"]
        wanted: dict[str, Any] = given["declare"]
        if any(want.get("concurrent") for want in before):
            done = await asyncio.gather(*(declare(*pair) for pair in enumerate([*before, wanted])))
            assert sorted(done) == [False, True]
            return
        for index, want in enumerate(before):
            assert await declare(index, want)
        assert await declare(99, wanted) == (expected["result"] == "declared")


async def test_ten_thousand_labels(shared: RedisServer, prefix: str, redis: Redis) -> None:
    """Of many sessions and of few: claimed, listed, and all of them freed at the end."""
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):
        for start in range(0, 8_000, 1_000):
            claims = (a.claim(f"s{n}", [f"l:{n}"]) for n in range(start, start + 1_000))
            assert set(await asyncio.gather(*claims)) == {None}
        for session in range(2):
            many = [f"m:{session}:{n}" for n in range(1_000)]
            assert await b.claim(f"many{session}", many) is None
        assert (a.owned, b.owned) == (8_000, 2_000)
        found = await b.list.owners()
        assert len({row.label for row in found}) == len(found) == 10_000
        assert len(await b.list.owners(limit=100)) == 100
        assert await b.claim("other", ["free", "l:7999"]) == "l:7999"
    assert await redis.call("HLEN", owners_key(prefix)) == 0
    assert await redis.call("EXISTS", f"{prefix}:{{labels}}:of:a") == 0
