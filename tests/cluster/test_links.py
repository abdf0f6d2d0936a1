"""Acks between gateway processes: over a link if there is one, else through the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, running, thing
from tests.servers import RedisServer


async def figure(gateway: Gateway, series: str) -> float:
    """The sum of a metric's samples; ``series`` is its name and a part of its labels."""
    name, _, labels = series.partition(" ")
    async with http(gateway, "devops") as operator:
        text = (await operator.get("/metrics")).text
    found = re.findall(rf"^{name}{{[^}}]*{re.escape(labels)}[^}}]*}} (\S+)$", text, re.M)
    assert found, series
    return sum(map(float, found))


async def acknowledged(client: httpx.AsyncClient, label: str) -> None:
    """A request whose ack comes from a subscriber with ``label``."""
    answer = await client.put(thing(new_id()), json={}, params={"requested-acks": label})
    assert answer.status_code == 200, answer.text


async def until_linked(client: httpx.AsyncClient, label: str, there: Gateway) -> None:
    """Send requests that ``there`` acknowledges until it has sent one of the acks over a link."""
    before = await figure(there, 'ackgate_acks_sent_total way="link"')
    async with asyncio.timeout(20):
        while await figure(there, 'ackgate_acks_sent_total way="link"') == before:
            await acknowledged(client, label)


async def test_acks_go_over_a_link_once_there_is_one(a: Gateway, b: Gateway) -> None:
    label = new_label()
    async with Subscriber.open(b, label, ack=ack_all), http(a) as client:
        await until_linked(client, label, b)
        assert await figure(b, "ackgate_links") >= 1
        link = await figure(b, 'ackgate_acks_sent_total way="link"')
        pubsub = await figure(b, 'ackgate_acks_sent_total way="pubsub"')
        await asyncio.gather(*(acknowledged(client, label) for _ in range(100)))
        assert await figure(b, 'ackgate_acks_sent_total way="link"') == link + 100
        assert await figure(b, 'ackgate_acks_sent_total way="pubsub"') == pubsub


@contextmanager
def two(store: RedisServer, place: Path, *links: str) -> Iterator[list[Gateway]]:
    """Two gateways of their own with these values of the setting ``link``."""
    gateways = [
        Gateway(place, redis_url=store.url, prefix=f"links-{'-'.join(links)}", link=link)
        for link in links
    ]
    with running(*gateways):
        yield gateways


async def test_without_links_acks_go_through_the_store(store: RedisServer, tmp_path: Path) -> None:
    with two(store, tmp_path, "off", "auto") as (off, on):
        label, other = new_label(), new_label()
        async with (
            Subscriber.open(off, label, ack=ack_all),
            Subscriber.open(on, other, ack=ack_all),
            http(off) as on_off,
            http(on) as on_on,
        ):
            for _ in range(20):
                await acknowledged(on_on, label)
                await acknowledged(on_off, other)
        for gateway in (off, on):
            assert await figure(gateway, 'ackgate_acks_sent_total way="link"') == 0
            assert await figure(gateway, 'ackgate_acks_sent_total way="pubsub"') == 20
            assert await figure(gateway, "ackgate_links") == 0


async def test_a_killed_process_takes_its_links_with_it_and_its_successor_gets_new_ones(
    a: Gateway, store: RedisServer, tmp_path: Path
) -> None:
    label = new_label()
    mortal = Gateway(tmp_path, redis_url=store.url, prefix="pair")
    async with Subscriber.open(a, label, ack=ack_all):
        await mortal.start_async()
        try:
            before = await figure(a, "ackgate_links")
            async with http(mortal) as client:
                await until_linked(client, label, a)
            assert await figure(a, "ackgate_links") == before + 1
            mortal.kill9()
            async with asyncio.timeout(10):
                while await figure(a, "ackgate_links") != before:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await mortal.start_async()
            async with http(mortal) as client:
                await acknowledged(client, label)
                await until_linked(client, label, a)
        finally:
            mortal.stop()


async def test_a_killed_subscriber_process_has_a_successor_whose_acks_arrive(
    a: Gateway, store: RedisServer, tmp_path: Path
) -> None:
    mortal = Gateway(tmp_path, redis_url=store.url, prefix="pair")
    await mortal.start_async()
    try:
        async with http(a) as client:
            for _ in range(2):
                label = new_label()
                async with Subscriber.open(mortal, label, ack=ack_all):
                    await until_linked(client, label, mortal)
                    mortal.kill9()
                await mortal.start_async()
    finally:
        mortal.stop()


async def test_a_gateway_that_stops_leaves_no_announcement(
    store: RedisServer, tmp_path: Path
) -> None:
    import redis

    gateway = Gateway(tmp_path, redis_url=store.url, prefix="links-stop")
    await gateway.start_async()
    with redis.Redis.from_url(store.url) as client:
        async with asyncio.timeout(10):
            while not list(client.scan_iter("links-stop:link:*")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert gateway.stop() == 0
        assert list(client.scan_iter("links-stop:link:*")) == []
