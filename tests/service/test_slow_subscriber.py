"""A subscriber that does not read is cut off at its bound; others do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, running, thing
from tests.servers import RedisServer

EVENT = 90_000
EVENTS = 180
"""Times EVENT bytes: more than the kernel's buffers of one connection and the outbox hold."""


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
