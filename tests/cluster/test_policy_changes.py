"""A policy that is changed on one process is changed on all of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import orjson
import pytest

from app.store.redis_client import Redis, RedisAddress
from tests.gateways import Gateway, Subscriber, ack_all, http, new_id, new_label, running, thing
from tests.servers import RedisServer, redis_server

ALL = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}
DEADLINE = 20.0


def policy(**user2: Any) -> dict[str, Any]:
    """A policy of ditto's, in which user2 has ``user2`` (kind: permissions)."""
    owner = {
        "subjects": {"nginx:ditto": {"type": "t"}},
        "resources": {"policy:/": ALL, "thing:/": ALL},
    }
    other = {
        "subjects": {"nginx:user2": {"type": "t"}},
        "resources": {f"{kind}:/": granted for kind, granted in user2.items()},
    }
    return {"entries": {"owner": owner, "other": other}}


async def put_policy(client: httpx.AsyncClient, policy_id: str, document: dict[str, Any]) -> None:
    answer = await client.put(f"/api/2/policies/{policy_id}", json=document)
    assert answer.status_code in (201, 204), answer.text


async def becomes(client: httpx.AsyncClient, status: int, method: str, url: str) -> None:
    """Ask until the answer has this status; the body of a PUT is a counter."""
    end, number = time.monotonic() + DEADLINE, 0
    while True:
        number += 1
        body = number if method == "PUT" else None
        answer = await client.request(method, url, json=body)
        if answer.status_code == status:
            return
        assert time.monotonic() < end, answer.text


async def test_rights_that_are_taken_here_are_gone_there(a: Gateway, b: Gateway) -> None:
    name = new_id()
    counter = thing(name, "/attributes/n")
    async with http(a) as owner, http(b, "user2") as there, http(a, "user2") as here:
        for _ in range(3):
            await put_policy(owner, name, policy(thing=ALL))
            await owner.put(thing(name), json={"policyId": name, "attributes": {"n": 0}})
            # Both processes now hold thing and policy.
            await becomes(there, 204, "PUT", counter)
            await becomes(here, 204, "PUT", counter)
            await put_policy(owner, name, policy(thing=READ))
            assert (await here.put(counter, json=1)).status_code == 403
            await becomes(there, 403, "PUT", counter)
            assert (await there.get(counter)).status_code == 200
            await put_policy(owner, name, policy())
            await becomes(there, 404, "GET", counter)


async def test_deleted_here_is_gone_there(a: Gateway, b: Gateway) -> None:
    name = new_id()
    async with http(a) as owner, http(b) as there:
        await put_policy(owner, name, policy())
        await owner.put(thing(name), json={"policyId": name, "attributes": {}})
        await becomes(there, 201, "PUT", thing(name, "/attributes/n"))
        assert (await owner.delete(f"/api/2/policies/{name}")).status_code == 204
        await becomes(there, 404, "PUT", thing(name, "/attributes/n"))
        await put_policy(owner, name, policy())
        await becomes(there, 204, "PUT", thing(name, "/attributes/n"))


async def test_a_subscriber_that_lost_read_gets_no_more_events(a: Gateway, b: Gateway) -> None:
    name, label, mine = new_id(), new_label(), new_label()
    counter = thing(name, "/attributes/n")

    async with (
        http(a) as owner,
        http(b) as writer,
        Subscriber.open(a, label, user="user2", ack=ack_all) as reader,
        Subscriber.open(a, mine, ack=ack_all),
    ):
        await put_policy(owner, name, policy(thing=READ))
        await owner.put(thing(name), json={"policyId": name, "attributes": {"n": 0}})
        answer = await writer.put(counter, json=1, params={"requested-acks": label})
        assert (answer.status_code, answer.json()) == (200, {"label": label})
        await put_policy(owner, name, policy())
        # The other process has the news once it answers for user2 as if the thing were not there.
        async with http(b, "user2") as lost:
            await becomes(lost, 404, "GET", counter)
        seen = len(reader.events)
        for number in range(2, 7):
            answer = await writer.put(
                counter, json=number, params={"requested-acks": f"{label},{mine}"}
            )
            assert answer.status_code == 200
            # Its label is answered for, weakly: the event was kept from it.
            assert answer.json()[label]["headers"]["ditto-weak-ack"] is True
            assert answer.json()[mine]["payload"] == {"label": mine}
        assert len(reader.events) == seen


async def test_changes_missed_during_an_outage_hold_after_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("outage")
    with redis_server() as store:
        one = Gateway(place, redis_url=store.url, prefix="outage", store_timeout="2")
        with running(one):
            await _change_during_an_outage(one, store)


async def _change_during_an_outage(gateway: Gateway, store: RedisServer) -> None:
    name = new_id()
    counter = thing(name, "/attributes/n")
    async with http(gateway) as owner, http(gateway, "user2") as other:
        await put_policy(owner, name, policy(thing=ALL))
        await owner.put(thing(name), json={"policyId": name, "attributes": {"n": 0}})
        assert (await other.put(counter, json=1)).status_code == 204
        key = await _policy_key(store, name)
        # Nobody is told of this change: as if it was made while this process heard nothing.
        await _redis(store, "SET", key, orjson.dumps({"policyId": name, **policy(thing=READ)}))
        assert (await other.put(counter, json=2)).status_code == 204
        assert await _redis(store, "CLIENT", "KILL", "TYPE", "pubsub") >= 1
        await becomes(other, 403, "PUT", counter)


async def _policy_key(store: RedisServer, policy_id: str) -> bytes:
    keys = await _redis(store, "KEYS", f"*policy:{policy_id}")
    assert isinstance(keys, list)
    assert isinstance(keys[0], bytes)
    return keys[0]


async def _redis(store: RedisServer, *args: str | bytes) -> Any:
    client = Redis(RedisAddress.parse(store.url), name="test")
    await client.start()
    try:
        return await asyncio.wait_for(client.call(*args), DEADLINE)
    finally:
        await client.close()
