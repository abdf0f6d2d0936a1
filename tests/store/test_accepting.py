"""Beginning accepted requests, and what is told to a store that comes and goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from acks.accepted import Accepted
from acks.errors import GatewayError, error
from acks.headers import Setter, http_options
from acks.journal import ASYNC
from acks.signals import Acknowledgement, Command, Response
from app.accepting import Accepting, Result
from app.store.redis_client import Redis, RedisAddress
from app.store.requests import RequestStore
from tests.servers import RedisServer, wait_for

THING = "org.example:t"


def command(requested: str | None, cid: str = "c") -> Command:
    options = http_options(Setter.TWIN_MODIFY, requested, None, "30")
    return Command(THING, (), {}, cid, options, ("nginx:me",))


class Processing:
    """Takes the place of the twins: keeps what is begun, and its callback."""

    def __init__(self) -> None:
        self.begun: list[tuple[Command, int]] = []
        self.done: list[Any] = []

    def begin(self, signal: Command, deadline: int, on_done: Any) -> None:
        """Remember it."""
        self.begun.append((signal, deadline))
        self.done.append(on_done)


@pytest.fixture
async def accepting(own: RedisServer, prefix: str) -> AsyncIterator[Accepting]:
    client = Redis(RedisAddress.parse(own.url), name="test", reply_timeout=2.0)
    await client.start()
    made = Accepting(RequestStore(client, prefix=prefix, shards=2, keep_ms=60_000))
    yield made
    await made.close()
    await client.close()


async def record(accepting: Accepting, cid: str = "c") -> Accepted:
    found = await accepting.requests.find(cid)
    assert found is not None
    return found[0]


async def test_what_is_begun_answers_to_the_record(accepting: Accepting) -> None:
    processing = Processing()
    await accepting.accept(command("twin-persisted,ack-a"), 30_000, "", processing.begin)
    [(signal, deadline)] = processing.begun
    assert signal.answer_to == ASYNC
    assert deadline == (await record(accepting)).deadline_ms
    assert (accepting.accepted, accepting.open) == (1, 1)
    processing.done[0](Response(204, None, {}))
    processing.done[0](Response(500, None, {}))  # a callback that comes twice counts once
    await wait_for(lambda: accepting.open == 0)
    [came] = (await record(accepting)).came
    assert isinstance(came.thing, Response)
    assert came.thing.status == 204


async def test_nobody_waits_at_the_journal_for_a_request_without_labels(
    accepting: Accepting,
) -> None:
    processing = Processing()
    await accepting.accept(command(""), 30_000, "", processing.begin)
    assert processing.begun[0][1] == 0


async def test_a_second_one_is_not_begun(accepting: Accepting) -> None:
    processing = Processing()
    await accepting.accept(command(None), 30_000, "", processing.begin)
    with pytest.raises(GatewayError, match="already used"):
        await accepting.accept(command(None), 30_000, "", processing.begin)
    assert len(processing.begun) == 1
    assert (accepting.accepted, accepting.open) == (1, 1)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (error("things:thing.notfound", thing_id=THING), "things:thing.notfound"),
        (RuntimeError("a defect"), "gateway:internalerror"),
    ],
)
async def test_a_beginning_that_fails_is_the_outcome(
    accepting: Accepting, raised: Exception, code: str
) -> None:
    def begin(signal: Command, deadline: int, on_done: Any) -> None:
        raise raised

    await accepting.accept(command("ack-a"), 30_000, "", begin)
    await wait_for(lambda: accepting.open == 0)
    outcome = (await record(accepting)).outcome(0)
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.code == code


async def test_a_store_that_is_away_is_told_when_it_is_back(
    accepting: Accepting, own: RedisServer
) -> None:
    processing = Processing()
    for cid in ("failed", "acked"):
        await accepting.accept(command("twin-persisted,ack-a", cid), 30_000, "", processing.begin)
    own.kill9()
    results: list[Result] = [
        error("things:thing.unavailable", thing_id=THING),
        Response(204, None, {}),
    ]
    for done, result in zip(processing.done, results, strict=True):
        done(result)
    ack = Acknowledgement("ack-a", THING, "acked", 200, 1, {})
    accepting.record(ack)
    accepting.record(ack)
    with pytest.raises(GatewayError):
        await accepting.accept(command(None, "refused"), 30_000, "", processing.begin)
    await wait_for(lambda: accepting.open == 4)
    own.start()
    await wait_for(lambda: accepting.open == 0)
    failed = (await record(accepting, "failed")).outcome(0)
    assert failed is not None
    assert failed.error is not None
    assert failed.error.code == "things:thing.unavailable"
    acked = (await record(accepting, "acked")).outcome(0)
    assert acked is not None
    assert [done.status for done in acked.acks] == [204, 200]
    assert (accepting.recorded, accepting.ignored) == (1, 1)
