"""Messages: HTTP requests answered by WebSocket subscribers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.gateways import (
    Gateway,
    Json,
    Subscriber,
    ack_envelope,
    check_error,
    http,
    new_id,
    new_label,
    response_envelope,
    thing,
)
from tests.vectors import load

START = "START-SEND-MESSAGES"
EVERY_BYTE = bytes(range(256))


@pytest.fixture
async def name(client: httpx.AsyncClient) -> str:
    """A thing of the user ditto."""
    thing_id = new_id()
    assert (await client.put(thing(thing_id), json={})).status_code == 201
    return thing_id


def ho(signal: Json) -> Json:
    return {"status": 200, "value": "ho", "headers": {"content-type": "text/plain"}}


def inbox(thing_id: str, subject: str = "ask") -> str:
    return thing(thing_id, f"/inbox/messages/{subject}")


# --- addresses and envelopes


@pytest.mark.parametrize(
    ("path", "sent", "facts"),
    [
        ("/inbox/messages/ask", "/inbox/messages/ask", {"direction": "TO", "subject": "ask"}),
        ("/outbox/messages/ask", "/outbox/messages/ask", {"direction": "FROM", "subject": "ask"}),
        ("/inbox/messages/a/b/c", "/inbox/messages/a/b/c", {"subject": "a/b/c"}),
        ("/inbox/messages//ask", "/inbox/messages/ask", {"subject": "ask"}),
        ("/inbox/messages/a%20b", "/inbox/messages/a b", {"subject": "a b"}),
        (
            "/features/lamp/inbox/messages/ask",
            "/features/lamp/inbox/messages/ask",
            {"direction": "TO", "feature-id": "lamp"},
        ),
        (
            "/features/lamp/outbox/messages/ask",
            "/features/lamp/outbox/messages/ask",
            {"direction": "FROM", "feature-id": "lamp"},
        ),
        ("/inbox/claim", "/inbox/messages/claim", {"direction": "TO", "subject": "claim"}),
    ],
)
async def test_where_messages_go(
    gateway: Gateway,
    client: httpx.AsyncClient,
    name: str,
    path: str,
    sent: str,
    facts: dict[str, str],
) -> None:
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        answer = await client.post(
            thing(name, path), content="hi", headers={"content-type": "text/plain", "x-y": "z"}
        )
        assert (answer.status_code, answer.text) == (200, "ho")
        assert answer.headers["content-type"] == "text/plain"
        signal = await subscriber.event()
    namespace, _, local = name.partition(":")
    subject = sent.partition("/messages/")[2]
    assert signal["topic"] == f"{namespace}/{local}/things/live/messages/{subject}"
    assert (signal["path"], signal["value"]) == (sent, "hi")
    headers = signal["headers"]
    wanted = {f"ditto-message-{fact}": value for fact, value in facts.items()}
    assert wanted.items() <= headers.items()
    assert ("ditto-message-feature-id" in headers) == ("feature-id" in facts)
    assert headers["ditto-message-thing-id"] == name
    assert headers["correlation-id"] == answer.headers["correlation-id"]
    assert (headers["x-y"], headers["timeout"], headers["channel"]) == ("z", "60", "live")
    assert headers["response-required"] is True
    assert "requested-acks" not in headers
    assert headers["timestamp"].endswith("Z")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path",
    ["/inbox/messages/s", "/outbox/messages/s", "/features/f/inbox/messages/s", "/inbox/claim"],
)
async def test_messages_are_posted_only(
    client: httpx.AsyncClient, name: str, method: str, path: str
) -> None:
    for _ in range(2):  # the second PUT would take the short way
        answer = await client.request(method, thing(name, path), content=b"{}")
        check_error(answer, 405, "gateway:method.notallowed")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/inbox/messages32", 404, "gateway:resource.notfound"),
        ("/inbox/x", 404, "gateway:resource.notfound"),
        ("/outbox/claim", 404, "gateway:resource.notfound"),
        ("/features/f/inbox/claim", 404, "gateway:resource.notfound"),
        ("/features//inbox/messages/s", 404, "gateway:resource.notfound"),
        ("/inbox/messages/", 400, "messages:subject.invalid"),
        ("/inbox/messages//", 400, "messages:subject.invalid"),
        ("/inbox/messages/a%00b", 400, "messages:subject.invalid"),
    ],
)
async def test_addresses_that_are_none(
    client: httpx.AsyncClient, name: str, path: str, status: int, code: str
) -> None:
    check_error(await client.post(thing(name, path)), status, code)


async def test_a_thing_that_is_not_there(client: httpx.AsyncClient) -> None:
    check_error(await client.post(inbox(new_id())), 404, "things:thing.notfound")
    check_error(await client.post(inbox("no-id")), 400, "things:id.invalid")


# --- payloads


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", "gr\u00fc\u00df dich \u20ac".encode()),
        ("text/plain; charset=iso-8859-1", "gr\u00fc\u00df".encode("latin-1")),
        ("application/json", b'{"a":[1.5,null,{"b":"c"}]}'),
        ("application/json", b'"poooong"'),
        ("application/octet-stream", EVERY_BYTE),
        ("image/png", b"\x89PNG"),
    ],
)
async def test_payloads_come_back_as_they_went(
    gateway: Gateway, client: httpx.AsyncClient, name: str, content_type: str, body: bytes
) -> None:
    def echo(signal: Json) -> Json:
        headers = {"content-type": signal["headers"]["content-type"]}
        return {"status": 226, "value": signal["value"], "headers": headers}

    async with Subscriber.open(gateway, respond=echo, start=START):
        answer = await client.post(
            inbox(name), content=body, headers={"content-type": content_type}
        )
    assert (answer.status_code, answer.content) == (226, body)
    assert answer.headers["content-type"] == content_type


async def test_json_reaches_the_subscriber_as_it_was_written(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    body = b'{"big": 123456789012345678901234567890, "exact": 1.10}'
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        await client.post(inbox(name), content=body, headers={"content-type": "application/json"})
        signal = await subscriber.event()
    assert signal["value"] == {"big": 123456789012345678901234567890, "exact": 1.1}


async def test_without_payload(gateway: Gateway, client: httpx.AsyncClient, name: str) -> None:
    def nothing(signal: Json) -> Json:
        return {"status": 204, "value": "not to be seen"}

    async with Subscriber.open(gateway, respond=nothing, start=START) as subscriber:
        answer = await client.post(inbox(name))
        signal = await subscriber.event()
    assert (answer.status_code, answer.content) == (204, b"")
    assert "value" not in signal


@pytest.mark.parametrize(
    ("given", "status", "body"),
    [
        ({"status": 502, "value": {"a": 1}}, 200, b'{"a":1}'),
        ({"status": 404, "value": "no"}, 404, b'"no"'),
        ({"status": 200}, 200, b""),
        ({"status": 200, "value": "AAEC", "headers": {"content-type": "null"}}, 200, b"\0\1\2"),
        ({"status": 500, "value": "x", "headers": {"content-type": "text/html"}}, 500, b"x"),
    ],
)
async def test_answers_of_responders(
    gateway: Gateway, client: httpx.AsyncClient, name: str, given: Json, status: int, body: bytes
) -> None:
    async with Subscriber.open(gateway, respond=lambda _: given, start=START):
        answer = await client.post(inbox(name))
    assert (answer.status_code, answer.content) == (status, body)


async def test_limits_of_payloads(gateway: Gateway, client: httpx.AsyncClient, name: str) -> None:
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        assert (await client.post(inbox(name), content=b"x" * 256_000)).status_code == 200
        large = await client.post(inbox(name), content=b"x" * 256_001)
        check_error(large, 413, "messages:payload.toolarge")
        huge = await client.post(inbox(name), content=b"x" * 2_000_000)
        check_error(huge, 413, "request.toolarge")
        assert len(subscriber.events) == 1


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", b"{", "json.invalid"),
        ("application/json", b"[" * 200 + b"]" * 200, "json.invalid"),
        ("text/plain", EVERY_BYTE, "header.invalid"),
    ],
)
async def test_payloads_that_are_not_what_they_say(
    client: httpx.AsyncClient, name: str, content_type: str, body: bytes, code: str
) -> None:
    answer = await client.post(inbox(name), content=body, headers={"content-type": content_type})
    check_error(answer, 400, code)


# --- the three headers


@pytest.mark.parametrize(
    ("query", "shown"),
    [("42", "42"), ("5500ms", "5"), ("60s", "60"), ("60900ms", "60"), ("1m", "60")],
)
async def test_timeouts_count_in_whole_seconds(
    gateway: Gateway, client: httpx.AsyncClient, name: str, query: str, shown: str
) -> None:
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        answer = await client.post(inbox(name), params={"timeout": query})
        signal = await subscriber.event()
    assert answer.status_code == 200
    assert signal["headers"]["timeout"] == answer.headers["timeout"] == shown


@pytest.mark.parametrize(("path", "limit"), [("messages/ask", 60_000), ("claim", 600_000)])
async def test_bounds_of_timeouts(
    client: httpx.AsyncClient, name: str, path: str, limit: int
) -> None:
    address = thing(name, f"/inbox/{path}")
    answer = await client.post(address, params={"timeout": f"{limit // 1000 + 1}"})
    body = check_error(answer, 400, "timeout.invalid")
    assert body["message"] == (
        f"The timeout <{limit + 1000:,}ms> is not inside its allowed bounds <0ms - {limit:,}ms>"
    )
    check_error(await client.post(address, params={"timeout": "x"}), 400, "timeout.invalid")
    zero = await client.post(address, params={"timeout": "0", "response-required": "true"})
    check_error(zero, 400, "header.invalid")


async def test_a_claim_may_name_ten_minutes(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        answer = await client.post(thing(name, "/inbox/claim"), params={"timeout": "600"})
        assert answer.status_code == 200
        assert (await subscriber.event())["headers"]["timeout"] == "600"


async def test_nobody_answers(gateway: Gateway, client: httpx.AsyncClient, name: str) -> None:
    async with Subscriber.open(gateway, start=START) as subscriber:
        answer = await client.post(inbox(name), params={"timeout": "300ms"})
        await subscriber.event()
    body = check_error(answer, 408, "command.timeout")
    assert body["message"] == "The Command reached the specified timeout of 300ms."
    assert body["description"] == "Try increasing the command timeout."


@pytest.mark.parametrize(
    "query", [{"response-required": "false"}, {"timeout": "0"},
              {"response-required": "false", "requested-acks": "live-response"}]
)  # fmt: skip
async def test_sent_without_waiting(
    gateway: Gateway, client: httpx.AsyncClient, name: str, query: dict[str, str]
) -> None:
    async with Subscriber.open(gateway, start=START) as subscriber:
        answer = await client.post(inbox(name), params=query, content=b"hi")
        assert (answer.status_code, answer.content) == (202, b"")
        assert "correlation-id" not in answer.headers
        signal = await subscriber.event()
    assert signal["headers"]["response-required"] is False


async def test_errors_surface_though_nobody_waits(
    client: httpx.AsyncClient, user2: httpx.AsyncClient, name: str
) -> None:
    params = {"response-required": "false"}
    check_error(await client.post(inbox(new_id()), params=params), 404, "things:thing.notfound")
    check_error(await user2.post(inbox(name), params=params), 403, "messages:send.notallowed")


# --- permissions


def policy(**entries: dict[str, tuple[list[str], list[str]]]) -> Json:
    """A policy with the users' entries; ditto may do everything with things and policies."""
    resources: dict[str, dict[str, Any]] = {
        "ditto": {path: (["READ", "WRITE"], []) for path in ("thing:/", "policy:/")}
    }
    for user, rules in entries.items():
        resources.setdefault(user, {}).update(rules)
    return {
        "entries": {
            user: {
                "subjects": {f"nginx:{user}": {"type": "t"}},
                "resources": {p: {"grant": g, "revoke": r} for p, (g, r) in rules.items()},
            }
            for user, rules in resources.items()
        }
    }


