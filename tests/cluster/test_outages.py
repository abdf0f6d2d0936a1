"""A store that hangs or dies, a gateway that dies: bounded waits, recovery by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.journal import assert_gap_free, revisions
from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, running, thing
from tests.servers import RedisServer, redis_server, wait_for

STORE_TIMEOUT = 1.0
LEASE = 1.5


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A store that the test may hurt."""
    with redis_server() as server:
        yield server


@pytest.fixture
def two(own: RedisServer, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    timeout, lease = f"{STORE_TIMEOUT}s", f"{LEASE}s"
    one, other = (
        Gateway(tmp_path, redis_url=own.url, store_timeout=timeout, label_lease=lease)
        for _ in range(2)
    )
    with running(one, other):
        yield one, other


async def served_again(client: httpx.AsyncClient, label: str | None = None) -> None:
    """PUT until it succeeds, by all its acks."""
    params = {"requested-acks": f"twin-persisted,{label}" if label else "twin-persisted"}
    async with asyncio.timeout(30):
        while True:
            answer = await client.put(
                thing(new_id()), json={}, params={**params, "timeout": "500ms"}
            )
            if answer.is_success:
                return
            assert answer.status_code in (408, 424, 503), answer.text
            await asyncio.sleep(0.05)


async def test_a_store_that_hangs(own: RedisServer, two: tuple[Gateway, Gateway]) -> None:
    gateway, other = two
    label = new_label()
    async with (
        http(gateway) as client,
        Subscriber.open(other, label, ack=ack_all) as subscriber,
    ):
        name = new_id()
        assert (await client.put(thing(name), json={})).status_code == 201
        own.pause()
        try:
            began = time.monotonic()
            params = [{"timeout": "200ms"}, {}, {"requested-acks": label}, {}]
            short, *others, read = await asyncio.gather(
                *(client.put(thing(name), json={}, params=given) for given in params),
                client.get(thing(name)),
            )
            took = time.monotonic() - began
            assert (short.status_code, short.json()["error"]) == (408, "command.timeout")
            assert [answer.status_code for answer in (*others, read)] == [503] * 4
            # A generous bound: the store's timeout and its grace, not the 60 s of the requests.
            assert took < STORE_TIMEOUT * 10
            at_once = await client.put(thing(name), json={})
            assert at_once.status_code == 503
            await wait_for(lambda: gateway.health() == 503)
        finally:
            own.resume()
        await served_again(client)
        await wait_for(lambda: gateway.health() == 200 and other.health() == 200, 20)
        await served_again(client, label)
        assert subscriber.errors == [], "its label was its own all the time"
    assert_gap_free(revisions(own.url))


async def test_a_store_that_is_killed_and_started_again(
    own: RedisServer, two: tuple[Gateway, Gateway]
) -> None:
    gateway, other = two
    label = new_label()
    async with (
        http(gateway) as client,
        Subscriber.open(other, label, ack=ack_all) as subscriber,
        Subscriber.open(gateway) as watcher,
    ):
        for _ in range(3):
            before = new_id()
            assert (await client.put(thing(before), json={})).status_code == 201
            own.kill9()
            refused = await client.put(thing(before), json={})
            assert refused.status_code == 503
            own.start()
            assert own.child.poll() is None
            await served_again(client, label)
            assert (await client.get(thing(before))).status_code == 200
        last = new_id()
        assert (await client.put(thing(last), json={})).status_code == 201
        topic = last.replace(":", "/")
        for session in (subscriber, watcher):
            await wait_for(lambda: any(e["topic"].startswith(topic) for e in session.events))  # noqa: B023 - awaited here
            ids = [(e["topic"], e["revision"]) for e in session.events]
            assert len(ids) == len(set(ids)), "no event comes twice"
            assert session.errors == []
        found = revisions(own.url)
        assert_gap_free(found)
        written = {(i.replace(":", "/"), r) for i, rs in found.items() for r in rs}
        seen = {(e["topic"].partition("/things/")[0], e["revision"]) for e in watcher.events}
        assert seen == written, "what was in the journal was delivered, over every restart"


async def test_a_killed_gateways_labels_are_free_after_the_lease(
    own: RedisServer, two: tuple[Gateway, Gateway]
) -> None:
    gateway, mortal = two
    label = new_label()
    async with http(gateway) as client:
        async with Subscriber.open(mortal, label, ack=ack_all):
            params = {"requested-acks": f"twin-persisted,{label}", "timeout": "500ms"}
            assert (await client.put(thing(new_id()), json={}, params=params)).status_code == 200
            mortal.kill9()
            lost = await client.put(thing(new_id()), json={}, params=params)
            assert lost.status_code == 424
            assert lost.json()[label]["status"] == 408
            alone = await client.put(
                thing(new_id()), json={}, params={"requested-acks": label, "timeout": "100ms"}
            )
            assert alone.status_code == 408
        refused = 0
        async with asyncio.timeout(20):
            while True:
                async with Subscriber.open(gateway, label, ack=ack_all, start=None) as successor:
                    await successor.connection.send("START-SEND-EVENTS")
                    await wait_for(lambda: successor.texts or successor.errors)
                    if successor.texts:
                        break
                    refused += 1
                await asyncio.sleep(0.1)
        assert refused > 0, "its lease still ran"
        async with Subscriber.open(gateway, label, ack=ack_all, start=None) as later:
            await later.connection.send("START-SEND-EVENTS")
            await wait_for(lambda: later.texts or later.errors)
            assert later.texts
            answer = await client.put(
                thing(new_id()), json={}, params={"requested-acks": label, "timeout": "5s"}
            )
            assert answer.status_code == 200


async def test_a_gateway_that_hangs_loses_its_labels_and_says_so(
    own: RedisServer, two: tuple[Gateway, Gateway]
) -> None:
    gateway, sleeper = two
    label = new_label()
    async with Subscriber.open(sleeper, label) as first:
        sleeper.pause()
        try:
            async with asyncio.timeout(20):
                while True:
                    async with Subscriber.open(gateway, label, ack=ack_all, start=None) as second:
                        await second.connection.send("START-SEND-EVENTS")
                        await wait_for(lambda: second.texts or second.errors)
                        if second.texts:
                            sleeper.resume()
                            assert (await first.closed())[0] == 1000
                            (problem,) = first.errors
                            code = problem["value"]["error"]
                            assert code == "acknowledgement:label.not.unique"
                            async with http(sleeper) as client:
                                answer = await client.put(
                                    thing(new_id()), json={}, params={"requested-acks": label}
                                )
                            assert answer.status_code == 200
                            return
                    await asyncio.sleep(0.1)
        finally:
            sleeper.resume()
