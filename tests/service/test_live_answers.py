"""What of a subscriber's words becomes an HTTP answer: payloads, headers, the twin's fallback."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateways import Gateway, Subscriber, check_error, new_id, new_label, thing
from tests.streams import location, reached

START = "START-SEND-LIVE-COMMANDS"
LIVE = {"channel": "live"}
OURS_TO_SAY = {
    "location": "http://elsewhere.test/", "www-authenticate": "Basic", "retry-after": "9",
    "allow": "POST", "preference-applied": "respond-async", "ditto-originator": "nginx:forged",
    "etag": '"forged"', "entity-revision": "77",
}  # fmt: skip


@pytest.fixture
async def shared(client: httpx.AsyncClient) -> str:
    """A thing of which user2 may read the attributes, but not ``secret`` and ``deep/secret``."""
    revoked = {"grant": [], "revoke": ["READ"]}
    resources = {
        "ditto": {f"{kind}:/": {"grant": ["READ", "WRITE"], "revoke": []}
                  for kind in ("thing", "policy", "message")},
        "user2": {
            "thing:/attributes": {"grant": ["READ"], "revoke": []},
            "thing:/attributes/secret": revoked,
            "thing:/attributes/deep/secret": revoked,
        },
    }  # fmt: skip
    entries = {
        user: {"subjects": {f"nginx:{user}": {"type": "t"}}, "resources": rules}
        for user, rules in resources.items()
    }
    thing_id = new_id()
    body = {"_policy": {"entries": entries}, "attributes": {"on": False, "secret": 1}}
    assert (await client.put(thing(thing_id), json=body)).status_code == 201
    return thing_id


def device(status: int, value: Any = None, **headers: Any) -> Any:
    fields = {"status": status, "headers": headers}
    return lambda _: fields if value is None else {**fields, "value": value}


# --- payloads


@pytest.mark.parametrize("status", [200, 226, 300, 404, 408, 500])
async def test_every_answer_to_a_retrieve_is_cut(
    gateway: Gateway, user2: httpx.AsyncClient, shared: str, status: int
) -> None:
    label = new_label()
    whole = {"on": True, "secret": 2, "deep": {"secret": 3, "open": 4}}
    cut = {"on": True, "deep": {"open": 4}}
    address = thing(shared, "/attributes")
    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200}, respond=device(status, whole), start=START
    ):
        alone = await user2.get(address, params=LIVE)
        both = await user2.get(address, params={**LIVE, "requested-acks": label})
    assert (alone.status_code, alone.json()) == (status, cut)
    assert both.json()["live-response"]["payload"] == cut


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        ("secret", {}),
        (["secret"], {}),
        ("secret", {"content-type": "text/plain"}),
        ("c2VjcmV0", {"content-type": "application/octet-stream"}),
        ({"secret": "secret"}, {}),
        ({"deep": ["secret"]}, {}),
        ({"deep": "secret"}, {}),
        ({"error": "x", "status": 200, "secret": "secret"}, {}),
    ],
)
@pytest.mark.parametrize("status", [200, 404])
async def test_what_cannot_be_cut_is_withheld(
    gateway: Gateway,
    client: httpx.AsyncClient,
    user2: httpx.AsyncClient,
    shared: str,
    status: int,
    value: Any,
    headers: dict[str, str],
) -> None:
    address = thing(shared, "/attributes")
    async with Subscriber.open(gateway, respond=device(status, value, **headers), start=START):
        hidden = await user2.get(address, params=LIVE)
        seen = await client.get(address, params=LIVE)
    assert hidden.status_code in (status, 404)
    assert "c2VjcmV0" not in hidden.text
    assert '"secret"' not in hidden.text
    assert hidden.content != b"secret"
    assert seen.status_code == status
    assert "secret" in seen.text


async def test_an_error_of_the_device_passes(
    gateway: Gateway, user2: httpx.AsyncClient, shared: str
) -> None:
    problem = {"status": 422, "error": "device:broken", "message": "It is broken."}

    def fail(signal: Any) -> Any:
        topic = "/".join(signal["topic"].split("/")[:4]) + "/errors"
        return {"topic": topic, "path": "/", "status": 422, "value": problem}

    async with Subscriber.open(gateway, respond=fail, start=START):
        answer = await user2.get(thing(shared, "/attributes"), params=LIVE)
    assert (answer.status_code, answer.json()) == (422, problem)


async def test_the_timeout_of_an_aggregate_passes(user2: httpx.AsyncClient, shared: str) -> None:
    params = {**LIVE, "requested-acks": new_label(), "timeout": "200ms"}
    answer = await user2.get(thing(shared, "/attributes"), params=params)
    assert answer.status_code == 424
    late = answer.json()["live-response"]["payload"]
    assert late["error"] == "acknowledgement:request.timeout"


# --- headers


async def test_headers_that_only_the_gateway_may_say(
    gateway: Gateway, client: httpx.AsyncClient, shared: str
) -> None:
    label = new_label()
    address = thing(shared, "/attributes/on")

    def ack(*_: Any) -> Any:
        return {"status": 202, "headers": {**OURS_TO_SAY, "tracestate": "a=b"}}

    async with Subscriber.open(gateway, label, ack=ack):
        alone = await client.put(address, json=1, params={"requested-acks": label})
        labels = f"{label},twin-persisted"
        both = await client.put(address, json=2, params={"requested-acks": labels})
    assert alone.status_code == 202
    assert not OURS_TO_SAY.keys() & alone.headers.keys()
    assert alone.headers["tracestate"] == "a=b"
    assert both.status_code == 200
    assert not OURS_TO_SAY.keys() & both.headers.keys()
    assert both.json()[label]["headers"]["location"] == OURS_TO_SAY["location"]
    respond = device(401, None, **OURS_TO_SAY)
    async with Subscriber.open(gateway, respond=respond, start=START):
        live = await client.get(address, params=LIVE)
    assert live.status_code == 401
    assert not OURS_TO_SAY.keys() & live.headers.keys()


async def test_what_was_created_is_where_the_request_said(
    gateway: Gateway, client: httpx.AsyncClient, shared: str
) -> None:
    label = new_label()
    path = thing(shared, "/attributes/new")
    forged = {"status": 201, "headers": OURS_TO_SAY}
    async with Subscriber.open(gateway, label, ack=lambda *_: forged):
        twin = await client.put(path, json=1, params={"requested-acks": label})
    async with Subscriber.open(gateway, respond=lambda _: forged, start=START):
        live = await client.put(path, json=1, params=LIVE)
    for answer in (twin, live):
        assert answer.status_code == 201
        assert answer.headers["location"] == f"{gateway.url}{path}"
    async with Subscriber.open(gateway, respond=lambda _: forged, start="START-SEND-MESSAGES"):
        message = await client.post(thing(shared, "/inbox/messages/ask"))
    assert message.status_code == 201
    assert "location" not in message.headers


async def test_the_outcome_of_an_accepted_request_says_no_more(
    gateway: Gateway, client: httpx.AsyncClient, shared: str
) -> None:
    label = new_label()
    path = thing(shared, "/attributes/new")
    forged = {"status": 201, "headers": OURS_TO_SAY}
    async with Subscriber.open(gateway, label, ack=lambda *_: forged):
        answer = await client.put(
            path,
            json=1,
            params={"requested-acks": label},
            headers={"prefer": "respond-async"},
        )
        body = await reached(client, location(answer), state="done")
    assert body["outcome"]["status"] == 201
    told = body["outcome"]["headers"]
    assert {name: told[name] for name in OURS_TO_SAY if name in told} == {
        "location": f"{gateway.url}{path}"
    }


# --- the twin's fallback


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_the_twin_stands_in_among_acks(
    gateway: Gateway, user2: httpx.AsyncClient, shared: str, acknowledged: bool
) -> None:
    label = new_label()
    params = {
        **LIVE, "live-channel-timeout-strategy": "use-twin", "requested-acks": label,
        "timeout": "700ms",
    }  # fmt: skip
    status = 200 if acknowledged else 408
    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200} if acknowledged else None, start=START
    ):
        answer = await user2.get(thing(shared, "/attributes/on"), params=params)
    assert answer.status_code == (200 if acknowledged else 424)
    entries = answer.json()
    assert list(entries) == [label, "live-response"]
    assert entries[label]["status"] == status
    assert entries["live-response"]["status"] == 200
    assert entries["live-response"]["payload"] is False
    assert entries["live-response"]["headers"]["etag"]
    assert answer.headers["channel"] == "twin"
    assert answer.headers["live-channel-condition-matched"] == "true"


async def test_without_the_fallback_the_wait_has_failed(
    gateway: Gateway, client: httpx.AsyncClient, shared: str
) -> None:
    label = new_label()
    params = {
        "live-channel-condition": "exists(attributes/on)", "requested-acks": label,
        "timeout": "700ms",
    }  # fmt: skip
    async with Subscriber.open(gateway, label, ack=lambda *_: {"status": 200}, start=START):
        answer = await client.get(thing(shared, "/attributes/on"), params=params)
    assert answer.status_code == 424
    assert answer.json()["live-response"]["status"] == 408
    assert answer.headers["channel"] == "live"


async def test_a_device_that_answers_408_has_answered(
    gateway: Gateway, client: httpx.AsyncClient, shared: str
) -> None:
    label = new_label()
    params = {**LIVE, "live-channel-timeout-strategy": "use-twin", "requested-acks": label}
    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200}, respond=device(408, "busy"), start=START
    ):
        answer = await client.get(thing(shared, "/attributes/on"), params=params)
    assert answer.status_code == 424
    assert answer.json()["live-response"]["payload"] == "busy"
    assert answer.headers["channel"] == "live"


async def test_errors_of_the_twin_are_the_answer(client: httpx.AsyncClient, shared: str) -> None:
    params = {**LIVE, "live-channel-timeout-strategy": "use-twin", "requested-acks": new_label()}
    answer = await client.get(thing(shared, "/attributes/gone"), params=params)
    check_error(answer, 404, "things:attribute.notfound")
