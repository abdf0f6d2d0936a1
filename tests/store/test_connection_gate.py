"""The gateway as a source sees it: what is answered, and what a message's settlement waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.live import LiveResponse
from acks.signals import Acknowledgement
from app import connection_gate
from app.connection_gate import ConnectionGate, Queue
from app.crew import Crew
from app.node import Node
from app.session import Subscription
from app.settings import Settings
from connections.model import Connection, Source, Target, Topic, Uri
from connections.ports import Answer, Sender
from tests.gateways import new_id
from tests.servers import RedisServer, wait_for

ME = "s:me"
SENDER = Sender("mine", (ME,), frozenset({"mine:all"}))
EVENTS, MESSAGES = "_/_/things/twin/events", "_/_/things/live/messages"


class Desk:
    """A node, a gate for a connection of it, and things."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.runs = True
        topics = Topic(EVENTS), Topic(MESSAGES)
        self.crew = Crew(
            Connection(
                "mine", "mqtt", True, Uri("tcp", "localhost", 1883),
                (Source(0, ("in",), (ME,), declared=("mine:all",)),),
                (Target(0, "out", topics, (ME,), issued="mine:out"),),
            ),
            outbox_bytes=1_000_000,
        )  # fmt: skip
        self.gate = ConnectionGate(
            node._desk, "mine", self.crew, elsewhere=lambda: None, runs=lambda: self.runs
        )

    def say(self, envelope: Any, sender: Sender = SENDER) -> tuple[bool, list[Answer]]:
        """Submit a message: whether its settlement waits, and its answers when they are there."""
        answers: list[Answer] = []
        return self.gate.submit(envelope, sender, answers.append), answers

    async def ask(self, envelope: Any, sender: Sender = SENDER) -> tuple[bool, Answer]:
        """Submit a message and wait for its one answer."""
        waits, answers = self.say(envelope, sender)
        await wait_for(lambda: answers, what="answer")
        await asyncio.sleep(0)
        [answer] = answers
        return waits, answer

    async def thing(self) -> str:
        """A new thing of ours."""
        name = new_id()
        _, answer = await self.ask(command(name, "create", {"attributes": {"n": 0}}, path="/"))
        assert answer.statuses == (201,)
        return name


@pytest.fixture
async def desk(shared: RedisServer, prefix: str) -> AsyncIterator[Desk]:
    node = Node(Settings(prefix=prefix), shared.url)
    await node.start()
    made = Desk(node)
    await node.gateway.entrance.open_crew(made.crew)
    assert await node.gateway.entrance.claim_crew(made.crew) is None
    try:
        yield made
    finally:
        await made.gate.close()
        await node.gateway.entrance.close_crew(made.crew)
        await node.stop()


def command(
    thing_id: str, action: str = "modify", value: Any = 1, path: str = "/attributes/n",
    channel: str = "twin/commands", **headers: Any,
) -> Envelope:  # fmt: skip
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    topic = f"{thing_id.replace(':', '/')}/things/{channel}/{action}"
    envelope = {"topic": topic, "headers": named, "path": path}
    return envelope if value is None else {**envelope, "value": value}


async def test_the_outcome_is_told_even_if_no_response_is_wanted(desk: Desk) -> None:
    name = await desk.thing()
    waits, answer = await desk.ask(command(name))
    assert (waits, answer.statuses, answer.error) == (True, (204,), None)
    assert answer.envelope is not None
    waits, answer = await desk.ask(
        command(name, response_required=False, requested_acks=["twin-persisted"])
    )
    assert (waits, answer.statuses, answer.envelope) == (True, (204,), None)
    waits, answer = await desk.ask(
        command(new_id(), response_required=False, requested_acks=["twin-persisted"])
    )
    assert (waits, answer.statuses, answer.envelope) == (True, (404,), None)
    assert answer.error is not None


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"requested_acks": []}, False),
        ({"requested_acks": [], "response_required": True}, False),
        ({"response_required": False}, False),
        ({}, True),
        ({"requested_acks": ["twin-persisted"]}, True),
        ({"requested_acks": ["twin-persisted"], "response_required": False}, True),
    ],
)
async def test_what_a_settlement_waits_for(desk: Desk, headers: Any, waits: bool) -> None:
    found, answer = await desk.ask(command(await desk.thing(), **headers))
    assert found is waits
    assert answer.error is None


