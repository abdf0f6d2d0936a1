"""Streams of server-sent events that break and go on, by ``Last-Event-ID``."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from acks.bookmark import START, Positions, read_bookmark, read_position, write_bookmark
from acks.journal import DEFAULT_SHARDS, journal_key, shard_of
from tests.events import STREAM, THINGS, events, mark_now, put
from tests.gateways import Gateway, RawHttp, basic, check_error, http, new_id, running, thing
from tests.servers import RedisServer, wait_for
from tests.service.test_operations import metrics
from tests.service.test_sse import HIDE, READ, policy, send

PREFIX = "service"  # of the gateways that the tests of this folder share
LARGE = 90_000
FLOOD = 180
"""Times LARGE bytes: more than the kernel's buffers of one connection and the outbox hold."""


def name_in(shard: int) -> str:
    """A new thing in this shard."""
    return next(name for name in iter(new_id, "") if shard_of(name, DEFAULT_SHARDS) == shard)


# --- nothing is lost, nothing comes twice


async def test_a_stream_goes_on_after_what_its_client_has(client: httpx.AsyncClient) -> None:
    names = [name_in(number % DEFAULT_SHARDS) for number in range(20)]
    ids = ",".join(names)
    async with events(client, ids=ids) as stream:
        for name in names:
            await put(client, name, {"attributes": {"n": 0}})
        await stream.event(count=20)
    for turn in (1, 2):
        for name in names:
            await put(client, name, turn, "/attributes/n")
    async with events(client, last=stream.told[9].mark, ids=ids) as again:
        await put(client, names[0], 3, "/attributes/n")
        await again.event(count=51)
    told = [(one["thingId"], one["attributes"]["n"]) for one in again.things]
    missed = [one["thingId"] for one in stream.things[10:]]
    assert sorted(told[:10]) == sorted((name, 0) for name in missed)
    assert told[10:50] == [(name, turn) for turn in (1, 2) for name in names]
    assert told[50] == (names[0], 3)


async def test_what_was_never_told_has_a_bookmark_too(client: httpx.AsyncClient) -> None:
    """A client that got nothing yet resumes from where it began; and marks move on unseen."""
    name = new_id()
    async with events(client, ids=name) as stream:
        begun = stream.mark
        await put(client, new_id(), {})
        await wait_for(lambda: stream.mark != begun, 10, "a later bookmark")
        assert not stream.told
    await put(client, name, {})
    for mark in (begun, stream.mark):
        async with events(client, last=mark, ids=name) as again:
            await again.event()
            assert len(again.told) == 1


async def test_a_browser_may_begin_anew_with_a_bookmark_in_the_query(
    client: httpx.AsyncClient,
) -> None:
    name = new_id()
    async with events(client, thing(name), fields="_revision") as stream:
        for _ in range(3):
            await put(client, name, {})
        await stream.event(count=3)
    first, second = ({"last-event-id": told.mark} for told in stream.told[:2])
    async with events(client, thing(name), fields="_revision", **first) as again:
        await again.event(count=2)
        assert again.things == [{"_revision": 2}, {"_revision": 3}]
    last = second["last-event-id"]
    async with events(client, thing(name), last=last, fields="_revision", **first) as third:
        await third.heartbeat()
        assert third.things == [{"_revision": 3}], "the header is newer"
    answer = await client.get(thing(name), params={"last-event-id": "x"}, headers=STREAM)
    check_error(answer, 400, "header.invalid")


async def test_any_event_is_a_place_to_begin_after(client: httpx.AsyncClient) -> None:
    name = new_id()
    async with events(client, thing(name), fields="_revision") as stream:
        await put(client, name, {})
        for _ in range(30):
            await put(client, name, {}, "/attributes")
        await stream.event(count=31)
    for at in (0, 1, 15, 29):
        last = stream.told[at].mark
        async with events(client, thing(name), last=last, fields="_revision") as again:
            await again.event(count=30 - at)
            assert again.things == [{"_revision": number} for number in range(at + 2, 32)]
        # Those of a replay are as good as those of live events.
        last = again.told[0].mark
        async with events(client, thing(name), last=last, fields="_revision") as third:
            await put(client, new_id(), {})
            await third.heartbeat()
            assert third.things == [{"_revision": number} for number in range(at + 3, 32)]


