"""Subscriptions with a filter or extra fields, and weak acks for what they keep away."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, thing
from tests.service.policies import policy_of

Json = Any


def start(kind: str = "EVENTS", **parameters: str) -> str:
    """A START command with these parameters."""
    pairs = [f"{name}={quote(value, safe='')}" for name, value in parameters.items()]
    return f"START-SEND-{kind}?{'&'.join(pairs)}"


async def test_a_filter_chooses_among_changes(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    text = f"and(eq(thingId,'{name}'),or(gt(attributes/n,2),eq(topic:action,'deleted')))"
    async with Subscriber.open(gateway, start=start(filter=text)) as subscriber:
        await client.put(thing(name), json={"attributes": {"n": 1}})
        for number in (2, 3, 4):
            await client.put(thing(name, "/attributes/n"), json=number)
        await client.patch(
            thing(name),
            json={"attributes": {"n": 5, "m": None}},
            headers={"content-type": "application/merge-patch+json"},
        )
        await client.put(thing(name, "/attributes/other"), json=9)
        await client.delete(thing(name))
        await subscriber.event(count=4)
        await subscriber.nothing_came()
    assert [(e["topic"].rsplit("/")[-1], e.get("value")) for e in subscriber.events] == [
        ("modified", 3),
        ("modified", 4),
        ("merged", {"attributes": {"n": 5, "m": None}}),
        ("deleted", None),
    ]


async def test_a_new_start_replaces_the_filter(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    own = f"eq(thingId,'{name}')"
    async with Subscriber.open(
        gateway, start=start(filter=f"and({own},eq(topic:action,'created'))")
    ) as subscriber:
        await client.put(thing(name), json={})
        await subscriber.command(start(filter=f"and({own},eq(attributes/n,2))"))
        for number in (1, 2):
            await client.put(thing(name, "/attributes/n"), json=number)
        await subscriber.event(count=2)
        await subscriber.nothing_came()
    assert [event["revision"] for event in subscriber.events] == [1, 3]


async def test_weak_acks_say_why(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name, filtered, elsewhere = new_id(), new_label(), new_label()
    before = await weak(gateway)
    async with (
        Subscriber.open(
            gateway, filtered, start=start(filter="eq(attributes/n,1)"), ack=ack_all
        ) as one,
        Subscriber.open(gateway, elsewhere, start="START-SEND-MESSAGES"),
    ):
        params = {"requested-acks": f"{filtered},{elsewhere}"}
        answer = await client.put(thing(name), json={}, params=params, headers={"x-mine": "yes"})
        assert answer.status_code == 200
        found = answer.json()
        assert found[filtered]["payload"] == WEAK_FILTERED
        assert found[elsewhere]["payload"] == WEAK_UNSUBSCRIBED
        for entry in found.values():
            assert entry["status"] == 200
            assert entry["headers"]["ditto-weak-ack"] is True
            assert entry["headers"]["x-mine"] == "yes"
        await client.put(thing(name, "/attributes/n"), json=1, params={"requested-acks": filtered})
        await one.event()
    after = await weak(gateway)
    assert after["filtered"] == before["filtered"] + 1
    assert after["unsubscribed"] == before["unsubscribed"] + 1


async def weak(gateway: Gateway) -> dict[str, float]:
    """The weak acks so far by their reason."""
    async with http(gateway, "devops") as operator:
        lines = (await operator.get("/metrics")).text.splitlines()
    found = {}
    for line in lines:
        if line.startswith("ackgate_acks_weak_by_reason_total{"):
            labels, _, figure = line.rpartition(" ")
            found[labels.partition('reason="')[2].partition('"')[0]] = float(figure)
    return found


@pytest.mark.parametrize("kind", ["MESSAGES", "LIVE-COMMANDS"])
async def test_filters_of_messages_and_live_commands(
    gateway: Gateway, client: httpx.AsyncClient, kind: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"n": 0}})
    path = "/attributes/n" if kind == "LIVE-COMMANDS" else "/inbox/messages/ask"
    text = f"and(eq(entity:id,'{name}'),eq(resource:path,'{path}'))"
    async with Subscriber.open(gateway, start=start(kind, filter=text)) as subscriber:
        if kind == "LIVE-COMMANDS":
            params = {"channel": "live", "response-required": "false"}
            for part in ("/attributes/m", "/attributes/n"):
                answer = await client.put(thing(name, part), json=1, params=params)
                assert answer.status_code == 202, answer.text
        else:
            for subject in ("other", "ask"):
                answer = await client.post(
                    thing(name, f"/inbox/messages/{subject}"),
                    json=1,
                    params={"response-required": "false"},
                )
                assert answer.status_code == 202, answer.text
        event = await subscriber.event()
        await subscriber.nothing_came()
    assert event["path"] == path


# --- extra fields


async def test_extra_fields_are_those_of_the_twin_now(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    features = {"a": {"properties": {"on": True, "x": 1}}, "b": {"properties": {"on": False}}}
    await client.put(thing(name), json={"attributes": {"type": "lamp"}, "features": features})
    fields = "attributes/type,features/*/properties/on,_revision,definition"
    text = f"eq(thingId,'{name}')"
    async with Subscriber.open(gateway, start=start(filter=text, extraFields=fields)) as subscriber:
        await client.put(thing(name, "/features/a/properties/x"), json=2)
        first = await subscriber.event()
        await client.delete(thing(name, "/attributes/type"))
        second = await subscriber.event(count=2)
        await client.delete(thing(name))
        third = await subscriber.event(count=3)
    on = {"a": {"properties": {"on": True}}, "b": {"properties": {"on": False}}}
    assert first["extra"] == {"attributes": {"type": "lamp"}, "features": on, "_revision": 2}
    assert list(first)[-4:] == ["value", "extra", "revision", "timestamp"]
    assert second["extra"] == {"features": on, "_revision": 3}
    assert "extra" not in third


async def test_a_filter_on_extra_fields(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name, label = new_id(), new_label()
    await client.put(thing(name), json={"attributes": {"type": "lamp", "n": 0}})
    text = f"and(eq(thingId,'{name}'),eq(attributes/type,'lamp'))"
    command = start(filter=text, extraFields="attributes/type")
    async with Subscriber.open(gateway, label, start=command, ack=ack_all) as subscriber:
        params = {"requested-acks": label}
        answers = []
        for path, value in (("n", 1), ("type", "door"), ("n", 2), ("type", "lamp"), ("n", 3)):
            answers.append(
                await client.put(thing(name, f"/attributes/{path}"), json=value, params=params)
            )
        await subscriber.nothing_came()
    assert [event["value"] for event in subscriber.events] == [1, "lamp", 3]
    payloads = [answer.json() == WEAK_FILTERED for answer in answers]
    assert payloads == [False, True, True, False, False]


async def test_the_feature_of_an_event(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    features = {
        one: {"definition": [f"x:{one}:1"], "properties": {"on": True}} for one in ("a", "b")
    }
    await client.put(thing(name), json={"features": features})
    command = start(
        filter=f"eq(thingId,'{name}')", extraFields="features/{{feature:id}}/definition"
    )
    async with Subscriber.open(gateway, start=command) as subscriber:
        await client.put(thing(name, "/features/b/properties/on"), json=False)
        event = await subscriber.event()
    assert event["extra"] == {"features": {"b": {"definition": ["x:b:1"]}}}


async def test_extra_fields_of_messages(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"type": "lamp"}})
    command = start("MESSAGES", filter="eq(attributes/type,'lamp')", extraFields="attributes")
    async with Subscriber.open(gateway, start=command) as subscriber:
        await client.post(
            thing(name, "/outbox/messages/hi"), json=1, params={"response-required": "false"}
        )
        message = await subscriber.event()
    assert message["extra"] == {"attributes": {"type": "lamp"}}


async def test_extra_fields_are_cut_by_the_policy(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    policy = policy_of(user2={"thing:/attributes/open": "+"})
    attributes = {"open": 1, "closed": 2}
    await client.put(thing(name), json={"_policy": policy, "attributes": attributes})
    fields = "attributes,policyId,thingId,_policy"
    whole = start(filter=f"eq(thingId,'{name}')", extraFields=fields)
    spying = start(filter="eq(attributes/closed,2)", extraFields=fields)
    async with (
        Subscriber.open(gateway, start=whole) as owner,
        Subscriber.open(gateway, user="user2", start=whole) as reader,
        Subscriber.open(gateway, user="user2", start=spying) as spy,
    ):
        await client.put(thing(name, "/attributes/open"), json=3)
        seen = await reader.event()
        known = await owner.event()
        await spy.nothing_came()
        await reader.command("STOP-SEND-EVENTS")
        assert spy.events == []
    assert seen["extra"] == {"thingId": name, "attributes": {"open": 3}}
    assert known["extra"]["attributes"] == {"open": 3, "closed": 2}
    assert known["extra"]["policyId"] == name
    assert set(known["extra"]["_policy"]["entries"]) == {"owner", "user2"}


async def test_order_holds_with_extra_fields(gateway: Gateway, client: httpx.AsyncClient) -> None:
    names = [new_id() for _ in range(3)]
    either = ",".join(json.dumps(name) for name in names)
    command = start(filter=f"in(thingId,{either})", extraFields="attributes,_revision")
    async with Subscriber.open(gateway, start=command) as subscriber:

        async def write(name: str) -> None:
            await client.put(thing(name), json={})
            changes = (client.put(thing(name, "/attributes/n"), json=n) for n in range(40))
            await asyncio.gather(*changes)

        await asyncio.gather(*(write(name) for name in names))
        await subscriber.event(count=3 * 41)
    for name in names:
        topic = name.replace(":", "/")
        events = [event for event in subscriber.events if event["topic"].startswith(topic)]
        assert [event["revision"] for event in events] == list(range(1, 42))
        # What it is enriched with is never older than the event itself.
        assert all(event["extra"]["_revision"] >= event["revision"] for event in events)


async def test_a_long_filter_holds_up_nobody(gateway: Gateway, client: httpx.AsyncClient) -> None:
    """Its session alone pays for it; the others' events and requests go on."""
    name, label, late = new_id(), new_label(), new_label()
    slow = "and(" + ",".join(["not(like(attributes/list,'*a?b?c*'))"] * 100) + ")"
    async with (
        Subscriber.open(gateway, late, start=start(filter=slow)) as heavy,
        Subscriber.open(gateway, label, ack=ack_all) as light,
    ):
        value = {"list": ["a_b" * 5] * 1_500}
        for number in range(5):
            answer = await client.put(
                thing(name),
                json={"attributes": {**value, "n": number}},
                params={"requested-acks": label, "timeout": "10s"},
            )
            assert answer.status_code == 200
        await light.event(count=5)
        params = {"requested-acks": late, "timeout": "300ms"}
        decided = await client.put(thing(name, "/attributes/n"), json=9, params=params)
        await heavy.event()
    # What was too much to find out does not fit; after that comes what does.
    assert decided.status_code == 408
    assert [event["path"] for event in heavy.events] == ["/attributes/n"]
