"""Proxies that say who sends a request: only trusted ones, and only if they may at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.gateways import (
    Gateway,
    RawHttp,
    Subscriber,
    check_error,
    http,
    new_id,
    new_label,
    put_request,
    running,
    thing,
    ws_connect,
)
from tests.servers import RedisServer

HEADER = "x-ditto-pre-authenticated"


def as_subjects(*subjects: str) -> dict[str, str]:
    return {HEADER: ",".join(subjects)}


def proxied(store: RedisServer, factory: pytest.TempPathFactory, **settings: Any) -> Gateway:
    return Gateway(factory.mktemp("proxied"), redis_url=store.url, prefix="service", **settings)


@pytest.fixture(scope="module")
def behind(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that takes the header of proxies on this machine."""
    one = proxied(
        store, tmp_path_factory, pre_authentication="header", operator_subjects="nginx:chief"
    )
    with running(one):
        yield one


@pytest.fixture(scope="module")
def querying(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The same with the query parameter."""
    one = proxied(store, tmp_path_factory, pre_authentication="query")
    with running(one):
        yield one


@pytest.fixture(scope="module")
def elsewhere(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose proxies are other machines."""
    one = proxied(
        store,
        tmp_path_factory,
        pre_authentication="query",
        trusted_proxies="10.0.0.0/8,2001:db8::/32",
    )
    with running(one):
        yield one


# ------------------------------------------------------------------------------ trusted


async def test_the_first_subject_is_the_senders_own(behind: Gateway) -> None:
    name = new_id()
    subjects = "proxy:zoë, proxy:staff,,proxy:zoë".encode()
    async with http(behind, None) as client:
        client.headers = httpx.Headers([(HEADER.encode(), subjects)])
        for status in (201, 204, 204):
            answer = await client.put(thing(name), json={"attributes": {"a": 1}})
            assert answer.status_code == status
        who = (await client.get("/api/2/whoami")).json()
        assert who == {"defaultSubject": "proxy:zoë", "subjects": ["proxy:zoë", "proxy:staff"]}
        read = (await client.get(thing(name), params={"fields": "_policy"})).json()
        (entry,) = read["_policy"]["entries"].values()
        assert list(entry["subjects"]) == ["proxy:zoë"]


async def test_the_placeholder_of_the_subject_is_the_first_one(behind: Gateway) -> None:
    policy = {
        "entries": {
            "owner": {
                "subjects": {"{{ request:subjectId }}": {"type": "proxy"}},
                "resources": {
                    f"{kind}:/": {"grant": ["READ", "WRITE"], "revoke": []}
                    for kind in ("thing", "policy", "message")
                },
            }
        }
    }
    name = new_id()
    async with http(behind, None) as client:
        client.headers.update(as_subjects("proxy:ann", "proxy:staff"))
        answer = await client.put(thing(name), json={"_policy": policy})
        assert answer.status_code == 201, answer.text
        read = (await client.get(thing(name), params={"fields": "_policy"})).json()
        assert list(read["_policy"]["entries"]["owner"]["subjects"]) == ["proxy:ann"]
        other = as_subjects("proxy:staff")
        check_error(await client.get(thing(name), headers=other), 404, "things:thing.notfound")


async def test_a_proxys_subject_may_be_that_of_a_user(behind: Gateway) -> None:
    name = new_id()
    async with http(behind) as ditto, http(behind, None) as client:
        assert (await ditto.put(thing(name), json={})).status_code == 201
        assert (
            await client.get(thing(name), headers=as_subjects("nginx:ditto"))
        ).status_code == 200


async def test_what_the_proxy_says_counts_more_than_credentials(behind: Gateway) -> None:
    async with http(behind) as ditto:
        who = (await ditto.get("/api/2/whoami", headers=as_subjects("a:b"))).json()
        assert who["subjects"] == ["a:b"]
        assert (await ditto.get("/api/2/whoami")).json()["subjects"] == ["nginx:ditto"]


async def test_requests_of_several_senders_on_one_connection(behind: Gateway) -> None:
    name = new_id()
    async with RawHttp.open(behind) as connection:
        for subject, status in (("p:a", 201), ("p:a", 204), ("p:b", 403), ("p:a", 204)):
            request = put_request(name, b"{}", f"{HEADER}: {subject}")
            await connection.send(request)
            assert (await connection.answer())[0] == status


@pytest.mark.parametrize("text", ["", ",", ", ,", "a:b\tc", "a:b,c:\td", "nginx:", "a:b, nginx:"])
async def test_a_header_without_a_usable_subject(behind: Gateway, text: str) -> None:
    async with http(behind) as ditto:
        answer = await ditto.put(thing(new_id()), json={}, headers={HEADER: text})
        check_error(answer, 401, "gateway:authentication.failed")
        assert answer.headers["www-authenticate"].startswith("Basic ")


async def test_too_many_subjects(behind: Gateway) -> None:
    async with http(behind, None) as client:
        for count, status in ((100, 200), (101, 431)):
            headers = as_subjects(*(f"a:{number}" for number in range(count)))
            assert (await client.get("/api/2/whoami", headers=headers)).status_code == status


async def test_the_header_twice(behind: Gateway) -> None:
    async with http(behind, None) as client:
        answer = await client.get("/api/2/whoami", headers=[(HEADER, "a:b"), (HEADER, "a:c")])
        check_error(answer, 400, "gateway:duplicate.header.field")


async def test_operators_by_proxy(behind: Gateway) -> None:
    async with http(behind, None) as client:
        for subject, status in (("nginx:chief", 200), ("nginx:devops", 403)):
            answer = await client.get("/metrics", headers=as_subjects(subject))
            assert answer.status_code == status


async def test_a_websocket_by_proxy(behind: Gateway) -> None:
    name, label = new_id(), new_label()
    path = f"/ws/2?declared-acks={label}"
    async with (
        http(behind, None) as client,
        ws_connect(behind, path, user=None, headers=as_subjects("p:ws")) as connection,
    ):
        await connection.send("START-SEND-EVENTS")
        assert await asyncio.wait_for(connection.recv(), 10) == "START-SEND-EVENTS:ACK"
        answer = await client.put(thing(name), json={}, headers=as_subjects("p:ws"))
        assert answer.status_code == 201
        event = json.loads(await asyncio.wait_for(connection.recv(), 10))
        assert event["headers"]["ditto-originator"] == "p:ws"
        assert HEADER not in json.dumps(event)


# ------------------------------------------------------------------------------ the query parameter


async def test_the_query_parameter_needs_its_own_switch(behind: Gateway, querying: Gateway) -> None:
    params = as_subjects("p:query", "p:two")
    async with http(behind, None) as client:
        answer = await client.get("/api/2/whoami", params=params)
        check_error(answer, 401, "gateway:authentication.failed")
    async with http(querying, None) as client:
        who = (await client.get("/api/2/whoami", params=params)).json()
        assert who["subjects"] == ["p:query", "p:two"]
        for _ in range(2):
            answer = await client.put(thing(new_id()), json={}, params=params)
            assert answer.headers["ditto-originator"] == "p:query"


async def test_header_and_query_parameter_must_agree(querying: Gateway) -> None:
    async with http(querying, None) as client:
        client.headers.update(as_subjects("p:a"))
        answer = await client.get("/api/2/whoami", params=as_subjects("p:a"))
        assert answer.status_code == 200
        answer = await client.get("/api/2/whoami", params=as_subjects("p:admin"))
        check_error(answer, 400, "gateway:duplicate.header.field")
        del client.headers[HEADER]
        answer = await client.get(f"/api/2/whoami?{HEADER}=p:a&{HEADER}=p:b")
        check_error(answer, 400, "gateway:duplicate.header.field")


# ------------------------------------------------------------------------------ not trusted


async def test_the_header_of_somebody_else_is_refused(elsewhere: Gateway) -> None:
    async with http(elsewhere) as ditto:
        assert (await ditto.put(thing(new_id()), json={})).status_code == 201
        for given in ({"headers": as_subjects("p:a")}, {"params": as_subjects("p:a")}):
            answer: httpx.Response = await ditto.put(thing(new_id()), json={}, **given)  # type: ignore[arg-type]  # a mapping of either
            body = check_error(answer, 401, "gateway:authentication.failed")
            assert "trusted proxies only" in body["description"]
            assert answer.headers["www-authenticate"].startswith("Basic ")
    with pytest.raises(InvalidStatus) as refused:
        async with ws_connect(elsewhere, headers=as_subjects("p:a")):
            pass
    assert refused.value.response.status_code == 401


async def test_forwarded_addresses_are_not_believed(elsewhere: Gateway) -> None:
    async with http(elsewhere, None) as client:
        client.headers.update({"x-forwarded-for": "10.1.2.3", "x-real-ip": "10.1.2.3"})
        client.headers["forwarded"] = "for=10.1.2.3"
        answer = await client.get("/api/2/whoami", headers=as_subjects("p:a"))
        check_error(answer, 401, "gateway:authentication.failed")


async def test_without_the_switch_it_is_ignored(gateway: Gateway) -> None:
    name, label = new_id(), new_label()
    async with http(gateway) as ditto, http(gateway, None) as nobody:
        async with Subscriber.open(gateway, label) as subscriber:
            given = {"headers": as_subjects("nginx:devops"), "params": as_subjects("nginx:devops")}
            answer = await ditto.put(thing(name), json={}, headers=given["headers"])
            assert answer.headers["ditto-originator"] == "nginx:ditto"
            answer = await ditto.put(thing(name), json={}, params=given["params"])
            assert answer.headers["ditto-originator"] == "nginx:ditto"
            await subscriber.event(count=2)
            assert "devops" not in json.dumps(subscriber.events)
        answer = await nobody.get("/api/2/whoami", headers=as_subjects("nginx:ditto"))
        check_error(answer, 401, "gateway:authentication.failed")
