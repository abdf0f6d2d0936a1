"""A client that is not ours any more, from the moment when that is known; what cannot be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from acks.envelopes import Envelope
from acks.settlement import Settlement
from connections.driver import Published
from connections.ledger import Ledger
from connections.model import ReplyTarget
from connections.ports import OnAnswer, Sender
from connections.supervisor import State
from tests.connections.memory import (
    PACE,
    MemoryGate,
    connection,
    modified,
    modify,
    response,
    rig,
    source,
    target,
)
from tests.servers import wait_for

ACCEPT, REDELIVER, DISCARD = Settlement.ACCEPT, Settlement.REDELIVER, Settlement.DISCARD


async def test_nothing_is_settled_or_sent_from_the_moment_on_it_is_cut() -> None:
    it = rig(connection(sources=(source(),), targets=(target(issued="memory:out"),)))
    it.supervisor.start()
    await it.opened()
    it.broker.confirms.clear()
    it.feeds[0].put(modified("1"))
    await wait_for(lambda: len(it.broker.given) == 1)
    it.driver.deliver(modify(), "1")
    it.supervisor.cut()
    it.supervisor.cut()
    it.gate.asked[0].answer(response())
    it.driver.deliver(modify(), "2")
    asks: dict[str, Any] = {"requested-acks": ["memory:out"]}
    it.feeds[0].put(modified("2", **asks))
    await wait_for(lambda: it.gate.acks)
    assert [ack.status for _, ack in it.gate.acks] == [503], "who asked for it is told"
    assert it.settlements == []
    assert len(it.gate.asked) == 1
    assert (len(it.broker.given), it.broker.published) == (1, [])
    await it.supervisor.abandon()
    assert it.driver.closed.is_set()


async def test_it_is_cut_in_the_middle_of_a_message() -> None:
    """The gate finds that the client is not ours any more, and says so by its answer."""

    class Lost(MemoryGate):
        def submit(self, envelope: Envelope, sender: Sender, on_answer: OnAnswer) -> bool:
            it.supervisor.cut()
            return super().submit(envelope, sender, on_answer)

    document = connection(sources=(source(),), kind="mqtt")
    it = rig(document, gate=Lost(at_once=response(503)))
    it.supervisor.start()
    await it.opened()
    it.driver.deliver(modify())
    assert it.settlements == [], "an ack would be the end of the message"
    await it.supervisor.abandon()


async def test_a_clean_session_has_its_dead_letters() -> None:
    """As nothing comes again there, whatever else is set."""
    specific = {
        "reconnectForRedelivery": "true",
        "cleanSession": "true",
        "deadLetterAddress": "dead",
    }
    pace = replace(PACE, first_redelivery_s=60.0, last_redelivery_s=60.0)
    document = connection(sources=(source(),), kind="mqtt", specific=specific)
    it = rig(document, pace, MemoryGate(at_once=response(500)))
    it.supervisor.start()
    await it.opened()
    it.driver.deliver(modify())
    await wait_for(lambda: it.settlements)
    assert it.settlements == [("1", ACCEPT)]
    assert it.broker.to("dead") == [modify()]
    await it.supervisor.close(0.0)


async def test_success_with_one_source_does_not_begin_the_count_of_another_anew() -> None:
    """Two sources of MQTT may get the same message; it comes again to both."""

    class Picky(MemoryGate):
        def submit(self, envelope: Envelope, sender: Sender, on_answer: OnAnswer) -> bool:
            on_answer(response(500 if sender.subjects == ("poor",) else 204))
            return True

    sources = (source(subjects=("poor",)), source(index=1, subjects=("rich",)))
    document = connection(sources=sources, specific={"maxRedeliveries": "2"})
    it = rig(document, gate=Picky())
    it.supervisor.start()
    await it.opened()
    told = []
    for times in range(1, 4):
        it.driver.deliver(modify(), source=0)
        it.driver.deliver(modify(), source=1)
        await wait_for(lambda times=times: len(it.settlements) == 2 * times)  # type: ignore[misc]
        told += [how for _, how in it.settlements[-2:] if how is not ACCEPT]
    assert told == [REDELIVER, REDELIVER, DISCARD]
    await it.supervisor.close(0.0)


@pytest.mark.parametrize("address", ["replies", "dead"])
async def test_what_the_broker_refuses_to_take_for_a_message_is_not_its_loss(address: str) -> None:
    """The sender may say where the reply goes: it would take the connection down each time."""
    reply = ReplyTarget("replies", expected=frozenset({"response"}))
    specific = {"maxRedeliveries": "0", "deadLetterAddress": "dead"}
    document = connection(sources=(source(reply=reply),), specific=specific)
    answer = response(204 if address == "replies" else 500)
    it = rig(document, gate=MemoryGate(at_once=answer))
    it.supervisor.start()
    await it.opened()
    it.broker.results[address] = Published(503, lost=True)
    it.driver.deliver(modify())
    await wait_for(lambda: it.broker.to(address))
    it.driver.deliver(modify("2"), "2")
    await wait_for(lambda: len(it.broker.to(address)) > 1)
    assert len(it.broker.drivers) == 1
    assert it.supervisor.state is State.OPEN
    await it.supervisor.close(0.0)


async def test_an_ack_request_that_cannot_be_written_is_refused_once() -> None:
    reply = ReplyTarget("replies", expected=frozenset({"error"}))
    it = rig(connection(sources=(source(includes=("twin-persisted",), reply=reply),)))
    it.supervisor.start()
    await it.opened()
    it.driver.deliver(modify(**{"requested-acks": '["\\ud800"]'}))
    assert it.settlements == [("1", DISCARD)]
    orjson.dumps(it.supervisor.report())
    await wait_for(lambda: it.broker.to("replies"))
    assert it.broker.to("replies")[0]["value"]["error"] == "header.invalid"
    await it.supervisor.close(0.0)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ä\ud83d"])
async def test_half_a_character_is_logged_as_a_question_mark(text: str) -> None:
    ledger = Ledger()
    ledger.log(1.0, "source", "mapped", False, text, correlation_id=text, address=text, entity=text)
    [entry] = orjson.loads(orjson.dumps(ledger.logs(1.0)))["logs"]
    shown = text.encode(errors="replace").decode()
    assert "?" in shown
    wanted = ("message", "correlationId", "address", "entityId")
    assert [entry[name] for name in wanted] == [shown] * 4


async def test_a_status_of_half_a_character_can_be_told() -> None:
    it = rig(connection(sources=(source(),)))
    it.supervisor.start()
    await it.opened()
    it.driver.on_status("source", "in", False, "no \ud800")
    status = orjson.loads(orjson.dumps(it.supervisor.report()))["status"]
    assert status["sourceStatus"][0]["statusDetails"] == "no ?"
    it.driver.on_lost("gone \ud800")
    await it.opened(2)
    assert "gone ?" in orjson.dumps(it.supervisor.report()).decode()
    await it.supervisor.close(0.0)
