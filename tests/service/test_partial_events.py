"""Events for subscribers that may read only a part of the thing (spec websocket-... 5.6)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from tests.gateways import Gateway, Subscriber, ack_all, new_id, new_label, thing
from tests.service.policies import policy_of

Json = Any
MERGE = {"content-type": "application/merge-patch+json"}


def brief(subscriber: Subscriber) -> list[tuple[str, str, Json]]:
    """Action, path and value of what came."""
    return [
        (event["topic"].rsplit("/")[-1], event["path"], event.get("value", "none"))
        for event in subscriber.events
    ]


async def test_a_part_reader_gets_its_part_of_every_event(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    policy = policy_of(user2={"thing:/attributes/open": "+", "thing:/features/f/properties/p": "+"})
    features = {"f": {"properties": {"p": 1, "q": 2}}}
    async with Subscriber.open(gateway, user="user2") as part, Subscriber.open(gateway) as whole:
        attributes = {"open": {"a": 1}, "closed": 2}
        await client.put(
            thing(name),
            json={"_policy": policy, "attributes": attributes, "features": features},
        )
        await client.put(thing(name, "/attributes"), json={"open": 3, "closed": 4})
        await client.put(thing(name, "/attributes"), json={"closed": 4})
        await client.put(thing(name, "/attributes/closed"), json=5)
        await client.put(thing(name, "/features/f/properties"), json={"p": 2, "q": 3})
        await client.put(thing(name, "/features/f/properties/q"), json=4)
        patch = {"attributes": {"open": None, "closed": None}, "features": {"f": None}}
        await client.patch(thing(name), json=patch, headers=MERGE)
        await client.patch(thing(name), json={"attributes": {"closed": 1}}, headers=MERGE)
        await client.patch(thing(name, "/attributes/open"), json={"b": None}, headers=MERGE)
        await client.delete(thing(name, "/attributes/closed"))
        await client.delete(thing(name, "/attributes"))
        await client.delete(thing(name))
        await whole.event(count=12)
        await part.nothing_came()
    seen = {"thingId": name, "attributes": {"open": {"a": 1}}}
    assert brief(part) == [
        ("created", "/", {**seen, "features": {"f": {"properties": {"p": 1}}}}),
        ("modified", "/attributes", {"open": 3}),
        ("modified", "/features/f/properties", {"p": 2}),
        ("merged", "/", {"attributes": {"open": None}}),
        ("merged", "/attributes/open", {"b": None}),
        ("deleted", "/attributes", "none"),
        ("deleted", "/", "none"),
    ]
    assert len(whole.events) == 12
    assert whole.events[6]["value"] == patch


async def test_a_revoke_below_is_a_hole(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    policy = policy_of(user2={"thing:/": "+", "thing:/attributes/secret": "-"})
    async with Subscriber.open(gateway, user="user2") as subscriber:
        created = {"_policy": policy, "attributes": {"secret": 1, "a": 2}}
        await client.put(thing(name), json=created)
        await client.put(thing(name, "/attributes/secret"), json=3)
        await client.put(thing(name, "/attributes/a"), json=4)
        await client.patch(thing(name), json={"attributes": {"secret": None}}, headers=MERGE)
        await client.delete(thing(name, "/attributes/secret"))
        await client.put(thing(name, "/attributes/a"), json=5)
        await subscriber.event(count=3)
        await subscriber.nothing_came()
    assert brief(subscriber) == [
        ("created", "/", {"thingId": name, "policyId": name, "attributes": {"a": 2}}),
        ("modified", "/attributes/a", 4),
        ("modified", "/attributes/a", 5),
    ]


async def test_weak_acks_of_part_readers(gateway: Gateway, client: httpx.AsyncClient) -> None:
    """Nothing is left for one who reads a part; another reads nothing of the thing at all."""
    one, other, label = new_id(), new_id(), new_label()
    policy = policy_of(user2={"thing:/attributes/open": "+"})
    await client.put(thing(one), json={"_policy": policy})
    await client.put(thing(other), json={"_policy": policy_of()})
    params = {"requested-acks": label}
    async with Subscriber.open(gateway, label, user="user2", ack=ack_all) as subscriber:
        hidden = await client.put(thing(one, "/attributes/closed"), json=1, params=params)
        refused = await client.put(thing(other, "/attributes/closed"), json=1, params=params)
        seen = await client.put(thing(one, "/attributes"), json={"open": 1, "x": 2}, params=params)
        await subscriber.nothing_came()
    assert (hidden.status_code, hidden.json()) == (200, WEAK_FILTERED)
    assert (refused.status_code, refused.json()) == (200, WEAK_UNSUBSCRIBED)
    assert seen.headers.get("ditto-weak-ack") is None
    assert brief(subscriber) == [("modified", "/attributes", {"open": 1})]
    assert subscriber.events[0]["headers"]["requested-acks"] == [label]


@pytest.mark.parametrize("allowed", ["+", "-"])
async def test_a_policy_that_is_changed_counts_for_what_comes_after(
    gateway: Gateway, client: httpx.AsyncClient, allowed: str
) -> None:
    name = new_id()
    before = "-" if allowed == "+" else "+"
    rules = {"thing:/attributes": "+", "thing:/attributes/a": before}
    await client.put(thing(name), json={"_policy": policy_of(user2=rules)})
    async with Subscriber.open(gateway, user="user2") as subscriber:
        await client.put(thing(name, "/attributes"), json={"a": 1, "b": 1})
        changed = policy_of(user2={**rules, "thing:/attributes/a": allowed})
        answer = await client.put(f"/api/2/policies/{name}", json=changed)
        assert answer.status_code == 204, answer.text
        await client.put(thing(name, "/attributes"), json={"a": 2, "b": 2})
        await subscriber.event(count=2)
    first, second = subscriber.events
    assert ("a" in first["value"], "a" in second["value"]) == (before == "+", allowed == "+")
    assert second["value"]["b"] == 2
