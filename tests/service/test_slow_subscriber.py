"""A subscriber that does not read is cut off at its bound; others do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.callers import Caller
from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, running, thing
from tests.servers import RedisServer, wait_for

EVENT = 90_000
EVENTS = 180
"""Times EVENT bytes: more than the kernel's buffers of one connection and the outbox hold."""
THINGS, SEARCHES = 20, 9
"""As many times EVENT bytes: searches that each find so many things."""


@pytest.fixture(scope="module")
def small(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(
        tmp_path_factory.mktemp("small"),
        redis_url=store.url,
        prefix="small",
        session_outbox="256KiB",
    )
    with running(gateway):
        yield gateway


async def flood(client: httpx.AsyncClient, labels: str) -> None:
    """Write EVENTS large events and expect all acks of each."""

    async def write() -> None:
        body = {"attributes": {"a": "x" * EVENT}}
        answer = await client.put(thing(new_id()), json=body, params={"requested-acks": labels})
        assert answer.is_success, answer.text

    for _ in range(EVENTS // 10):
        await asyncio.gather(*(write() for _ in range(10)))


async def sessions(gateway: Gateway) -> int:
    async with http(gateway, "devops") as operator:
        text = (await operator.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith("ackgate_sessions{"))
    return int(float(line.rpartition(" ")[2]))


async def test_it_is_cut_off_and_its_label_is_free(small: Gateway) -> None:
    slow, fine = new_label(), new_label()
    async with (
        http(small) as client,
        Subscriber.open(small, fine, ack=ack_all) as good,
        Subscriber.open(small, slow) as bad,
    ):
        bad.connection.transport.pause_reading()
        await flood(client, f"twin-persisted,{fine}")
        async with asyncio.timeout(20):
            while await sessions(small) == 2:  # noqa: ASYNC110 - another process: nothing to wait on
                await asyncio.sleep(0.05)
        assert len(good.events) == EVENTS
        async with Subscriber.open(small, slow) as successor:
            assert successor.errors == []
        bad.connection.transport.abort()


async def test_it_is_told_so_if_it_reads_on_in_time(small: Gateway) -> None:
    async with http(small) as client, Subscriber.open(small) as bad:
        bad.connection.transport.pause_reading()
        await flood(client, "twin-persisted")
        bad.connection.transport.resume_reading()
        code, reason = await bad.closed()
        assert (code, reason) == (1013, "The subscriber is too slow; you may reconnect.")
        revisions = [event["revision"] for event in bad.events]
        assert 0 < len(revisions) < EVENTS


async def search(caller: Caller) -> None:
    """Begin SEARCHES searches and request all their pages at once."""
    topic = "_/_/things/twin/search"
    for _ in range(SEARCHES):
        created = await caller.ask(f"{topic}/subscribe", value={"options": "size(5)"})
        await caller.tell(f"{topic}/request", value={**created["value"], "demand": 2**63 - 1})


async def found(caller: Caller) -> None:
    """Wait for the ends of the searches, and assert that all pages came."""
    kinds = ["created"] * SEARCHES + ["next"] * SEARCHES * (THINGS // 5) + ["complete"] * SEARCHES
    await wait_for(lambda: len(caller.frames) >= len(kinds), 30, "the end of all searches")
    assert sorted(frame["topic"].rpartition("/")[2] for frame in caller.frames) == sorted(kinds)


async def test_pages_of_a_search_wait_for_who_reads_slowly(
    store: RedisServer, tmp_path: Path
) -> None:
    """More than the kernel's buffers and the outbox hold is requested at once, and comes."""
    gateway = Gateway(
        tmp_path, redis_url=store.url, prefix="search-slow", session_outbox="1MiB",
        search_index="sqlite",
    )  # fmt: skip
    with running(gateway):
        async with http(gateway) as client, Caller.open(gateway) as slow:
            acks = {"requested-acks": "search-persisted", "timeout": "20s"}
            for _ in range(THINGS):
                body = {"attributes": {"a": "x" * EVENT}}
                made = await client.put(thing(new_id()), json=body, headers=acks)
                assert made.is_success, made.text
            await search(slow)
            slow.connection.transport.pause_reading()
            # As long as this takes, the other one's pages would come too, if they could.
            async with Caller.open(gateway) as other:
                await search(other)
                await found(other)
            slow.connection.transport.resume_reading()
            await found(slow)
