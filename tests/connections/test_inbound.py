"""Consumed messages: when and how they are settled, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from acks.errors import error
from acks.settlement import Settlement
from connections import inbound
from connections.driver import Limits, Published
from connections.model import Connection, Enforcement, ReplyTarget
from connections.ports import Answer
from connections.supervisor import Pace
from tests.connections.memory import (
    PACE,
    MemoryGate,
    Rig,
    connection,
    modify,
    response,
    rig,
    source,
)
from tests.servers import wait_for

ACCEPT, REDELIVER, DISCARD = Settlement.ACCEPT, Settlement.REDELIVER, Settlement.DISCARD
REPLY = ReplyTarget("replies", expected=frozenset({"response", "error", "nack"}))


@asynccontextmanager
async def running(
    document: Connection | None = None, pace: Pace = PACE, **more: Any
) -> AsyncIterator[Rig]:
    made = rig(document or connection(sources=(source(),)), pace, **more)
    made.supervisor.start()
    await made.opened()
    try:
        yield made
    finally:
        await made.supervisor.close(0.1)


async def settled(it: Rig, times: int) -> None:
    await wait_for(lambda: len(it.settlements) == times)


async def test_a_message_is_settled_by_its_answer() -> None:
    async with running() as it:
        it.driver.deliver(modify())
        assert it.settlements == []
        assert it.supervisor.pending == 1
        it.gate.asked[0].answer(response(204))
        assert it.settlements == [("1", ACCEPT)]
        assert it.supervisor.pending == 0
        assert it.gate.asked[0].sender.subjects == ("some:subject",)


async def test_an_answer_may_come_before_submit_returns() -> None:
    async with running(gate=MemoryGate(at_once=response(400))) as it:
        it.driver.deliver(modify())
        assert it.settlements == [("1", DISCARD)]


async def test_without_ack_requests_it_is_settled_at_once() -> None:
    document = connection(sources=(source(reply=REPLY),))
    async with running(document, gate=MemoryGate(waits=False)) as it:
        it.driver.deliver(modify())
        assert it.settlements == [("1", ACCEPT)]
        it.gate.asked[0].answer(response(204))
        await wait_for(lambda: it.broker.to("replies"))
        assert it.settlements == [("1", ACCEPT)]


async def test_all_commands_of_one_message_are_waited_for() -> None:
    definitions = {"twice": {"mappingEngine": "Ditto"}, "again": {"mappingEngine": "Ditto"}}
    document = connection(
        sources=(source(mappers=("twice", "again")),), mapping_definitions=definitions
    )
    async with running(document) as it:
        it.driver.deliver(modify())
        first, second = it.gate.asked
        second.answer(response(204))
        assert it.settlements == []
        second.answer(response(500))  # a second answer to the same command changes nothing
        first.answer(response(204))
        assert it.settlements == [("1", ACCEPT)]


async def test_an_error_ends_the_waiting_for_others() -> None:
    document = connection(sources=(source(mappers=("Ditto", "Ditto")),))
    async with running(document) as it:
        it.driver.deliver(modify())
        problem = error("things:thing.notfound", thing_id="ns:thing")
        it.gate.asked[0].answer(Answer(None, (404,), error=problem))
        assert it.settlements == [("1", DISCARD)]
        it.gate.asked[1].answer(response(500))
        assert it.settlements == [("1", DISCARD)]


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", b"{", b"[]", b'"x"', b"1" * 10_000])
async def test_what_cannot_be_mapped_is_accepted_and_answered(payload: bytes) -> None:
    async with running(connection(sources=(source(reply=REPLY),))) as it:
        it.driver.deliver(payload)
        assert it.settlements == [("1", ACCEPT)]
        await wait_for(lambda: it.broker.to("replies"))
        assert it.broker.to("replies")[0]["status"] == 400
        assert it.counted("inbound", "mapped", ok=False) == 1
        it.driver.deliver(modify(), "2")
        assert len(it.gate.asked) == 1


async def test_a_message_that_cannot_be_carried_out_is_told() -> None:
    refused = error("protocoladapter:unknown.topicpath", topic="x", reason="short")
    async with running(gate=MemoryGate(False, Answer(None, (400,), error=refused))) as it:
        it.driver.deliver({"topic": "x"})
        assert it.settlements == [("1", ACCEPT)]
        assert it.counted("inbound", "mapped", ok=False) == 1
        entry = it.supervisor.report()["logs"][-1]
        assert (entry["type"], entry["level"]) == ("mapped", "failure")
        assert refused.message in entry["message"]


async def test_deep_nesting_stops_nothing() -> None:
    async with running() as it:
        it.driver.deliver(b'{"value":' + b"[" * 100_000)
        it.driver.deliver(modify(), "2")
        assert [identity for identity, _ in it.settlements] == ["1"]
        assert len(it.gate.asked) == 1


async def test_enforcement_refuses_and_accepts() -> None:
    enforcement = Enforcement("{{ header:device_id }}", ("{{ entity:id }}",))
    document = connection(sources=(source(enforcement=enforcement, reply=REPLY),))
    async with running(document) as it:
        it.driver.deliver(modify(), headers={"device_id": "ns:other"})
        assert it.settlements == [("1", ACCEPT)]
        await wait_for(lambda: it.broker.to("replies"))
        answer = it.broker.to("replies")[0]
        assert answer["value"]["error"] == "connectivity:connection.id.enforcement.failed"
        assert answer["headers"]["correlation-id"] == "c"
        it.driver.deliver(modify(), "2", headers={"device_id": "ns:thing"})
        assert len(it.gate.asked) == 1


async def test_headers_are_mapped_and_acks_requested() -> None:
    one = source(
        header_mapping={"Correlation-ID": "{{ header:message-id }}", "missing": "{{ header:no }}"},
        includes=("memory:done",),
    )
    async with running(connection(sources=(one,))) as it:
        it.driver.deliver(modify(), headers={"message-id": "m1"})
        headers = it.gate.asked[0].envelope["headers"]
        assert headers == {"correlation-id": "m1", "requested-acks": ["memory:done"]}


async def test_a_subject_from_a_header_that_is_missing_is_a_problem() -> None:
    one = source(subjects=("device:{{ header:device }}",), reply=REPLY)
    async with running(connection(sources=(one,))) as it:
        it.driver.deliver(modify())
        assert it.settlements == [("1", ACCEPT)]
        it.driver.deliver(modify(), "2", headers={"device": "7"})
        assert it.gate.asked[0].sender.subjects == ("device:7",)


async def test_a_defect_of_the_gateway_gives_the_message_back() -> None:
    async with running(gate=MemoryGate(fails=RuntimeError("boom"))) as it:
        it.driver.deliver(modify())
        await wait_for(lambda: it.settlements)
        assert it.settlements == [("1", REDELIVER)]


async def test_answers_that_never_come_give_it_back() -> None:
    async with running(pace=replace(PACE, collect_s=0.05)) as it:
        it.driver.deliver(modify())
        await wait_for(lambda: it.settlements)
        assert it.settlements == [("1", REDELIVER)]
        it.gate.asked[0].answer(response(204))
        assert it.settlements == [("1", REDELIVER)]


async def test_ack_requests_that_cannot_be_read_are_refused() -> None:
    one = source(ack_filter="fn:default('no JSON')", reply=REPLY)
    async with running(connection(sources=(one,))) as it:
        it.driver.deliver(modify())
        assert it.settlements == [("1", DISCARD)]
        assert it.gate.asked == []
        await wait_for(lambda: it.broker.to("replies"))
        assert it.broker.to("replies")[0]["value"]["error"] == "header.invalid"


@pytest.mark.parametrize(
    ("specific", "told"),
    [({}, [REDELIVER]), ({"deadLetterAddress": "dead"}, [ACCEPT])],
)
async def test_what_mqtt_cannot_give_back_goes_at_once(
    specific: dict[str, str], told: list[Settlement]
) -> None:
    pace = replace(PACE, first_redelivery_s=60.0, last_redelivery_s=60.0)
    document = connection(sources=(source(),), kind="mqtt", specific=specific)
    async with running(document, pace, gate=MemoryGate(at_once=response(500))) as it:
        it.driver.deliver(modify())
        await wait_for(lambda: it.settlements)
        assert [settlement for _, settlement in it.settlements] == told
        assert len(it.broker.published) == len(specific)


async def test_redelivery_is_bounded() -> None:
    document = connection(sources=(source(),), specific={"maxRedeliveries": "3"})
    async with running(document, gate=MemoryGate(at_once=response(500))) as it:
        for told in range(1, 5):
            it.driver.deliver(modify())
            await settled(it, told)
        assert [settlement for _, settlement in it.settlements] == [REDELIVER] * 3 + [DISCARD]
        it.driver.deliver(modify())  # the same content once more begins anew
        await wait_for(lambda: len(it.settlements) == 5)
        assert it.settlements[-1] == ("1", REDELIVER)


async def test_the_brokers_own_count_is_used() -> None:
    async with running(gate=MemoryGate(at_once=response(500))) as it:
        it.driver.deliver(modify(), redeliveries=10)
        assert it.settlements == [("1", DISCARD)]


async def test_what_the_gateway_cannot_serve_does_not_count() -> None:
    document = connection(sources=(source(),), specific={"maxRedeliveries": "1"})
    problem = error("gateway:service.unavailable", reason="x")
    busy = MemoryGate(at_once=Answer(None, (503,), error=problem))
    async with running(document, gate=busy) as it:
        for told in range(1, 6):
            it.driver.deliver(modify(), redeliveries=told - 1)
            await settled(it, told)
        assert {settlement for _, settlement in it.settlements} == {REDELIVER}
        it.gate.at_once = response(500)
        it.driver.deliver(modify(), redeliveries=5)
        it.driver.deliver(modify(), redeliveries=6)
        await wait_for(lambda: len(it.settlements) == 7)
        assert {settlement for _, settlement in it.settlements[5:]} == {REDELIVER, DISCARD}


async def test_after_too_many_times_it_goes_to_the_dead_letters() -> None:
    specific = {"maxRedeliveries": "0", "deadLetterAddress": "dead"}
    document = connection(sources=(source(),), specific=specific)
    async with running(document, gate=MemoryGate(at_once=response(500))) as it:
        it.driver.deliver(modify(), headers={"a": "b", "mqtt.topic": "t"}, content_type="x/y")
        await wait_for(lambda: it.settlements)
        assert it.settlements == [("1", ACCEPT)]
        letter = it.broker.published[0]
        assert (letter.address, orjson.loads(letter.payload)) == ("dead", modify())
        assert (letter.content_type, letter.headers) == (
            "x/y",
            {"a": "b", "ackgate-dead-letter-source": "in", "ackgate-dead-letter-tries": "1"},
        )


async def test_dead_letters_that_are_refused_lose_nothing() -> None:
    specific = {"maxRedeliveries": "0", "deadLetterAddress": "dead"}
    document = connection(sources=(source(),), specific=specific)
    async with running(document, gate=MemoryGate(at_once=response(500))) as it:
        it.broker.results["dead"] = Published(503)
        it.driver.deliver(modify())
        await wait_for(lambda: len(it.broker.published) > 1)
        assert it.settlements == []
        it.broker.results.clear()
        await wait_for(lambda: it.settlements)
        assert it.settlements == [("1", ACCEPT)]


async def test_what_waits_to_be_given_back_is_left_when_it_closes() -> None:
    pace = replace(PACE, first_redelivery_s=30.0, last_redelivery_s=30.0)
    async with running(pace=pace, gate=MemoryGate(at_once=response(500))) as it:
        it.driver.deliver(modify())
        assert it.supervisor.pending == 1
        await it.supervisor.close(5.0)
        assert it.settlements == []
        assert it.supervisor.pending == 0


async def test_answers_for_a_lost_driver_settle_nothing() -> None:
    async with running() as it:
        it.driver.deliver(modify())
        it.driver.on_lost("gone")
        assert it.supervisor.pending == 0
        await it.opened(2)
        it.gate.asked[0].answer(response(204))
        assert it.settlements == []
        it.driver.deliver(modify())
        it.gate.asked[1].answer(response(204))
        assert it.driver.settled == [("1", ACCEPT)]


async def test_deliveries_of_a_lost_driver_are_ignored() -> None:
    async with running() as it:
        first = it.driver
        first.on_lost("gone")
        await it.opened(2)
        first.deliver(modify())
        assert it.gate.asked == []


async def test_commands_under_way_are_bounded_whatever_the_broker_redelivers() -> None:
    pace = replace(PACE, limits=Limits(in_flight=2, publishing=8))
    most = 2 * inbound.UNDER_WAY
    async with running(pace=pace) as it:
        for times in range(1, 8):
            for number in (1, 2):
                it.driver.deliver(modify(str(times)), str(number))
            it.driver.on_lost("gone")
            await it.opened(times + 1)
        assert len(it.gate.asked) == most
        it.driver.deliver(modify("new"), "1")
        it.driver.deliver(modify("new"), "2")
        assert len(it.gate.asked) == most
        for asked in it.gate.asked[:most]:
            asked.answer(response(204))
        assert len(it.gate.asked) == most + 2
        for asked in it.gate.asked[most:]:
            asked.answer(response(204))
        assert it.driver.settled == [("1", ACCEPT), ("2", ACCEPT)]


async def test_what_the_broker_does_not_hold_back_is_dropped_over_the_bound() -> None:
    pace = replace(PACE, limits=Limits(in_flight=1, publishing=8))
    async with running(pace=pace) as it:
        for number in range(20):
            it.driver.deliver(modify(), str(number), settles=False)
        assert it.counted("inbound", "dropped", ok=False) == 20 - 2 * inbound.UNDER_WAY
        while len(it.gate.asked) > 0:
            it.gate.asked.pop(0).answer(response(500))
        assert it.supervisor.pending == 0
        assert it.settlements == []


async def test_an_answer_inside_submit_of_many_waiting_messages_does_not_recurse() -> None:
    pace = replace(PACE, limits=Limits(in_flight=2_000, publishing=8))
    async with running(pace=pace) as it:
        for number in range(2_000 * inbound.UNDER_WAY + 2_000):
            it.driver.deliver(modify(), str(number))
        it.gate.at_once = response(204)
        it.gate.asked[0].answer(response(204))
        assert len(it.settlements) == 2_001


async def test_drain_takes_no_more_and_waits_for_what_there_is() -> None:
    async with running() as it:
        it.driver.deliver(modify())
        await it.supervisor.drain(0.05)
        assert it.supervisor.pending == 1
        it.driver.deliver(modify(), "2")
        assert len(it.gate.asked) == 1
        it.gate.asked[0].answer(response(204))
        await it.supervisor.drain(5.0)
        assert it.settlements == [("1", ACCEPT)]


@pytest.mark.parametrize("kind", ["amqp-091", "mqtt"])
async def test_what_fails_while_draining_is_left_to_the_next_client(kind: str) -> None:
    async with running(connection(sources=(source(),), kind=kind)) as it:
        it.driver.deliver(modify())
        await it.supervisor.drain(0.0)
        it.gate.asked[0].answer(response(503))
        assert it.supervisor.pending == 0
        assert it.settlements == []


@pytest.mark.parametrize(
    ("expected", "sent"),
    [({"response"}, [204]), ({"error"}, [404]), ({"nack"}, [424]), (set(), [])],
)
async def test_replies_are_those_expected(expected: set[str], sent: list[int]) -> None:
    reply = replace(REPLY, expected=frozenset(expected))
    async with running(connection(sources=(source(reply=reply),))) as it:
        for number in range(3):
            it.driver.deliver(modify(), str(number))
        it.gate.asked[0].answer(response(204))
        problem = error("things:thing.notfound", thing_id="ns:thing")
        it.gate.asked[1].answer(replace(response(404), error=problem))
        acks = {
            "topic": "ns/thing/things/twin/acks",
            "headers": {"correlation-id": "c"},
            "path": "/",
            "value": {},
            "status": 424,
        }
        it.gate.asked[2].answer(Answer(acks, (200, 400)))
        await wait_for(lambda: len(it.broker.published) == len(sent))
        assert [one["status"] for one in it.broker.to("replies")] == sent


async def test_a_reply_goes_where_the_message_says() -> None:
    reply = ReplyTarget("{{ header:reply-to }}", {"to": "{{ header:correlation-id }}"})
    async with running(connection(sources=(source(reply=reply),))) as it:
        it.driver.deliver(modify(), "1", headers={"reply-to": "there"})
        it.driver.deliver(modify(), "2")
        for asked in it.gate.asked:
            asked.answer(response(204, "x"))
        await wait_for(lambda: it.broker.published)
        assert [(one.address, one.headers["to"]) for one in it.broker.published] == [("there", "x")]
        assert it.counted("outbound", "dropped", ok=False) == 1
        assert [settlement for _, settlement in it.settlements] == [ACCEPT, ACCEPT]


async def test_kafkas_expired_messages_are_accepted() -> None:
    document = connection(sources=(source(),), kind="kafka")
    async with running(document) as it:
        it.driver.deliver(modify(), headers={"creation-time": "1000", "ttl": "5000"})
        assert it.settlements == [("1", ACCEPT)]
        assert it.gate.asked == []
