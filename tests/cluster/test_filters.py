"""Requests on one gateway process; filters, extra fields and partial reads on another."""

from __future__ import annotations

from urllib.parse import quote

from acks.envelopes import WEAK_FILTERED
from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, thing
from tests.service.policies import policy_of


def start(**parameters: str) -> str:
    """A START-SEND-EVENTS with these parameters."""
    pairs = (f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"START-SEND-EVENTS?{'&'.join(pairs)}"


async def test_a_filter_there_answers_a_request_here(a: Gateway, b: Gateway) -> None:
    name, label, enriched = new_id(), new_label(), new_label()
    plain = start(filter="gt(attributes/n,1)")
    looking = start(filter="eq(attributes/type,'lamp')", extraFields="attributes/type,_revision")
    async with (
        Subscriber.open(b, label, start=plain, ack=ack_all) as one,
        Subscriber.open(b, enriched, start=looking, ack=ack_all) as two,
        http(a) as client,
    ):
        params = {"requested-acks": f"twin-persisted,{label},{enriched}"}
        first = await client.put(thing(name), json={"attributes": {"n": 1}}, params=params)
        await client.put(thing(name, "/attributes/type"), json="lamp")
        second = await client.put(thing(name, "/attributes/n"), json=2, params=params)
        await one.event()
        event = await two.event(count=2)
    assert (first.status_code, second.status_code) == (200, 200)
    for found in (first.json()[label], first.json()[enriched]):
        assert found["payload"] == WEAK_FILTERED
        assert found["headers"]["ditto-weak-ack"] is True
    for name_of in (label, enriched):
        assert "ditto-weak-ack" not in second.json()[name_of]["headers"]
    # Read from the store: the other process has never seen this twin.
    assert event["extra"] == {"attributes": {"type": "lamp"}, "_revision": 3}


async def test_parts_of_events_cross_over(a: Gateway, b: Gateway) -> None:
    name = new_id()
    policy = policy_of(user2={"thing:/attributes/open": "+"})
    async with Subscriber.open(b, user="user2") as part, http(a) as client:
        await client.put(thing(name), json={"_policy": policy, "attributes": {"open": 1, "x": 2}})
        await client.put(thing(name, "/attributes/x"), json=3)
        await client.put(thing(name, "/attributes"), json={"open": 4, "x": 5})
        await part.event(count=2)
        await part.nothing_came()
    assert [event["value"] for event in part.events] == [
        {"thingId": name, "attributes": {"open": 1}},
        {"open": 4},
    ]