async def test_no_loss_and_no_duplicate_while_events_keep_coming(
    gateway: Gateway, sibling: Gateway, client: httpx.AsyncClient
) -> None:
    """Thousands of events, written through both processes, read on both by a stream that breaks."""
    names = [new_id() for _ in range(24)]
    rounds, ids = 125, ",".join(names)
    seen: dict[str, list[int]] = defaultdict(list)
    mark = await mark_now(client)

    async def write(through: httpx.AsyncClient, name: str) -> None:
        for number in range(rounds):
            await put(through, name, {"attributes": {"n": number}})

    async with http(gateway) as one, http(sibling) as two:
        writers = [
            asyncio.create_task(write((one, two)[number % 2], name))
            for number, name in enumerate(names)
        ]
        breaks = 0
        while sum(map(len, seen.values())) < rounds * len(names):
            through = (one, two)[breaks % 2]
            async with events(through, last=mark, ids=ids, fields="thingId,_revision") as stream:
                count = min(1 + 37 * breaks, rounds * len(names) - sum(map(len, seen.values())))
                await stream.event(count=count, deadline=60)
                for told in stream.told:
                    assert not told.kind
                    seen[told.data["thingId"]].append(told.data["_revision"])
                mark = stream.told[-1].mark
            breaks += 1
        await asyncio.gather(*writers)
    assert seen == {name: list(range(1, rounds + 1)) for name in names}
    assert breaks > 5


async def test_a_large_replay_meets_live_events(client: httpx.AsyncClient) -> None:
    """More bytes than a stream holds back, and live events all the while."""
    names = [new_id() for _ in range(4)]
    mark = await mark_now(client)
    text = "x" * LARGE
    for number in range(60):
        await put(client, names[number % 4], {"attributes": {"n": number, "text": text}})
    async with events(client, last=mark, ids=",".join(names), fields="attributes/n") as stream:
        for number in range(60, 100):
            await put(client, names[number % 4], {"attributes": {"n": number, "text": text}})
        await stream.event(count=100, deadline=60)
    told = [one["attributes"]["n"] for one in stream.things]
    assert sorted(told) == list(range(100))
    for remainder in range(4):
        mine = [number for number in told if number % 4 == remainder]
        assert mine == sorted(mine)


@pytest.mark.parametrize("extra", ["", "attributes/room"])
async def test_more_comes_live_than_a_stream_may_hold_back(
    place: Path, store: RedisServer, extra: str
) -> None:
    """While it replays; with extra fields each event waits for a read of its twin."""
    one = Gateway(place, redis_url=store.url, prefix="narrow", session_outbox="128KiB")
    names, before, after = [new_id() for _ in range(10)], 100, 60
    with running(one):
        async with http(one) as client:
            mark = await mark_now(client)

            async def write(name: str, numbers: range) -> None:
                for number in numbers:
                    value = {"attributes": {"n": number, "room": "kitchen", "text": "x" * 1500}}
                    await put(client, name, value)

            await asyncio.gather(*(write(name, range(before)) for name in names))
            writers = [
                asyncio.create_task(write(name, range(before, before + after))) for name in names
            ]
            params = {"ids": ",".join(names), "fields": "thingId,_revision,attributes/text"}
            if extra:
                params["extraFields"] = extra
            async with events(client, last=mark, **params) as stream:
                await stream.event(count=len(names) * (before + after), deadline=60)
                await asyncio.gather(*writers)
    for name in names:
        mine = [told for told in stream.things if told["thingId"] == name]
        assert [told["_revision"] for told in mine] == list(range(1, before + after + 1))
        if extra:
            assert all(told["attributes"]["room"] == "kitchen" for told in mine)


