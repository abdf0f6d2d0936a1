"""``--workers 2``: one port, two processes, one parent that looks after them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateways import (
    Gateway,
    RawHttp,
    Subscriber,
    ack_all,
    alive,
    http,
    new_id,
    new_label,
    thing,
)
from tests.servers import wait_for
from tests.service.test_operations import metrics


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path, options=("--dev", "--workers", "2"))
    gateway.start()
    yield gateway
    gateway.stop()


def workers(gateway: Gateway) -> list[int]:
    """Process ids of the workers: the children that are not the store."""
    store = gateway.store_pid()
    return [pid for pid in gateway.children() if pid != store]


async def both_workers_seen(gateway: Gateway) -> dict[str, dict[str, float]]:
    """Ask over new connections until the metrics show both workers, ready."""
    async with asyncio.timeout(15):
        while True:
            values = await metrics(gateway)
            if values["ackgate_ready"] == {"0": 1, "1": 1}:
                return values
            await asyncio.sleep(0.05)


async def test_both_serve_and_their_metrics_stand_side_by_side(pair: Gateway) -> None:
    await both_workers_seen(pair)
    label = new_label()
    async with Subscriber.open(pair, label, ack=ack_all):

        async def one() -> None:
            async with http(pair) as client:  # a connection of its own: to either worker
                params = {"requested-acks": f"twin-persisted,{label}"}
                answer = await client.put(thing(new_id()), json={}, params=params)
                assert answer.status_code == 200

        async with asyncio.timeout(60):
            while True:
                await asyncio.gather(*(one() for _ in range(10)))
                submitted = (await metrics(pair))["ackgate_submitted_total"]
                if set(submitted) == {"0", "1"} and min(submitted.values()) > 0:
                    break
        accepted = (await metrics(pair))["ackgate_acks_accepted_total"]
        assert sum(accepted.values()) > 0


async def test_a_killed_worker_is_replaced_and_sigterm_ends_them_all(pair: Gateway) -> None:
    await both_workers_seen(pair)
    store = pair.store_pid()
    victim, survivor = workers(pair)
    os.kill(victim, signal.SIGKILL)
    await wait_for(lambda: len(workers(pair)) == 2 and victim not in workers(pair), 15)
    assert survivor in workers(pair)
    await both_workers_seen(pair)
    died = pair.events("worker.died")
    assert [entry["exit_code"] for entry in died][:1] == [-9]
    everyone = [*workers(pair), store]
    name = new_id()
    async with http(pair) as client, RawHttp.open(pair):  # an idle connection must not hold it up
        assert (await client.put(thing(name), json={})).status_code == 201
        pair.terminate()
        assert await pair.ended() == 0
    assert not any(map(alive, everyone))


async def test_a_killed_store_is_restarted_by_the_parent(pair: Gateway) -> None:
    name = new_id()
    async with http(pair) as client:
        assert (await client.put(thing(name), json={})).status_code == 201
    os.kill(pair.store_pid(), signal.SIGKILL)
    await wait_for(lambda: pair.events("store.server_restarted"), 15)
    async with asyncio.timeout(15):
        while True:
            async with http(pair) as client:  # a worker that has not noticed yet says 503
                answer = await client.get(thing(name))
            if answer.status_code == 200:
                break
            assert answer.status_code == 503, "never 404: the thing is there"
            await asyncio.sleep(0.02)


async def test_the_end_of_a_killed_parent_is_the_end_of_all(pair: Gateway) -> None:
    await both_workers_seen(pair)
    everyone = pair.children()
    assert len(everyone) == 3
    pair.kill9()
    await wait_for(lambda: not any(map(alive, everyone)), 20, "end of the children")
    await pair.start_async()


async def test_sigterm_while_workers_start_is_not_lost(tmp_path: Path) -> None:
    """A worker that missed it would serve on until the parent loses patience, here after 65 s."""
    gateway = Gateway(tmp_path, options=("--dev", "--workers", "2"), drain_timeout="60s")
    try:
        for _ in range(5):
            gateway.spawn()
            await wait_for(lambda: len(gateway.children()) == 3, 20, "store and two workers")
            everyone = gateway.children()
            gateway.terminate()
            assert await gateway.ended(20) == 0
            assert not any(map(alive, everyone))
    finally:
        gateway.stop()