@pytest.mark.parametrize(
    "headers",
    [
        {"timeout": "0s", "requested_acks": ["twin-persisted"], "response_required": False},
        {"timeout": "0s", "response_required": True},
        {"timeout": "later"},
        {"response_required": "perhaps"},
    ],
)
async def test_a_combination_of_headers_that_cannot_be_is_settled_by_its_error(
    desk: Desk, headers: Any
) -> None:
    waits, answer = await desk.ask(command(await desk.thing(), **headers))
    assert waits
    assert answer.error is not None
    assert answer.statuses == (400,)
    assert answer.envelope is not None


@pytest.mark.parametrize(
    "envelope",
    [
        {},
        {"topic": "no topic", "path": "/"},
        {"topic": "a/b/things/twin/commands/modify", "path": "/nothing", "value": 1},
        {"topic": "a/b/things/twin/commands/modify", "path": "/attributes/n"},
        {"topic": "a/b/things/twin/acks/other:label", "path": "/", "status": 200},
        {"topic": "a/b/things/twin/commands/modify", "path": "/attributes/a", "value": 2**70},
        {"topic": "_/_/things/twin/search/subscribe", "path": "/", "value": {}},
    ],
)  # fmt: skip
async def test_a_message_that_makes_no_sense_is_answered_and_settled_at_once(
    desk: Desk, envelope: Any
) -> None:
    waits, answer = await desk.ask(envelope)
    assert not waits
    assert answer.error is not None
    assert answer.envelope is not None
    assert answer.envelope["topic"].endswith("/errors")


async def test_a_condition_that_cannot_be_read_is_the_error_of_its_command(desk: Desk) -> None:
    waits, answer = await desk.ask(command(await desk.thing(), condition="nonsense"))
    assert waits
    assert answer.error is not None
    assert (answer.statuses, answer.error.code) == ((400,), "rql.expression.invalid")


async def test_queries_have_answers_of_plain_json_and_nothing_waits(desk: Desk) -> None:
    name = await desk.thing()
    waits, answer = await desk.ask(command(name, "retrieve", None))
    assert answer.envelope is not None
    assert (waits, answer.statuses, answer.envelope["value"]) == (False, (200,), 0)
    many = command("_:_", "retrieve", {"thingIds": [name, new_id()]}, path="/")
    waits, answer = await desk.ask(many)
    assert answer.envelope is not None
    assert not waits
    assert [thing["thingId"] for thing in answer.envelope["value"]] == [name]


async def test_the_acks_of_a_message_are_told_one_by_one(desk: Desk) -> None:
    name = await desk.thing()
    gateway = desk.node.gateway
    session = await gateway.entrance.open((ME,), ["worker:a", "worker:b"])
    await gateway.entrance.subscribe(session, Subscription())
    labels = ["worker:a", "worker:b", "twin-persisted"]
    waits, answers = desk.say(command(name, correlation_id="c", requested_acks=labels))
    assert waits
    await session.frames()
    for label, status in (("worker:a", 200), ("worker:b", 503)):
        gateway.acknowledge(session, Acknowledgement(label, name, "c", status))
    await wait_for(lambda: answers)
    [answer] = answers
    assert sorted(answer.statuses) == [200, 204, 503]
    assert not answer.live
    assert answer.envelope is not None
    assert answer.envelope["status"] == 424
    await gateway.entrance.close(session)


async def test_a_live_response_is_told_as_such(desk: Desk) -> None:
    name = await desk.thing()
    gateway = desk.node.gateway
    session = await gateway.entrance.open((ME,), ())
    await gateway.entrance.subscribe(session, Subscription(), "message")
    path = "/inbox/messages/ask"
    ask = command(name, "ask", "how?", path, "live/messages", correlation_id="c")
    waits, answers = desk.say(ask)
    assert waits
    await session.frames()
    gateway.answer(session, LiveResponse(name, "messages", "ask", path, "c", 418, "so", {}))
    await wait_for(lambda: answers)
    assert (answers[0].statuses, answers[0].live) == ((418,), True)
    event = command(name, "modified", 1, "/attributes/n", "live/events")
    waits, answer = await desk.ask(event)
    assert (waits, answer) == (False, Answer(None, ()))
    await gateway.entrance.close(session)


