"""A thread of a client of librdkafka: what it ends with is told to the event loop."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException
from typing_extensions import override

from connections.driver import OpenError
from connections.kafka.threads import Worker
from tests.servers import wait_for


class Ending(Worker):
    """Raises, before or after it has told that it is open."""

    def __init__(self, problem: Exception, lost: list[str], *, opens: bool) -> None:
        super().__init__("test", lost.append)
        self._problem = problem
        self._opens = opens

    @override
    def _work(self) -> None:
        if self._opens:
            self._tell_open()
        raise self._problem

    @override
    def _clean_up(self) -> None:
        """Nothing is held."""


PROBLEMS = [
    (OpenError("credentials", "No."), "No."),
    (KafkaException(KafkaError(KafkaError._TRANSPORT, "away")), "away"),
    (ZeroDivisionError("a defect"), "Encountered <ZeroDivisionError>."),
]


@pytest.mark.parametrize(("problem", "text"), PROBLEMS)
async def test_what_ends_it_before_it_is_open_is_why_it_cannot_be(
    problem: Exception, text: str
) -> None:
    lost: list[str] = []
    worker = Ending(problem, lost, opens=False)
    worker.start()
    with pytest.raises(OpenError, match=text):
        await worker.opened
    await worker.ended
    assert lost == []


@pytest.mark.parametrize(("problem", "text"), PROBLEMS)
async def test_what_ends_it_later_is_a_loss(problem: Exception, text: str) -> None:
    lost: list[str] = []
    worker = Ending(problem, lost, opens=True)
    worker.start()
    await worker.opened
    await wait_for(lambda: lost, what="the loss is told")
    await worker.ended
    assert lost == [text]


async def test_one_that_was_never_started_ends_at_once() -> None:
    worker = Ending(OSError(), [], opens=True)
    worker._stop()
    async with asyncio.timeout(5):
        await worker.ended
    assert not worker.opened.done()
