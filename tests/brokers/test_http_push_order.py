"""HTTP push: how many requests at once, in which order, and the end of a connection."""

from __future__ import annotations

import asyncio

import pytest

from connections.driver import Limits, Publication, Published
from tests.brokers.http_peer import HttpPeer, document, http_peer, push
from tests.brokers.http_server import Answer, Asked, HttpServer
from tests.brokers.peers import DEADLINE, Client, client
from tests.servers import wait_for

peer = pytest.fixture(http_peer)


# ------------------------------------------------------------- parallelism and order


class Held:
    """Requests that wait for the test to let them go, by body."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._gates: dict[bytes, asyncio.Event] = {}
        server.answers = self._answer

    def let(self, body: bytes) -> None:
        self._gate(body).set()

    async def come(self, count: int) -> list[bytes]:
        """The first ``count`` requests, by body."""
        await wait_for(lambda: len(self.server.asked) >= count, what=f"{count} requests")
        return [asked.body for asked in self.server.asked]

    def _gate(self, body: bytes) -> asyncio.Event:
        return self._gates.setdefault(body, asyncio.Event())

    async def _answer(self, asked: Asked) -> Answer:
        await self._gate(asked.body).wait()
        return Answer()


async def begin(one: Client, *bodies: bytes, keys: bool = False) -> list[asyncio.Task[Published]]:
    """Publications in this order, not waited for; ``keys``: each has its own."""
    tasks = []
    for body in bodies:
        key = body.decode() if keys else None
        task = asyncio.create_task(push(one, Publication("POST:/in", body, None, key=key)))
        tasks.append(task)
    return tasks


async def test_one_request_at_a_time_is_the_default(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server)) as one:
        tasks = await begin(one, b"1", b"2", b"3", keys=True)
        for count, body in enumerate((b"1", b"2", b"3"), 1):
            assert await held.come(count) == [b"1", b"2", b"3"][:count]
            held.let(body)
        assert {(await task).status for task in tasks} == {200}
    assert {asked.connection for asked in peer.server.asked} == {2}  # the first one was the probe


async def test_parallel_requests_keep_the_order_of_a_key(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server, parallelism="2")) as one:
        slow = await begin(one, b"a1", b"a2")  # no key: one lane for the address
        await held.come(1)
        quick: list[asyncio.Task[Published]] = []
        names = [f"k{n}".encode() for n in range(20)]
        for name in names:
            held.let(name)
        quick = await begin(one, *names, keys=True)
        # Those that share the lane of the slow ones wait for them, the others do not.
        await wait_for(lambda: any(task.done() for task in quick), what="a quick one")
        assert [asked.body for asked in peer.server.asked if asked.body[:1] == b"a"] == [b"a1"]
        held.let(b"a1")
        held.let(b"a2")
        assert {(await task).status for task in (*slow, *quick)} == {200}
    bodies = [asked.body for asked in peer.server.asked]
    assert bodies.index(b"a1") < bodies.index(b"a2")
    assert len({asked.connection for asked in peer.server.asked}) == 2


async def test_too_many_publications_at_once(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server), limits=Limits(publishing=2)) as one:
        tasks = await begin(one, b"1", b"2")
        await held.come(1)
        assert (await push(one, Publication("POST:/in", b"3", None))).status == 503
        held.let(b"1")
        held.let(b"2")
        assert {(await task).status for task in tasks} == {200}


async def test_closing_waits_for_requests(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server)) as one:
        (task,) = await begin(one, b"1")
        await held.come(1)
        closing = asyncio.create_task(one.driver.close(DEADLINE))
        await asyncio.sleep(0)
        assert (await push(one, Publication("POST:/in", b"2", None))).status == 503
        held.let(b"1")
        await closing
        assert (await task).status == 200


async def test_closing_does_not_wait_for_ever(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server)) as one:
        tasks = await begin(one, b"1", b"2")
        await held.come(1)
        await one.driver.close(0.05)
        assert {(await task).status for task in tasks} == {500}
    await wait_for(lambda: not peer.server.open, what="the end of the connections")


async def test_an_idle_connection_is_not_used_again(peer: HttpPeer) -> None:
    async with client(peer, document(peer.server, idleTimeout="0s")) as one:
        for _ in range(2):
            await push(one, Publication("POST:/in", b"", None))
    assert len({asked.connection for asked in peer.server.asked}) == 2