async def test_everything_applies_to_what_is_replayed(
    client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    mark = await mark_now(client)
    partly, hidden, end = new_id(), new_id(), new_id()
    rules = policy(("thing:/attributes", READ), ("thing:/attributes/secret", HIDE))
    await put(client, hidden, {"attributes": {"open": 2}})
    await put(client, partly, {"_policy": rules, "attributes": {"open": 1, "secret": 1}})
    await put(client, partly, 2, "/attributes/secret")
    await put(client, partly, 2, "/attributes/open")
    await put(client, partly, {}, "/features")
    await put(client, partly, 3, "/attributes/open")
    await put(user2, end, {"attributes": {"open": 2, "end": True}})

    async def told(**params: str) -> list[Any]:
        ids = f"{partly},{hidden},{end}"
        async with events(user2, last=mark, ids=ids, **params) as stream:
            await wait_for(lambda: any("end" in one.text for one in stream.told), 10, "the end")
            return stream.things

    def change(number: int) -> dict[str, Any]:
        return {"thingId": partly, "attributes": {"open": number}}

    created, *changes, last = await told()
    assert created["attributes"] == {"open": 1}
    assert changes == [change(2), change(3)]
    assert last == {"thingId": end, "policyId": end, "attributes": {"open": 2, "end": True}}
    assert await told(fields="thingId,attributes", filter="eq(attributes/open,2)") == [
        change(2),
        {"thingId": end, "attributes": {"open": 2, "end": True}},
    ]
    secret = "or(eq(attributes/secret,2),exists(attributes/end))"
    assert [one["thingId"] for one in await told(filter=secret)] == [end]
    enriched = await told(extraFields="attributes", fields="_revision")
    assert enriched == [
        {"_revision": 1, "attributes": {"open": 3}},
        {"_revision": 3, "attributes": {"open": 3}},
        {"_revision": 5, "attributes": {"open": 3}},
        {"_revision": 1, "attributes": {"open": 2, "end": True}},
    ]


async def test_messages_are_replayed(client: httpx.AsyncClient) -> None:
    name = new_id()
    await put(client, name, {})
    inbox = thing(name, "/inbox/messages")
    async with events(client, inbox) as stream:
        await send(client, f"{inbox}/a", b"1", "text/plain")
        await stream.event()
    await put(client, name, {})
    await send(client, f"{inbox}/b", b"2", "text/plain")
    async with events(client, inbox, last=stream.mark) as again:
        await send(client, f"{inbox}/c", b"3", "text/plain")
        await again.event(count=2)
        assert [(one.kind, one.text) for one in again.told] == [("b", "2"), ("c", "3")]


# --- gaps


@pytest.fixture
def journal(store: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(store.url) as connection:
        yield connection


def trim(journal: redis.Redis, prefix: str, shard: int, keep: int) -> bytes:
    """Leave the newest entries of a shard; the id of the first of them."""
    key = journal_key(prefix, shard)
    journal.xtrim(key, maxlen=keep, approximate=False)
    return ids(journal, key)[0]


def ids(journal: redis.Redis, key: str) -> list[bytes]:
    """The ids of all entries of a shard."""
    entries: Any = journal.xrange(key)
    return [entry for entry, _ in entries]


def moment(text: str) -> int:
    """An instant in ms since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def test_what_was_trimmed_is_a_gap(client: httpx.AsyncClient, journal: redis.Redis) -> None:
    shard = 3
    name = name_in(shard)
    mark = await mark_now(client)
    for number in range(10):
        await put(client, name, {"attributes": {"n": number}})
    first = trim(journal, PREFIX, shard, 4)
    async with events(client, last=mark, ids=name) as stream:
        await stream.event(count=5)
        await put(client, name, {"attributes": {"n": 10}})
        await stream.event(count=6)
    gap, *rest = stream.told
    assert [one.data["attributes"]["n"] for one in rest] == [6, 7, 8, 9, 10]
    assert gap.kind == "gap"
    assert moment(gap.data["before"]) == read_position(first)[0]
    begun = read_bookmark(mark, DEFAULT_SHARDS)[shard]
    assert moment(gap.data["after"]) == begun[0]
    assert gap.mark == mark, "a gap is no place to go on from"
    async with events(client, last=rest[0].mark, ids=name) as again:
        await again.event(count=4)
        assert [one.kind for one in again.told] == [""] * 4


async def test_trimming_what_a_client_has_is_no_gap(
    client: httpx.AsyncClient, journal: redis.Redis
) -> None:
    shard = 5
    name = name_in(shard)
    async with events(client, ids=name) as stream:
        for number in range(6):
            await put(client, name, {"attributes": {"n": number}})
        await stream.event(count=6)
    trim(journal, PREFIX, shard, 3)
    async with events(client, last=stream.told[3].mark, ids=name) as again:
        await again.event(count=2)
        assert [one.data["attributes"]["n"] for one in again.told] == [4, 5]


@pytest.fixture
def fresh(place: Path, store: RedisServer) -> Iterator[Gateway]:
    """A gateway with a journal of its own, in which nothing has been written."""
    one = Gateway(place, redis_url=store.url, prefix=f"fresh{place.name}")
    with running(one):
        yield one


def prefix_of(place: Path) -> str:
    return f"fresh{place.name}"


async def test_where_nothing_was_written_nothing_is_missing(
    fresh: Gateway, place: Path, journal: redis.Redis
) -> None:
    async with http(fresh) as client:
        mark = await mark_now(client)
        assert read_bookmark(mark, DEFAULT_SHARDS) == (START,) * DEFAULT_SHARDS
        name = name_in(0)
        for number in range(6):
            await put(client, name, {"attributes": {"n": number}})
        async with events(client, last=mark) as stream:
            await stream.event(count=6)
            assert [one.kind for one in stream.told] == [""] * 6
        trim(journal, prefix_of(place), 0, 2)
        async with events(client, last=mark) as stream:
            await stream.event(count=3)
            assert [one.kind for one in stream.told] == ["gap", "", ""]
            assert stream.told[0].data["after"] is None


async def test_a_journal_that_lost_its_end_says_so_and_goes_on(
    fresh: Gateway, place: Path, journal: redis.Redis
) -> None:
    name, other = name_in(1), name_in(2)
    async with http(fresh) as client:
        async with events(client) as stream:
            for number in range(4):
                await put(client, name, {"attributes": {"n": number}})
                await put(client, other, {"attributes": {"n": number}})
            await stream.event(count=8)
        key = journal_key(prefix_of(place), 1)
        lost = ids(journal, key)[2:]
        journal.xdel(key, *lost)
        async with events(client, last=stream.mark) as again:
            await put(client, name, {"attributes": {"n": 9}})
            await put(client, other, {"attributes": {"n": 9}})
            await again.event(count=3)
            gap, *rest = again.told
        assert gap.kind == "gap"
        assert moment(gap.data["before"]) == read_position(lost[-1])[0]
        assert [one.data["attributes"]["n"] for one in rest] == [9, 9]


async def test_a_bookmark_of_another_layout_is_refused(client: httpx.AsyncClient) -> None:
    positions: Positions = (START,) * (DEFAULT_SHARDS + 1)
    answer = await client.get(
        THINGS, headers={**STREAM, "last-event-id": write_bookmark(positions)}
    )
    check_error(answer, 400, "header.invalid")


# --- ends


async def test_streams_are_sessions(place: Path, store: RedisServer) -> None:
    one = Gateway(place, redis_url=store.url, prefix="bounded", max_sessions="2")
    with running(one):
        async with http(one) as client:
            async with events(client), events(client, thing(new_id(), "/inbox/messages")):
                seen = await metrics(one)
                assert seen["ackgate_event_streams"] == {"0": 2}
                assert seen["ackgate_sessions"] == {"0": 2}
                refused = await client.get(THINGS, headers=STREAM)
                check_error(refused, 503, "gateway:service.unavailable")

            async def freed() -> bool:
                seen = await metrics(one)
                return seen["ackgate_event_streams"] == seen["ackgate_sessions"] == {"0": 0}

            async with asyncio.timeout(15):
                while not await freed():  # noqa: ASYNC110 - another process: nothing to wait on
                    await asyncio.sleep(0.02)
            async with events(client):
                pass


async def test_a_drain_ends_streams_and_they_go_on_elsewhere(
    place: Path, store: RedisServer, sibling: Gateway
) -> None:
    one = Gateway(place, redis_url=store.url, prefix=PREFIX)
    name = new_id()
    with running(one):
        async with http(one) as client, events(client, ids=name) as stream:
            await put(client, name, {})
            await stream.event()
            one.terminate()
            await stream.closed()
            assert stream.ended, "the answer was ended, not broken off"
            assert stream.comments[-1] == "The gateway restarts; you may reconnect."
            assert await one.ended() == 0
    async with http(sibling) as client:
        await put(client, name, {"attributes": {"a": 1}})
        async with events(client, last=stream.mark, ids=name) as again:
            await again.event()
            assert [one["attributes"] for one in again.things] == [{"a": 1}]


async def test_who_does_not_read_is_cut_off_and_goes_on_later(
    place: Path, store: RedisServer
) -> None:
    one = Gateway(place, redis_url=store.url, prefix="slow", session_outbox="1MiB")
    name, small = new_id(), {"fields": "attributes/n"}
    with running(one):
        async with http(one) as client, RawHttp.open(one) as slow, events(client, **small) as fine:
            await slow.send(
                f"GET {THINGS} HTTP/1.1\r\nHost: gateway.test\r\nAccept: text/event-stream\r\n"
                f"Authorization: {basic('ditto')}\r\n\r\n".encode()
            )
            head = (await slow.reader.readuntil(b"\n\n")).decode()
            mark = head.partition("\nid: ")[2].splitlines()[0]
            slow.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a slow client
            for number in range(FLOOD):
                await put(client, name, {"attributes": {"n": number, "text": "x" * LARGE}})

            async def alone() -> bool:
                return (await metrics(one))["ackgate_event_streams"] == {"0": 1}

            async with asyncio.timeout(20):
                while not await alone():  # noqa: ASYNC110 - another process: nothing to wait on
                    await asyncio.sleep(0.05)
            await fine.event(count=FLOOD)
            assert "ASGI" not in one.log
        async with http(one) as client, events(client, last=mark, **small) as again:
            await again.event(count=FLOOD, deadline=60)
            assert [told["attributes"]["n"] for told in again.things] == list(range(FLOOD))
