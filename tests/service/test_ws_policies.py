"""Policy commands over WebSocket: the HTTP API in other words, in order, and seen by everybody."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from acks.journal import DEFAULT_SHARDS, due_key, shard_of
from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    http,
    new_id,
    new_label,
    running,
    thing,
)
from tests.servers import RedisServer, wait_for

ALL = {"grant": ["READ", "WRITE"], "revoke": []}
OWNER: Json = {
    "subjects": {"nginx:ditto": {"type": "t"}},
    "resources": {"policy:/": ALL, "thing:/": ALL},
}
POLICY: Json = {"entries": {"owner": OWNER}}


@pytest.fixture
async def socket(gateway: Gateway) -> AsyncIterator[Subscriber]:
    async with Subscriber.open(gateway, start=None) as subscriber:
        yield subscriber


def frame(name: str, action: str, path: str = "/", **fields: Any) -> Json:
    topic = f"{name.replace(':', '/', 1)}/policies/commands/{action}"
    headers = {"correlation-id": f"c-{action}", **fields.pop("headers", {})}
    return {"topic": topic, "headers": headers, "path": path, **fields}


async def ask(socket: Subscriber, *args: str, **fields: Any) -> Json:
    """Send a command and return its response."""
    sent, count = frame(*args, **fields), len(socket.events)
    await socket.send(sent)
    answer = await socket.event(count, count + 1)
    assert (answer["topic"], answer["path"]) == (sent["topic"], sent["path"])
    assert answer["headers"]["correlation-id"] == sent["headers"]["correlation-id"]
    return answer


async def test_what_is_made_here_is_there_over_http(
    socket: Subscriber, client: httpx.AsyncClient
) -> None:
    name = new_id()
    created = await ask(socket, name, "create", value=POLICY)
    assert created["status"] == 201
    read = await client.get(f"/api/2/policies/{name}")
    assert (read.status_code, read.json()) == (200, created["value"])
    assert read.headers["etag"] == created["headers"]["etag"]
    entry = {**OWNER, "subjects": {"nginx:user2": {"type": "t"}}}
    assert (await ask(socket, name, "modify", "/entries/other", value=entry))["status"] == 201
    seen = await ask(socket, name, "retrieve", "/entries/other/subjects")
    assert (seen["status"], seen["value"]) == (200, entry["subjects"])
    assert (await ask(socket, name, "delete", "/entries/other"))["status"] == 204
    assert (await client.get(f"/api/2/policies/{name}/entries/other")).status_code == 404
    assert (await ask(socket, name, "delete"))["status"] == 204
    assert (await client.get(f"/api/2/policies/{name}")).status_code == 404


async def test_rights_that_are_granted_here_hold_at_once(
    socket: Subscriber, client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    await ask(socket, name, "create", value=POLICY)
    await client.put(thing(name), json={"policyId": name})
    assert (await user2.get(thing(name))).status_code == 404
    path = "/entries/owner/subjects/nginx:user2"
    await ask(socket, name, "modify", path, value={"type": "t"})
    assert (await user2.get(thing(name))).status_code == 200


async def test_errors_come_on_the_policys_own_topic(socket: Subscriber) -> None:
    name = new_id()
    await socket.send(frame(name, "retrieve"))
    missing = await socket.error()
    assert missing["topic"] == f"{name.replace(':', '/', 1)}/policies/errors"
    assert (missing["status"], missing["value"]["error"]) == (404, "policies:policy.notfound")
    assert missing["headers"]["correlation-id"] == "c-retrieve"
    for number, (action, path, code) in enumerate(
        (
            ("modify", "/imports", "protocoladapter:unknown.topicpath"),
            ("merge", "/", "protocoladapter:unknown.topicpath"),
            ("create", "/", "json.field.missing"),
        ),
        2,
    ):
        fields: Json = {} if action == "create" else {"value": {}}
        await socket.send(frame(name, action, path, **fields))
        refused = await socket.error(number)
        assert (refused["value"]["error"], refused["topic"]) == (code, missing["topic"])


async def test_commands_are_carried_out_and_answered_in_their_order(socket: Subscriber) -> None:
    name = new_id()
    await ask(socket, name, "create", value=POLICY)
    before = len(socket.events)
    for number in range(50):
        value = {"type": str(number)}
        path = "/entries/owner/subjects/a:b"
        headers = {"correlation-id": str(number)}
        await socket.send(frame(name, "modify", path, value=value, headers=headers))
    await socket.send(frame(name, "retrieve", "/entries/owner/subjects/a:b"))
    last = await socket.event(-1, before + 51)
    assert last["value"] == {"type": "49"}
    answers = [event["headers"]["correlation-id"] for event in socket.events[before:-1]]
    assert answers == [str(number) for number in range(50)]


async def test_nothing_comes_if_no_response_is_wanted(socket: Subscriber) -> None:
    name = new_id()
    quiet = {"response-required": False}
    await socket.send(frame(name, "create", value=POLICY, headers=quiet))
    await socket.send(frame(name, "create", value=POLICY, headers=quiet))
    assert (await ask(socket, name, "retrieve"))["status"] == 200
    assert socket.errors == []
    assert len(socket.events) == 1


async def test_announcements_are_only_for_who_asks_for_them(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    announcement = {"whenDeleted": True}
    guest = {"type": "t", "announcement": announcement}
    policy = {"entries": {"owner": OWNER, "guest": {**OWNER, "subjects": {"nginx:user2": guest}}}}
    start = "START-SEND-POLICY-ANNOUNCEMENTS?namespaces="
    namespace = name.partition(":")[0]
    async with (
        Subscriber.open(gateway, user="user2", start=start + namespace) as told,
        Subscriber.open(gateway, user="user2", start=start + "some.other") as elsewhere,
        Subscriber.open(gateway, user="user2") as events,
        Subscriber.open(gateway, user="user2", start=start) as stopped,
    ):
        await stopped.command("STOP-SEND-POLICY-ANNOUNCEMENTS")
        assert (await client.put(f"/api/2/policies/{name}", json=policy)).status_code == 201
        assert (await client.put(f"/api/2/policies/{name}", json=POLICY)).status_code == 204
        event = await told.event()
        assert (
            event["topic"] == f"{name.replace(':', '/', 1)}/policies/announcements/subjectDeletion"
        )
        assert event["value"]["subjectIds"] == ["nginx:user2"]
        assert "requested-acks" not in event["headers"]
        for other in (elsewhere, events, stopped):
            await other.nothing_came()
            assert other.events == []


async def test_announcements_leave_room_for_requests(store: RedisServer, tmp_path: Path) -> None:
    """Everybody can make a policy that asks for more acks than requests may wait."""
    asks = {"whenDeleted": True, "requestedAcks": {"labels": [new_label()]}}
    many = {f"test:{number}": {"type": "t", "announcement": asks} for number in range(100)}
    entries = {"owner": OWNER, "many": {"subjects": many, "resources": {}}}
    gateway = Gateway(tmp_path, redis_url=store.url, max_pending="50", prefix=uuid.uuid4().hex)
    policy_id = new_id()
    with running(gateway):
        async with http(gateway) as client:
            path = f"/api/2/policies/{policy_id}"
            assert (await client.put(path, json={"entries": entries})).status_code == 201
            assert (await client.delete(path)).status_code == 204
            await wait_for(lambda: gateway.events("policy.due"), 10, "announcements")
            answer = await client.put(thing(new_id()), json={})
            assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("group", ["policies", "things/twin"])
async def test_an_announcement_comes_until_it_is_acknowledged(
    gateway: Gateway, store: RedisServer, client: httpx.AsyncClient, group: str
) -> None:
    """On the topic of the policy; on that of a thing too, for clients that know only those."""
    name, label = new_id(), new_label()
    wanted = {"labels": [label], "timeout": "20s"}
    guest = {"type": "t", "announcement": {"whenDeleted": True, "requestedAcks": wanted}}
    policy = {"entries": {"owner": OWNER, "guest": {**OWNER, "subjects": {"nginx:user2": guest}}}}
    start = "START-SEND-POLICY-ANNOUNCEMENTS"
    async with Subscriber.open(gateway, label, user="user2", start=start) as told:
        await client.put(f"/api/2/policies/{name}", json=policy)
        await client.put(f"/api/2/policies/{name}", json=POLICY)
        ids = set()
        for count, status in ((1, 503), (2, 204)):
            event = await told.event(count - 1, count)
            assert event["headers"]["requested-acks"] == [label]
            assert event["value"]["subjectIds"] == ["nginx:user2"]
            topic = f"{name.replace(':', '/', 1)}/{group}/acks/{label}"
            headers = {"correlation-id": event["headers"]["correlation-id"]}
            ids.add(headers["correlation-id"])
            await told.send({"topic": topic, "headers": headers, "path": "/", "status": status})
        await wait_for(lambda: not is_due(store, name), 10, "the end of it")
        assert told.errors == []
        assert (len(told.events), len(ids)) == (2, 2)


def is_due(store: RedisServer, name: str) -> bool:
    """Whether anything is still to be done about a policy."""
    key = due_key("service", shard_of(name, DEFAULT_SHARDS))
    with redis.Redis.from_url(store.url) as connection:
        return connection.zscore(key, name) is not None