async def test_targets_acknowledge_what_they_were_given(desk: Desk) -> None:
    name = await desk.thing()
    other = ConnectionGate(
        desk.node._desk, "other", None, elsewhere=lambda: None, runs=lambda: True
    )
    answers: list[Answer] = []
    labels = ["mine:out", "mine:all"]
    sender = Sender("other", (ME,), frozenset())
    asked = command(name, correlation_id="c", requested_acks=labels)
    assert other.submit(asked, sender, answers.append)
    await desk.crew.sessions[0].frames()
    out = Acknowledgement("mine:out", name, "c", 200)
    assert desk.gate.acknowledge(0, out)
    assert not desk.gate.acknowledge(0, out), "only once"
    assert not desk.gate.acknowledge(7, out)
    acks = f"{name.replace(':', '/')}/things/twin/acks/mine:all"
    ack = {"topic": acks, "headers": {"correlation-id": "c"}, "path": "/", "status": 201}
    assert await desk.ask(ack) == (False, Answer(None, ()))
    await wait_for(lambda: answers)
    assert sorted(answers[0].statuses) == [200, 201]
    assert answers[0].envelope is not None
    for entry in answers[0].envelope["value"].values():
        assert entry["headers"]["ditto-connection-id"] == "mine"
    ack["headers"] = {}
    _, answer = await desk.ask(ack)
    assert answer.error is not None
    assert answer.error.code == "acknowledgement:correlation-id.missing"
    await other.close()


async def test_a_weak_ack_of_a_built_in_label_is_settled_and_ignored(desk: Desk) -> None:
    topic = f"{(await desk.thing()).replace(':', '/')}/things/twin/acks/twin-persisted"
    headers = {"correlation-id": "c", "ditto-weak-ack": True}
    ack = {"topic": topic, "headers": headers, "path": "/", "status": 200}
    assert await desk.ask(ack) == (False, Answer(None, ()))


async def test_acks_that_come_while_the_labels_are_not_ours_are_refused(desk: Desk) -> None:
    name = await desk.thing()
    desk.node.gateway.sessions.crew_lost(desk.crew)
    acks = f"{name.replace(':', '/')}/things/twin/acks/mine:all"
    ack = {"topic": acks, "headers": {"correlation-id": "c"}, "path": "/", "status": 201}
    _, answer = await desk.ask(ack)
    assert answer.error is not None
    assert answer.error.code == "acknowledgement:label.not.declared"


async def test_who_does_not_run_the_client_any_more_carries_nothing_out(desk: Desk) -> None:
    name = await desk.thing()
    desk.runs = False
    waits, answer = await desk.ask(command(name))
    assert waits, "it comes again, to whoever runs it now"
    assert answer.statuses == (503,)
    desk.runs = True
    _, answer = await desk.ask(command(name, "retrieve", None))
    assert answer.envelope is not None
    assert answer.envelope["value"] == 0


async def test_what_reads_a_thing_waits_for_what_changes_it(desk: Desk) -> None:
    name = await desk.thing()
    values: list[Any] = []

    def note(answer: Answer) -> None:
        if answer.envelope is not None:
            values.append(answer.envelope["value"])

    for number in range(1, 50):
        desk.gate.submit(command(name, value=number, response_required=False), SENDER, note)
        desk.gate.submit(command(name, "retrieve", None), SENDER, note)
    await wait_for(lambda: len(values) == 49)
    assert values == list(range(1, 50))


async def test_what_waits_for_its_turn_keeps_its_order_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_gate, "WAITING", 3)
    queue, done = Queue(), []
    queue.hold()
    for number in range(3):
        queue.in_turn(None, "", lambda number=number: done.append(number))  # type: ignore[misc]
    with pytest.raises(GatewayError):
        queue.in_turn(None, "", lambda: done.append(9))
    assert done == []
    queue.release()
    await wait_for(lambda: done == [0, 1, 2])
    queue.in_turn(None, "", lambda: done.append(3))
    assert done == [0, 1, 2, 3]
