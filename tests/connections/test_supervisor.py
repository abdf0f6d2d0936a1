"""One client: opened, lost, opened again, closed; what it says of itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from acks.settlement import Settlement
from connections.driver import Delivery, Limits, OpenError
from connections.inbound import UNDER_WAY
from connections.model import Connection
from connections.supervisor import State, Supervisor, probe
from tests.connections.memory import (
    PACE,
    UNREACHABLE,
    Broker,
    MemoryDriver,
    MemoryGate,
    Rig,
    connection,
    modified,
    modify,
    response,
    rig,
    source,
    target,
)
from tests.servers import wait_for

ACCEPT = Settlement.ACCEPT


def started(**more: Any) -> Rig:
    document = connection(sources=(source(),), targets=(target(),), **more)
    made = rig(document)
    made.supervisor.start()
    return made


async def test_open_lost_and_open_again() -> None:
    it = started()
    await it.opened()
    first = it.driver
    first.on_lost("The broker is gone.")
    await it.opened(2)
    assert first.closed.is_set()
    assert it.driver.generation > first.generation
    first.on_lost("told twice")
    await it.supervisor.close(1.0)
    assert it.driver.closed.is_set()
    assert it.supervisor.state is State.CLOSED
    await it.supervisor.close(1.0)
    assert len(it.broker.drivers) == 2


@pytest.mark.parametrize(
    ("refuses", "live"),
    [
        (UNREACHABLE, "failed"),
        (OpenError("credentials", "No."), "misconfigured"),
        (OpenError("misconfigured", "No."), "misconfigured"),
        (RuntimeError("a defect"), "failed"),
    ],
)
async def test_it_is_tried_again_whatever_the_reason(refuses: Exception, live: str) -> None:
    it = rig(connection(sources=(source(),)))
    it.broker.refuses = refuses
    it.supervisor.start()
    await wait_for(lambda: len(it.broker.drivers) >= 3)
    await wait_for(lambda: it.supervisor.state is State.LOST)
    status = it.supervisor.report()["status"]
    assert (status["liveStatus"], status["recoveryStatus"]) == (live, "ongoing")
    assert all(driver.closed.is_set() for driver in it.broker.drivers[:-1])
    it.broker.refuses = None
    await it.opened()
    assert it.supervisor.report()["status"]["liveStatus"] == "open"
    await it.supervisor.close(1.0)


async def test_an_opening_that_takes_too_long_is_given_up() -> None:
    it = rig(connection(sources=(source(),)), replace(PACE, open_s=0.02))
    it.broker.opens.clear()
    it.supervisor.start()
    await wait_for(lambda: len(it.broker.drivers) >= 2)
    assert it.broker.drivers[0].closed.is_set()
    await it.supervisor.close(1.0)


async def test_texts_that_cannot_be_read_are_misconfigured() -> None:
    it = rig(connection(sources=(source(header_mapping={"a": "{{ nobody:knows }}"}),)))
    it.supervisor.start()
    await wait_for(lambda: it.supervisor.state is State.LOST)
    assert it.supervisor.report()["status"]["liveStatus"] == "misconfigured"
    assert it.broker.drivers == []
    await it.supervisor.close(1.0)


async def test_without_failover_it_stays_lost() -> None:
    it = started(failover=False)
    await it.opened()
    it.driver.on_lost("gone")
    await wait_for(lambda: it.supervisor.state is State.LOST)
    await it.driver.closed.wait()
    assert it.supervisor.report()["status"]["recoveryStatus"] == "unknown"
    await it.supervisor.close(1.0)
    assert len(it.broker.drivers) == 1


async def test_the_delays_grow_and_are_spread() -> None:
    it = rig(connection(sources=(source(),)), replace(PACE, first_delay_s=5, last_delay_s=3600))
    delays = [[it.supervisor._delay(failures) for _ in range(50)] for failures in range(40)]
    assert max(delays[0]) <= 1.0
    assert all(3.75 <= delay <= 5 for delay in delays[1])
    assert all(7.5 <= delay <= 10 for delay in delays[2])
    assert all(2700 <= delay <= 3600 for delay in delays[39])
    assert len(set(delays[3])) > 1


async def test_close_while_opening_and_while_waiting() -> None:
    it = started()
    it.broker.opens.clear()
    await wait_for(lambda: it.broker.drivers)
    await it.supervisor.close(1.0)
    assert it.driver.closed.is_set()
    assert it.supervisor.state is State.CLOSED

    waiting = rig(connection(sources=(source(),)), replace(PACE, first_delay_s=60))
    waiting.broker.refuses = UNREACHABLE
    waiting.supervisor.start()
    await wait_for(lambda: waiting.supervisor.state is State.LOST)
    await waiting.supervisor.close(1.0)
    assert waiting.supervisor.state is State.CLOSED


async def test_close_before_start() -> None:
    it = rig(connection(sources=(source(),)))
    await it.supervisor.close(1.0)
    assert it.supervisor.state is State.CLOSED


async def test_close_waits_for_answers_then_leaves_the_rest() -> None:
    it = started()
    await it.opened()
    it.driver.deliver(modify(), "1")
    it.driver.deliver(modify(), "2")
    closing = asyncio.create_task(it.supervisor.close(0.2))
    await wait_for(lambda: it.supervisor.state is State.CLOSING)
    it.gate.asked[0].answer(response())
    await closing
    assert it.settlements == [("1", ACCEPT)]
    it.gate.asked[1].answer(response())
    assert it.settlements == [("1", ACCEPT)]


async def test_it_says_how_many_messages_are_unsettled() -> None:
    def told() -> int:
        number: int = it.supervisor.report()["status"]["clientStatus"][0]["unsettled"]
        return number

    it = started()
    assert told() == 0
    await it.opened()
    for identity in "12":
        it.driver.deliver(modify(), identity)
    it.driver.withheld = 3  # of which only the driver knows
    assert told() == it.supervisor.unsettled == 5
    it.driver.withheld = 0
    it.gate.asked[0].answer(response())
    assert told() == 1
    it.driver.on_lost("gone")
    assert told() == 0, "it comes again to the next client"
    await it.supervisor.close(0.0)
    assert told() == 0


async def test_what_waits_for_its_turn_is_unsettled() -> None:
    it = started()
    await it.opened()
    most = PACE.limits.in_flight * UNDER_WAY
    for number in range(most + 5):
        it.driver.deliver(modify(), str(number))
    assert (len(it.gate.asked), it.supervisor.unsettled) == (most, most + 5)
    await it.supervisor.close(0.0)


async def test_what_is_closing_is_not_closed_yet() -> None:
    it = started()
    await it.opened()
    it.driver.deliver(modify(), "1")
    closing = asyncio.create_task(it.supervisor.close(60.0))
    await wait_for(lambda: it.supervisor.state is State.CLOSING)
    status = it.supervisor.report()["status"]
    assert (status["liveStatus"], status["connectedSince"]) == ("open", None)
    it.gate.asked[0].answer(response())
    await closing
    assert it.supervisor.report()["status"]["liveStatus"] == "closed"


async def test_what_is_lost_while_it_closes_is_not_opened_again() -> None:
    it = started()
    await it.opened()
    it.broker.confirms.clear()
    it.feeds[0].put(modified())
    await wait_for(lambda: it.broker.given)
    closing = asyncio.create_task(it.supervisor.close(60.0))
    await wait_for(lambda: it.supervisor.state is State.CLOSING)
    it.driver.on_lost("gone")
    await closing
    assert len(it.broker.drivers) == 1


async def test_a_loss_is_logged_once_as_a_failure() -> None:
    it = started()
    it.supervisor.command("enableConnectionLogs")
    await it.opened()
    it.driver.on_lost("gone")
    await it.opened(2)
    logs = it.supervisor.report()["logs"]
    assert [entry["level"] for entry in logs if entry["message"] == "gone"] == ["failure"]
    await it.supervisor.close(0.0)


async def test_abandon_settles_nothing_any_more() -> None:
    it = started()
    await it.opened()
    it.driver.deliver(modify(), "1")
    leaving = asyncio.create_task(it.supervisor.abandon())
    await asyncio.sleep(0)
    it.gate.asked[0].answer(response())
    await leaving
    assert it.settlements == []
    assert it.driver.closed.is_set()


async def test_abandon_cuts_a_close_that_is_under_way() -> None:
    it = started()
    await it.opened()
    it.broker.confirms.clear()
    it.driver.deliver(modify(), "1")
    it.feeds[0].put(modified())
    await wait_for(lambda: it.broker.given)
    closing = asyncio.create_task(it.supervisor.close(60.0))
    await wait_for(lambda: it.supervisor.state is State.CLOSING)
    await it.supervisor.abandon()
    await closing
    it.gate.asked[0].answer(response())
    assert it.settlements == []
    assert it.broker.published == []
    assert it.supervisor.state is State.CLOSED


async def test_a_driver_that_does_not_close_is_left_in_time() -> None:
    class Stuck(MemoryDriver):
        async def close(self, grace_s: float) -> None:
            await asyncio.Event().wait()

    broker = Broker()

    def factory(connection: Connection, client: int, generation: int, limits: Limits) -> Stuck:
        return Stuck(broker, generation, limits)

    document = connection(sources=(source(),))
    supervisor = Supervisor(document, 0, "node", factory, MemoryGate(), {}, PACE)
    supervisor.start()
    await wait_for(lambda: supervisor.state is State.OPEN)
    await supervisor.close(0.0)
    assert supervisor.state is State.CLOSED


async def test_a_driver_that_fails_to_settle_is_replaced() -> None:
    class Failing(MemoryDriver):
        def settle(self, delivery: Delivery, settlement: Settlement) -> None:
            raise RuntimeError("no")

    it = started()
    await it.opened()
    it.driver.__class__ = Failing
    it.driver.deliver(modify())
    it.gate.asked[0].answer(response())
    await it.opened(2)
    await it.supervisor.close(1.0)


async def test_nothing_is_left_running() -> None:
    before = asyncio.all_tasks()
    it = started()
    await it.opened()
    for times in range(2, 6):
        it.driver.deliver(modify())
        it.driver.on_lost("gone")
        await it.opened(times)
    await it.supervisor.close(1.0)
    assert asyncio.all_tasks() == before


async def test_the_report_is_json_and_counts() -> None:
    changes: list[None] = []
    document = connection(sources=(source(),), targets=(target(),))
    it = rig(document, on_change=lambda: changes.append(None))
    it.supervisor.start()
    await it.opened()
    it.driver.deliver(modify(), "1")
    it.gate.asked[0].answer(response(204))
    it.driver.deliver(b"{", "2")
    it.driver.on_status("source", "in", False, "The queue is missing.")
    it.driver.on_status("source", "not ours", False, "x")
    report = orjson.loads(orjson.dumps(it.supervisor.report()))
    assert (report["client"], report["node"], report["state"]) == (0, "node", "open")
    status = report["status"]
    assert status["sourceStatus"][0]["status"] == "failed"
    assert status["sourceStatus"][0]["statusDetails"] == "The queue is missing."
    assert status["targetStatus"][0]["status"] == "open"
    assert len(status["sourceStatus"]) == 1
    inbound = report["metrics"]["connectionMetrics"]["inbound"]
    assert inbound["consumed"]["success"]["PT1M"] == 2
    assert inbound["mapped"]["failure"]["PT24H"] == 1
    assert report["metrics"]["sourceMetrics"]["addressMetrics"]["in"] == inbound
    assert report["metrics"]["containsFailures"] is True
    assert [entry["type"] for entry in report["logs"]] == ["mapped", "other"]
    assert changes
    await it.supervisor.close(1.0)


async def test_commands() -> None:
    it = started()
    await it.opened()
    it.driver.deliver(b"{")
    assert it.supervisor.report()["enabledSince"] is None
    assert it.supervisor.command("enableConnectionLogs")
    it.driver.deliver(modify())
    report = it.supervisor.report()
    assert report["enabledSince"] is not None
    assert {entry["level"] for entry in report["logs"]} == {"success", "failure"}
    assert it.supervisor.command("connectivity.commands:resetConnectionLogs")
    assert it.supervisor.command("resetConnectionMetrics")
    report = it.supervisor.report()
    assert report["logs"] == []
    inbound = report["metrics"]["connectionMetrics"]["inbound"]
    assert inbound["consumed"]["success"]["PT1H"] == 0
    assert it.counted("inbound", "consumed") == 2
    assert not it.supervisor.command("somethingElse")
    await it.supervisor.close(1.0)


async def test_probe_opens_and_closes() -> None:
    broker = Broker()
    assert isinstance(await probe(connection(sources=(source(),)), broker), str)
    assert broker.driver.closed.is_set()
    broker.refuses = OpenError("credentials", "Who are you?")
    assert await probe(connection(), broker) is broker.refuses
    broker.refuses = RuntimeError("odd")
    found = await probe(connection(), broker)
    assert isinstance(found, OpenError)
    broker.refuses = None
    broker.opens.clear()
    found = await probe(connection(), broker, 0.01)
    assert isinstance(found, OpenError)
    assert found.cause == "temporary"
    assert all(driver.closed.is_set() for driver in broker.drivers)
