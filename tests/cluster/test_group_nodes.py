"""What two nodes tell each other about a group when they do not know the same.

The nodes are parts of this process, so that one can be kept from seeing what the other does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from acks.aggregator import Outcome
from acks.declared import MOVED, ORDER, PASSED, UNASSIGNED
from acks.headers import Setter, http_options
from acks.journal import journal_key
from acks.signals import Acknowledgement, Command
from app import group_members
from app.node import Node
from app.session import Session, Subscription
from app.settings import Settings
from tests.gateways import new_id, new_label
from tests.servers import RedisServer, wait_for

PREFIX = "group-nodes"
SUBJECTS = ("nginx:ditto",)


@asynccontextmanager
async def node(store: RedisServer) -> AsyncIterator[Node]:
    made = Node(Settings(prefix=PREFIX), store.url)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def here(store: RedisServer) -> AsyncIterator[Node]:
    """The node that waits for acks."""
    async with node(store) as made:
        yield made


@pytest.fixture
async def there(store: RedisServer) -> AsyncIterator[Node]:
    """The node with the members."""
    async with node(store) as made:
        yield made


@pytest.fixture
def label() -> str:
    return new_label()


@pytest.fixture
def group() -> str:
    return new_label()


async def member(node: Node, label: str, group: str, subscribed: bool = True) -> Session:
    session = await node.gateway.entrance.open(SUBJECTS, [label], group)
    if subscribed:
        await node.gateway.entrance.subscribe(session, Subscription())
    return session


def ask(node: Node, label: str, timeout: str = "20") -> asyncio.Task[Outcome]:
    options = http_options(Setter.TWIN_MODIFY, label, None, timeout)
    thing_id = new_id()
    thing = {"thingId": thing_id}
    return asyncio.create_task(
        node.gateway.ask(Command(thing_id, (), thing, thing_id, options, SUBJECTS))
    )


async def next_event(session: Session) -> dict[str, Any]:
    async with asyncio.timeout(10):
        [frame] = await session.frames()
    event: dict[str, Any] = orjson.loads(frame)
    return event


def acknowledge(node: Node, session: Session, event: dict[str, Any], label: str) -> None:
    correlation_id = event["headers"]["correlation-id"]
    ack = Acknowledgement(label, "any:thing", correlation_id, 200)
    node.gateway.acknowledge(session, ack)


async def blind(node: Node) -> None:
    """Keep a node from noticing what becomes of the groups; ``_look`` makes it see once."""
    await node._groups.close()


async def test_a_node_that_does_not_know_the_group_learns_of_it(
    here: Node, there: Node, label: str, group: str
) -> None:
    await blind(here)
    sessions = [await member(there, label, group) for _ in range(2)]
    answer = ask(here, label)
    await wait_for(lambda: here._groups.assignments.open)
    assert not any(session._outbox for session in sessions), "nobody gets it for nobody was chosen"
    await here._groups._look()
    await wait_for(lambda: any(session._outbox for session in sessions))
    chosen = next(session for session in sessions if session._outbox)
    event = await next_event(chosen)
    assert "ackgate-redelivered" not in event["headers"]
    acknowledge(there, chosen, event, label)
    assert (await answer).status == 200
    assert not any(session._outbox for session in sessions)


async def test_a_member_that_the_node_still_believes_in_is_replaced(
    here: Node, there: Node, label: str, group: str
) -> None:
    gone = await member(there, label, group)
    await wait_for(lambda: label in here._groups.assignments.group_of)
    await blind(here)
    await there.gateway.entrance.close(gone)
    stays = await member(there, label, group)
    answer = ask(here, label)
    acknowledge(there, stays, await next_event(stays), label)
    assert (await answer).status == 200
    assert not here._groups.assignments.open


async def test_a_request_waits_if_nobody_was_there_to_be_asked(
    here: Node, there: Node, label: str, group: str
) -> None:
    gone = await member(there, label, group)
    other = await there.gateway.entrance.open(SUBJECTS, [new_label()], new_label())
    await there.gateway.entrance.subscribe(other, Subscription())
    await wait_for(lambda: label in here._groups.assignments.group_of)
    await blind(here)
    await there.gateway.entrance.close(gone)
    answer = ask(here, label)
    await next_event(other)
    late = await member(there, label, group)
    assert not answer.done()
    await here._groups._look()
    event = await next_event(late)
    acknowledge(there, late, event, label)
    assert (await answer).status == 200


async def test_a_fresh_member_may_take_a_moment_to_subscribe(
    here: Node, there: Node, label: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = await member(there, label, group, subscribed=False)
    await wait_for(lambda: label in here._groups.assignments.group_of)
    answer = ask(here, label)
    await wait_for(lambda: len(there._groups.members))
    await there.gateway.entrance.subscribe(fresh, Subscription())
    acknowledge(there, fresh, await next_event(fresh), label)
    outcome = await answer
    assert (outcome.status, outcome.acks[0].weak) == (200, False)

    monkeypatch.setattr(group_members, "FRESH_S", 0.1)
    await there.gateway.entrance.close(fresh)
    await member(there, label, group, subscribed=False)
    outcome = await ask(here, label)
    assert (outcome.status, outcome.acks[0].weak) == (200, True)
    assert len(there._groups.members) == 0


async def test_what_waits_for_a_member_that_leaves_is_for_others(
    here: Node, there: Node, label: str, group: str
) -> None:
    fresh = await member(there, label, group, subscribed=False)
    await wait_for(lambda: label in here._groups.assignments.group_of)
    answer = ask(here, label)
    await wait_for(lambda: len(there._groups.members))
    other = await member(here, label, group)
    await there.gateway.entrance.close(fresh)
    acknowledge(here, other, await next_event(other), label)
    assert (await answer).status == 200
    assert len(there._groups.members) == 0


async def test_an_accepted_request_that_is_acknowledged_is_not_delivered_again(
    here: Node, there: Node, label: str, group: str
) -> None:
    """Its acks go to the store, so this node has to look there."""
    first, still_owed = await member(there, label, group), new_label()
    await wait_for(lambda: label in here._groups.assignments.group_of)
    thing_id = new_id()
    options = http_options(Setter.TWIN_MODIFY, f"{label},{still_owed}", None, "20")
    command = Command(thing_id, (), {"thingId": thing_id}, thing_id, options, SUBJECTS)
    await here.gateway.accept(command)
    event = await next_event(first)
    acknowledge(there, first, event, label)
    await wait_for(lambda: there.gateway.accepting.recorded == 1)
    second = await member(there, label, group)
    assert here._groups.assignments.open
    await there.gateway.entrance.close(first)
    await wait_for(lambda: not here._groups.assignments.open)
    assert not second._outbox


async def test_an_order_outlives_a_lost_connection(
    here: Node, there: Node, label: str, group: str
) -> None:
    first = await member(here, label, group)
    answer = ask(here, label)
    await next_event(first)
    second = await member(there, label, group)
    wire = there._redis._wire
    assert wire is not None
    await wait_for(lambda: len(here._groups.assignments._rotations[group]) == 2)
    orders: list[Acknowledgement] = []
    control = there._groups.control

    def cut(ack: Acknowledgement) -> None:
        orders.append(ack)
        wire.drop("cut by the test")
        control(ack)

    there._groups.control = cut  # type: ignore[method-assign] # to be there when it comes
    await here.gateway.entrance.close(first)
    event = await next_event(second)
    assert [order.label for order in orders] == [ORDER]
    assert event["headers"]["ackgate-redelivered"] is True
    await wait_for(there._registry.valid)
    acknowledge(there, second, event, label)
    assert (await answer).status == 200


async def test_an_entry_that_is_gone_lets_the_time_run_out(
    here: Node, there: Node, label: str, group: str
) -> None:
    first = await member(here, label, group)
    answer = ask(here, label, "2s")
    await next_event(first)
    for shard in range(here._settings.shards):
        await here._redis.call("XTRIM", journal_key(PREFIX, shard), "MAXLEN", 0)
    with capture_logs() as logs:
        second = await member(there, label, group)
        await here.gateway.entrance.close(first)
        assert (await answer).status == 408
    assert any(entry["event"] == "groups.entry_gone" for entry in logs)
    assert not second._outbox


@pytest.mark.parametrize("what", [ORDER, PASSED, MOVED, UNASSIGNED])
@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {},
        {"a": False},
        {"g": "x", "p": 7, "d": "x", "m": 1, "o": 1, "r": 1, "x": 3, "a": 0, "l": 5, "b": 0},
        {"g": "x", "p": [0, "1-1"], "d": 0, "m": "n", "o": "n", "r": 1, "x": ["n"], "a": 0, "l": [],
         "b": "n"},
    ],
)  # fmt: skip
async def test_odd_records_harm_nobody(here: Node, what: str, facts: Any) -> None:
    here.gateway.receive(Acknowledgement(what, "", "no such request", 200, facts))
    label = new_label()
    session = await member(here, label, new_label())
    answer = ask(here, label)
    acknowledge(here, session, await next_event(session), label)
    assert (await answer).status == 200
