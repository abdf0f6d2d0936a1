"""Whatever becomes of messages, and whenever the broker goes: all of them are settled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from dataclasses import replace

import orjson

from acks.errors import error
from acks.settlement import Settlement
from connections.driver import Delivery, Limits, OnDelivery, OnLost, OnStatus
from connections.model import Connection
from connections.ports import Answer, OnAnswer, Sender
from connections.supervisor import State, Supervisor
from tests.connections.memory import (
    PACE,
    Broker,
    MemoryDriver,
    MemoryGate,
    connection,
    modify,
    response,
    source,
)
from tests.servers import wait_for

MESSAGES = 2_000
IN_FLIGHT = 20


class Queue(Broker):
    """Gives out at most IN_FLIGHT messages, and again what was given back or left."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = deque(str(number) for number in range(MESSAGES))
        self.out: dict[str, Delivery] = {}
        self.ended: dict[str, Settlement] = {}
        self.most_out = 0
        self.given_out: Counter[str] = Counter()

    def __call__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> QueueDriver:
        driver = QueueDriver(self, generation, limits)
        self.drivers.append(driver)
        return driver

    async def until(self, ended: int) -> None:
        await wait_for(lambda: len(self.ended) >= ended, 60.0)


class QueueDriver(MemoryDriver):
    """One client of the queue."""

    broker: Queue

    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        await super().open(on_delivery, on_lost, on_status)
        self.alive = True
        self.give()

    def give(self) -> None:
        queue = self.broker
        while self.alive and queue.ready and len(queue.out) < IN_FLIGHT:
            identity = queue.ready.popleft()
            queue.given_out[identity] += 1
            headers = {"id": identity}
            payload = orjson.dumps(modify(identity))
            queue.out[identity] = Delivery(
                0, "in", payload, headers, None, identity, None, self.generation
            )
            queue.most_out = max(queue.most_out, len(queue.out))
            self.on_delivery(queue.out[identity])

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        queue = self.broker
        assert queue.out[delivery.identity] is delivery, "settled twice, or for another generation"
        del queue.out[delivery.identity]
        if settlement is Settlement.REDELIVER:
            queue.ready.append(delivery.identity)
        else:
            queue.ended[delivery.identity] = settlement
        asyncio.get_running_loop().call_soon(self.give)

    def leave(self) -> None:
        """All that is not settled comes again."""
        if self.alive:
            self.alive = False
            self.broker.ready.extend(self.broker.out)
            self.broker.out.clear()

    async def close(self, grace_s: float) -> None:
        self.leave()
        await super().close(grace_s)


class RandomGate(MemoryGate):
    """Answers at once, later, twice or never, with whatever status; some requests want none."""

    def submit(self, envelope: object, sender: Sender, on_answer: OnAnswer) -> bool:
        answer = random.choice(_ANSWERS)
        when = random.random()
        loop = asyncio.get_running_loop()
        if when < 0.4:
            on_answer(answer)
        elif when < 0.8:
            loop.call_later(random.random() * 0.02, on_answer, answer)
        elif when < 0.9:
            on_answer(answer)
            loop.call_soon(on_answer, answer)
        elif when < 0.95:
            raise RuntimeError("a defect")
        return random.random() < 0.9


_ANSWERS = (
    *(response(status) for status in (200, 204, 400, 408, 412, 424, 503)),
    Answer(None, (200, 424)),
    Answer(None, (404,), live=True),
    Answer(None, (412,), error=error("things:thing.notfound", thing_id="x", status=412)),
    Answer(None, (503,), error=error("gateway:service.unavailable", reason="x")),
)


async def test_all_messages_are_settled_and_none_too_often() -> None:
    random.seed(4)
    pace = replace(PACE, collect_s=0.05, limits=Limits(in_flight=IN_FLIGHT))
    queue = Queue()
    document = connection(sources=(source(),), specific={"maxRedeliveries": "4"})
    supervisor = Supervisor(document, 0, "node", queue, RandomGate(), {}, pace)
    supervisor.start()
    for _ in range(10):
        done = len(queue.ended)
        await queue.until(min(done + MESSAGES // 20, MESSAGES))
        driver = queue.driver
        assert isinstance(driver, QueueDriver)
        driver.leave()
        driver.on_lost("gone")
        await wait_for(lambda: supervisor.state is State.OPEN)
    await queue.until(MESSAGES)
    assert queue.out == {}
    assert not queue.ready
    assert queue.most_out == IN_FLIGHT
    assert supervisor.pending == 0
    assert set(queue.ended.values()) == {Settlement.ACCEPT, Settlement.DISCARD}
    assert max(queue.given_out.values()) < 40  # 5 tries, and what did not count
    await supervisor.close(1.0)