async def test_who_may_send_and_who_receives(
    gateway: Gateway, client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = new_id()
    rules = policy(
        ditto={"message:/inbox/messages/ask": (["READ", "WRITE"], [])},
        user2={
            "message:/": (["READ"], []),
            "message:/inbox": ([], ["READ"]),
            "message:/outbox/messages/tell": (["WRITE"], []),
        },
    )
    made = await client.put(thing(name), json={"_policy": rules})
    assert made.status_code == 201, made.text
    async with (
        Subscriber.open(gateway, respond=ho, start=START) as ditto,
        Subscriber.open(gateway, user="user2", start=START) as two,
    ):
        assert (await client.post(inbox(name))).status_code == 200
        await ditto.event()
        await two.nothing_came()
        refused = await client.post(inbox(name, "other"))
        body = check_error(refused, 403, "messages:send.notallowed")
        assert "message:" not in body["message"]
        sent = await user2.post(
            thing(name, "/outbox/messages/tell"), params={"response-required": "false"}
        )
        assert sent.status_code == 202
        assert (await two.event())["path"] == "/outbox/messages/tell"
        check_error(
            await user2.post(thing(name, "/features/f/outbox/messages/tell")),
            403,
            "messages:send.notallowed",
        )
        assert len(ditto.events) == 1


async def test_a_claim_needs_no_permission(
    gateway: Gateway, user2: httpx.AsyncClient, name: str
) -> None:
    check_error(await user2.post(inbox(name)), 403, "messages:send.notallowed")
    check_error(await user2.post(inbox(name, "claim/x")), 403, "messages:send.notallowed")
    async with Subscriber.open(gateway, respond=ho, start=START):
        answer = await user2.post(thing(name, "/inbox/claim"))
    assert (answer.status_code, answer.text) == (200, "ho")


async def test_conditions_look_at_the_twin(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    await client.put(thing(name, "/attributes/on"), json=True)
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        refused = await client.post(inbox(name), params={"condition": "eq(attributes/on,false)"})
        check_error(refused, 412, "things:condition.failed")
        passed = await client.post(inbox(name), params={"condition": "eq(attributes/on,true)"})
        assert passed.status_code == 200
        bad = await client.post(inbox(name), params={"condition": "eq("})
        check_error(bad, 400, "rql.expression.invalid")
        assert len(subscriber.events) == 1


# --- responses and acks


async def test_the_first_valid_response_wins_and_others_are_ignored(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    async with (
        Subscriber.open(gateway, start=START) as one,
        Subscriber.open(gateway, start=START) as two,
        Subscriber.open(gateway, start=None) as stranger,
    ):
        asked = asyncio.create_task(client.post(inbox(name)))
        signal = await one.event()
        await two.event()
        await stranger.send(response_envelope(signal, status=200, value="stranger"))
        await stranger.nothing_came()
        other = {**signal, "topic": "ns/other/things/live/messages/ask"}
        await one.send(response_envelope(other, status=200, value="other thing"))
        feature = {**signal, "path": "/features/f/inbox/messages/ask"}
        await one.send(response_envelope(feature, status=200, value="other feature"))
        await one.nothing_came()
        assert not asked.done()
        await two.send(response_envelope(signal, status=201, value="two"))
        answer = await asked
        await one.send(response_envelope(signal, status=200, value="one"))
        await one.nothing_came()
    assert (answer.status_code, answer.json()) == (201, "two")


async def test_a_timeout_tells_of_an_invalid_response(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    def wrong(signal: Json) -> Json:
        return {"status": 200, "topic": "ns/other/things/live/messages/ask"}

    async with Subscriber.open(gateway, respond=wrong, start=START):
        answer = await client.post(inbox(name), params={"timeout": "500ms"})
    assert check_error(answer, 408, "command.timeout")["description"] == (
        "Received no appropriate live response within the specified timeout. An invalid response "
        "was received, though: Entity ID of live response <ns:other> differs from entity ID of "
        f"command <{name}>."
    )


async def test_acks_and_the_response_make_an_aggregate(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    label, weak, silent = new_label(), new_label(), new_label()
    labels = f"{label},{weak},{silent}"

    def ack(signal: Json, which: str) -> Json:
        return {"status": 202, "value": {"seen": signal["value"]}}

    async with (
        Subscriber.open(gateway, label, ack=ack, respond=ho, start=START) as subscriber,
        Subscriber.open(gateway, weak, start="START-SEND-EVENTS") as elsewhere,
    ):
        answer = await client.post(
            inbox(name),
            content="hi",
            headers={"content-type": "text/plain"},
            params={"requested-acks": labels, "timeout": "700ms"},
        )
        signal = await subscriber.event()
        await elsewhere.nothing_came()
    assert signal["headers"]["requested-acks"] == [label]
    assert answer.status_code == 424
    body = answer.json()
    assert list(body) == [label, weak, silent, "live-response"]
    assert (body[label]["status"], body[label]["payload"]) == (202, {"seen": "hi"})
    assert (body[weak]["status"], body[weak]["headers"]["ditto-weak-ack"]) == (200, True)
    assert body[silent]["payload"]["error"] == "acknowledgement:request.timeout"
    assert (body["live-response"]["status"], body["live-response"]["payload"]) == (200, "ho")
    assert answer.headers["content-type"] == "application/json"


async def test_an_ack_alone_is_awaited_without_a_response(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    label = new_label()
    async with Subscriber.open(gateway, label, start=START) as subscriber:
        params = {"requested-acks": label, "response-required": "false"}
        asked = asyncio.create_task(client.post(inbox(name), params=params))
        signal = await subscriber.event()
        assert not asked.done()
        await subscriber.send(ack_envelope(signal, label, status=200))
        assert (await asked).status_code == 202
        refusing = asyncio.create_task(client.post(inbox(name), params=params))
        signal = await subscriber.event(count=2)
        await subscriber.send(ack_envelope(signal, label, status=400, value="no"))
        refused = await refusing
    assert (refused.status_code, refused.content) == (400, b"")


async def test_a_device_answers_with_an_error(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    label = new_label()
    problem = {"status": 422, "error": "device:broken", "message": "It is broken."}

    def fail(signal: Json) -> Json:
        topic = "/".join(signal["topic"].split("/")[:4]) + "/errors"
        return {"topic": topic, "path": "/", "status": 422, "value": problem}

    async with Subscriber.open(
        gateway, label, ack=lambda *_: {"status": 200}, respond=fail, start=START
    ):
        alone = await client.post(inbox(name))
        both = await client.post(inbox(name), params={"requested-acks": label})
    assert (alone.status_code, alone.json()) == (422, problem)
    assert both.status_code == 424
    assert both.json()["live-response"]["status"] == 422
    assert "payload" not in both.json()["live-response"]


async def test_an_open_correlation_id_gets_a_suffix(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    headers = {"correlation-id": f"open-{name}"}
    async with Subscriber.open(gateway, start=START) as subscriber:
        first = asyncio.create_task(client.post(inbox(name), headers=headers))
        one = await subscriber.event(0)
        second = asyncio.create_task(client.post(inbox(name), headers=headers))
        two = await subscriber.event(1, count=2)
        assert one["headers"]["correlation-id"] == f"open-{name}"
        assert two["headers"]["correlation-id"].startswith(f"open-{name}_")
        await subscriber.send(response_envelope(two, status=200, value=2))
        assert (await second).json() == 2
        await subscriber.send(response_envelope(one, status=200, value=1))
        assert (await first).json() == 1
    assert first.result().headers["correlation-id"] == f"open-{name}"
    assert second.result().headers["correlation-id"] == f"open-{name}"


# --- subscriptions


async def test_each_kind_is_subscribed_by_itself(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    now = {"response-required": "false"}
    async with (
        Subscriber.open(gateway) as events,
        Subscriber.open(gateway, start=START) as messages,
        Subscriber.open(gateway, start=f"{START}?namespaces=com.other") as elsewhere,
    ):
        await client.post(inbox(name), params=now)
        await client.put(thing(name, "/attributes/a"), json=1)
        assert "/twin/events/" in (await events.event())["topic"]
        assert "/live/messages/" in (await messages.event())["topic"]
        await elsewhere.nothing_came()
        await messages.command("STOP-SEND-MESSAGES")
        await messages.command("START-SEND-EVENTS")
        await client.post(inbox(name), params=now)
        await client.put(thing(name, "/attributes/a"), json=2)
        assert (await events.event(count=2))["value"] == 2
        assert (await messages.event(count=2))["value"] == 2


async def test_frames_that_are_no_responses(gateway: Gateway, name: str) -> None:
    topic = f"{name.replace(':', '/')}/things/live/messages/ask"
    path = "/inbox/messages/ask"
    async with Subscriber.open(gateway, start=START) as subscriber:
        await subscriber.send({"topic": topic, "headers": {}, "path": path, "status": "200"})
        assert (await subscriber.error(1))["value"]["error"] == "protocoladapter:unknown.topicpath"
        # Nobody has asked: silently dropped, whatever it looks like.
        await subscriber.send({"topic": topic, "headers": 5, "path": 7, "status": 200})
        assert (await subscriber.error(2))["value"]["error"] == "json.format.invalid"
        await subscriber.send({"topic": topic, "path": 7, "status": 200})
        await subscriber.nothing_came()


async def test_a_twin_is_not_changed_by_messages(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    before = (await client.get(thing(name))).headers["etag"]
    async with Subscriber.open(gateway, respond=ho, start=START):
        assert (await client.post(inbox(name), content=b"x")).status_code == 200
    assert (await client.get(thing(name))).headers["etag"] == before


async def test_many_at_once_each_get_their_own_answer(
    gateway: Gateway, sibling: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    def echo(signal: Json) -> Json:
        return {"status": 200, "value": signal["value"]}

    async with Subscriber.open(sibling, respond=echo, start=START), http(sibling) as there:

        async def one(number: int) -> None:
            sender = client if number % 2 else there
            answer = await sender.post(inbox(name, f"n{number}"), json={"number": number})
            assert json.loads(answer.content) == {"number": number}

        await asyncio.gather(*(one(number) for number in range(100)))


async def test_a_sender_that_does_not_wait_finds_the_response_later(
    gateway: Gateway, client: httpx.AsyncClient, name: str
) -> None:
    def both(signal: Json) -> Json:
        return {"status": 226, "value": signal["value"], "headers": {"content-type": kind}}

    async with Subscriber.open(gateway, respond=both, start=START) as subscriber:
        for count, kind in enumerate(("text/plain", "application/octet-stream"), 1):
            answer = await client.post(
                inbox(name),
                content="hi",
                headers={"content-type": kind, "prefer": "respond-async"},
            )
            assert answer.status_code == 202
            await subscriber.event(count=count)
            found: Json = {"state": "pending"}
            async with asyncio.timeout(10):
                while found["state"] == "pending":
                    found = (await client.get(answer.headers["location"])).json()
            assert found["outcome"]["status"] == 226
            assert found["acks"]["live-response"]["payload"] == ("hi", "aGk=")[count - 1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [p for p in load("http-route") if "box/" in p.values[0]["request"]],
)
async def test_routes_of_the_vectors(
    gateway: Gateway, client: httpx.AsyncClient, name: str, given: Json, expected: Json
) -> None:
    method, path = given["request"].split(" ")
    async with Subscriber.open(gateway, respond=ho, start=START) as subscriber:
        answer = await client.request(method, path.replace("{id}", name))
        assert answer.status_code == expected["status"], answer.text
        if "subject" in expected:
            signal = await subscriber.event()
            assert signal["headers"]["ditto-message-subject"] == expected["subject"]
