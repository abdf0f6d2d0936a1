"""Whoever cancels the closing of a driver finds it cancelled, whenever that happens."""

from __future__ import annotations

import asyncio

import pytest

from connections.driver import Limits, Publication
from connections.http_push.driver import HttpPushDriver
from tests.brokers.http_peer import document
from tests.brokers.http_server import Answer, Asked, http_server
from tests.brokers.peers import DEADLINE, Client
from tests.servers import wait_for


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancellation_is_not_lost(steps: int) -> None:
    answered = asyncio.Event()

    async def answer(asked: Asked) -> Answer:
        await answered.wait()
        return Answer()

    async with http_server() as server:
        server.answers = answer
        one = Client(HttpPushDriver(document(server), 0, 1, Limits()))
        await one.open()
        publication = Publication("POST:/in", b"x", None)
        publishing = asyncio.create_task(one.driver.publish(publication, DEADLINE))
        await wait_for(lambda: server.asked, what="the request")
        closing = asyncio.create_task(one.driver.close(DEADLINE))
        await asyncio.sleep(0)  # it waits for the answer
        answered.set()
        await publishing
        for _ in range(steps):  # of the event loop, until after it is told that all is answered
            await asyncio.sleep(0)
        if closing.cancel():
            with pytest.raises(asyncio.CancelledError):
                await closing
        await one.driver.close(1)
