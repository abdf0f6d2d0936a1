"""Signals to a broker: order, acks, and what happens while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson

from acks.envelopes import WEAK_DROPPED
from connections.driver import Limits, Publication, Published
from connections.model import Connection
from connections.outbound import HELD_BYTES
from connections.supervisor import Pace
from tests.connections.memory import (
    PACE,
    Broker,
    Frames,
    Rig,
    connection,
    modified,
    rig,
    target,
)
from tests.servers import wait_for

LABEL = "memory:sent"
REQUESTED: dict[str, Any] = {"requested-acks": [LABEL]}
REQUIRED: dict[str, Any] = {"response-required": True}


@asynccontextmanager
async def running(
    document: Connection | None = None, pace: Pace = PACE, **more: Any
) -> AsyncIterator[Rig]:
    made = rig(document or connection(targets=(target(issued=LABEL),)), pace, **more)
    made.supervisor.start()
    await made.opened()
    try:
        yield made
    finally:
        await made.supervisor.close(0.1)


async def away(it: Rig) -> None:
    """Have the broker gone, and not back until ``broker.opens`` is set."""
    it.broker.opens.clear()
    it.driver.on_lost("gone")
    await wait_for(lambda: it.supervisor.state.value == "opening")


async def test_signals_are_published_in_their_order() -> None:
    async with running() as it:
        it.broker.confirms.clear()
        it.feeds[0].put(*(modified(str(number)) for number in range(20)))
        await wait_for(lambda: len(it.broker.given) == 6)  # three quarters of what may be sent
        it.broker.confirms.set()
        await wait_for(lambda: len(it.broker.published) == 20)
        ids = [orjson.loads(one.payload)["headers"]["correlation-id"] for one in it.broker.given]
        assert ids == [str(number) for number in range(20)]
        assert {one.key for one in it.broker.given} == {"ns:thing"}
        assert it.gate.acks == []


async def test_a_requested_ack_is_what_the_broker_says() -> None:
    async with running() as it:
        it.feeds[0].put(modified("a", **REQUESTED), modified("b"))
        it.broker.results["out"] = Published(503, {"message": "No."}, {"x": "y"})
        await wait_for(lambda: it.gate.acks)
        index, ack = it.gate.acks[0]
        assert (index, ack.label, ack.thing_id, ack.correlation_id) == (0, LABEL, "ns:thing", "a")
        assert (ack.status, ack.payload) == (503, {"message": "No."})
        assert ack.headers == {"x": "y", "ditto-connection-id": "memory"}
        await wait_for(lambda: len(it.broker.published) == 2)
        assert len(it.gate.acks) == 1


async def test_a_live_response_is_wanted_where_a_response_is_required() -> None:
    document = connection(targets=(target(issued="live-response"),))
    async with running(document) as it:
        message = modified("m", **REQUIRED) | {
            "topic": "ns/thing/things/live/messages/ask",
            "path": "/inbox/messages/ask",
        }
        it.broker.results["out"] = Published(418, "tea", {"content-type": "text/plain"})
        it.feeds[0].put(message, modified("e", **REQUIRED))
        await wait_for(lambda: len(it.broker.published) == 2)
        [(_, ack)] = it.gate.acks
        assert (ack.label, ack.status, ack.payload) == ("live-response", 418, "tea")


async def test_an_address_that_cannot_be_resolved_gives_no_ack() -> None:
    document = connection(targets=(target(address="to/{{ header:device }}", issued=LABEL),))
    async with running(document) as it:
        it.feeds[0].put(
            modified("a", **REQUESTED),
            modified("b", device="7", **REQUESTED),
        )
        await wait_for(lambda: it.gate.acks)
        assert [ack.correlation_id for _, ack in it.gate.acks] == ["b"]
        assert [one.address for one in it.broker.published] == ["to/7"]
        assert it.counted("outbound", "dropped", ok=False) == 1


async def test_headers_are_mapped() -> None:
    mapping = {"Subject": "{{ topic:action }}", "none": "{{ header:no }}", "content-type": "x/y"}
    document = connection(targets=(target(header_mapping=mapping, qos=1),))
    async with running(document) as it:
        it.feeds[0].put(modified())
        await wait_for(lambda: it.broker.published)
        sent = it.broker.published[0]
        assert (sent.content_type, sent.qos) == ("x/y", 1)
        assert sent.headers["subject"] == "modified"
        assert "none" not in sent.headers
        assert "content-type" not in sent.headers


async def test_what_a_mapping_drops_is_a_weak_ack() -> None:
    definitions = {
        "never": {
            "mappingEngine": "Ditto",
            "outgoingConditions": {"never": "fn:filter(header:correlation-id,'eq','no')"},
        }
    }
    document = connection(
        targets=(target(issued=LABEL, mappers=("never",)),), mapping_definitions=definitions
    )
    async with running(document) as it:
        it.feeds[0].put(modified("a", **REQUESTED))
        await wait_for(lambda: it.gate.acks)
        ack = it.gate.acks[0][1]
        assert (ack.status, ack.weak) == (200, True)
        assert ack.payload == WEAK_DROPPED
        assert ack.headers["ditto-weak-ack"] is True
        assert ack.headers["correlation-id"] == "a"
        assert "requested-acks" not in ack.headers
        assert it.broker.published == []


async def test_what_does_not_fit_the_filter_is_counted() -> None:
    async with running() as it:
        it.feeds[0].put(modified())
        await wait_for(lambda: it.broker.published)
        filtered = it.feeds[0].on_filtered
        assert filtered is not None
        filtered()
        assert it.counted("outbound", "filtered") == 1


async def test_a_long_payload_of_an_ack_is_left_out() -> None:
    async with running() as it:
        it.broker.results["out"] = Published(200, "x" * 100_001)
        it.feeds[0].put(modified("a", **REQUESTED))
        await wait_for(lambda: it.gate.acks)
        assert (it.gate.acks[0][1].status, it.gate.acks[0][1].payload) == (200, None)


async def test_a_driver_that_raises_is_a_failed_publication() -> None:
    class Raising(Broker):
        def result(self, publication: Publication) -> Published:
            raise ValueError("odd")

    async with running() as it:
        it.broker.__class__ = Raising
        it.feeds[0].put(modified("a", **REQUESTED), modified("b"))
        await wait_for(lambda: it.gate.acks)
        ack = it.gate.acks[0][1]
        assert (ack.status, ack.payload["description"]) == (500, "odd")
        await wait_for(lambda: it.counted("outbound", "published", ok=False) == 2)


async def test_a_publication_that_loses_the_connection_has_it_opened_again() -> None:
    async with running() as it:
        it.broker.results["out"] = Published(503, lost=True)
        it.feeds[0].put(modified("a", **REQUESTED))
        await it.opened(2)
        assert it.gate.acks[0][1].status == 503


async def test_who_waits_for_an_ack_is_told_at_once_that_the_broker_is_away() -> None:
    async with running() as it:
        await away(it)
        it.feeds[0].put(modified("a", **REQUESTED))
        await wait_for(lambda: it.gate.acks)
        ack = it.gate.acks[0][1]
        assert (ack.status, ack.payload["error"]) == (503, "connectivity:message.sending.failed")


async def test_other_signals_wait_for_the_broker_in_their_order() -> None:
    async with running() as it:
        await away(it)
        it.feeds[0].put(modified("1"), modified("2"))
        await wait_for(lambda: it.counted("outbound", "dispatched") == 2)
        it.feeds[0].put(modified("3"))
        it.broker.opens.set()
        await wait_for(lambda: len(it.broker.published) == 3)
        ids = [orjson.loads(one.payload)["headers"]["correlation-id"] for one in it.broker.given]
        assert ids == ["1", "2", "3"]


async def test_a_signal_that_comes_just_after_the_loss_waits_too() -> None:
    async with running() as it:
        it.broker.opens.clear()
        it.feeds[0].put(modified("1"))
        it.driver.on_lost("gone")
        await wait_for(lambda: it.counted("outbound", "dispatched") == 1)
        it.broker.opens.set()
        await it.opened(2)
        await wait_for(lambda: it.broker.published)
        assert it.counted("outbound", "published", ok=False) == 0


async def test_what_waits_is_bounded_and_what_is_dropped_is_counted() -> None:
    pace = replace(PACE, hold_s=0.05, limits=Limits(in_flight=10, publishing=4))
    async with running(pace=pace) as it:
        await away(it)
        it.feeds[0].put(*(modified(str(number)) for number in range(5)))
        await wait_for(lambda: it.counted("outbound", "dropped", ok=False) >= 3)
        await wait_for(lambda: it.counted("outbound", "dropped", ok=False) == 5)
        texts = {entry["message"] for entry in it.supervisor.report()["logs"]}
        assert "Too many signals wait for the broker." in texts
        assert "The broker has been away for more than 0.05 s." in texts


async def test_what_waits_is_bounded_in_bytes() -> None:
    async with running() as it:
        await away(it)
        big = modified("big") | {"value": "x" * (HELD_BYTES // 2)}
        it.feeds[0].put(big)
        it.feeds[0].put(big)
        await wait_for(lambda: it.counted("outbound", "dropped", ok=False) == 1)


async def test_publications_under_way_are_told_when_the_broker_goes() -> None:
    async with running() as it:
        it.broker.confirms.clear()
        it.feeds[0].put(modified("a", **REQUESTED))
        await wait_for(lambda: it.broker.given)
        await away(it)
        await wait_for(lambda: it.gate.acks)
        assert it.gate.acks[0][1].status == 503


async def test_close_sends_what_is_in_hand() -> None:
    async with running() as it:
        it.broker.confirms.clear()
        it.feeds[0].put(*(modified(str(number)) for number in range(12)))
        await wait_for(lambda: len(it.broker.given) == 6)
        closing = asyncio.create_task(it.supervisor.close(5.0))
        await wait_for(lambda: it.supervisor.state.value == "closing")
        it.broker.confirms.set()
        await closing
        assert len(it.broker.published) == 12


async def test_close_tells_who_waits_for_a_broker_that_does_not_answer() -> None:
    async with running() as it:
        it.broker.confirms.clear()
        it.feeds[0].put(*(modified(str(n), **REQUESTED) for n in range(12)))
        await wait_for(lambda: len(it.broker.given) == 6)
        await it.supervisor.close(0.05)
        assert sorted(int(ack.correlation_id) for _, ack in it.gate.acks) == list(range(12))
        assert {ack.status for _, ack in it.gate.acks} == {503}


async def test_a_feed_that_ends_can_be_replaced() -> None:
    async with running() as it:
        it.feeds[0].put(modified("1"))
        it.feeds[0].end()
        await wait_for(lambda: len(it.broker.published) == 1)
        second = Frames()
        it.supervisor.attach(0, second)
        second.put(modified("2"))
        await wait_for(lambda: len(it.broker.published) == 2)
        third = Frames()
        it.supervisor.attach(0, third)
        third.put(modified("3"))
        await wait_for(lambda: len(it.broker.published) == 3)


async def test_close_does_not_wait_for_a_feed_that_has_ended() -> None:
    async with running() as it:
        it.feeds[0].put(modified("1"))
        it.feeds[0].end()
        await wait_for(lambda: it.broker.published)
        closing = asyncio.create_task(it.supervisor.close(3_600.0))
        await wait_for(closing.done)


async def test_a_frame_that_cannot_be_read_does_not_stop_the_next() -> None:
    async with running() as it:
        it.feeds[0].put({"no": "topic"})
        it.feeds[0].put(modified())
        await wait_for(lambda: it.broker.published)
        assert it.counted("outbound", "dropped", ok=False) == 1


async def test_targets_share_what_may_be_sent_and_none_starves() -> None:
    document = connection(targets=(target(), target(index=1, address="other")))
    async with running(document, pace=replace(PACE, limits=Limits(publishing=1))) as it:
        for number in range(20):
            it.feeds[0].put(modified(str(number)))
            it.feeds[1].put(modified(str(number)))
        await wait_for(lambda: len(it.broker.published) == 40)
        assert [one["headers"]["correlation-id"] for one in it.broker.to("other")] == [
            str(number) for number in range(20)
        ]
