"""The vectors of http-route and http-body that need a server, by their ids."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.gateways import Gateway, Json, Subscriber, new_id, thing
from tests.vectors import load

JSON = "application/json"
MERGE = "application/merge-patch+json"


def to_the_gateway(area: str) -> list[Any]:
    """The vectors of ``area`` whose input is a request line."""
    return [p for p in load(area) if "request" in p.values[0]]


def read_request(text: str, name: str) -> tuple[str, httpx.URL, bytes, str]:
    """(method, path with query, body, content type) of a vector's request."""
    line, _, rest = text.partition(" body ")
    line, _, content_type = line.partition(" content-type ")
    method, _, target = line.partition(" ")
    target = re.sub(r"\{(?:id|thingId)\}", name, target).replace(
        "<id of 100 UUIDs>", "a:" + "-".join(["0a1b2c3d-0000-4000-8000-000000000000"] * 100)
    )
    body = rest.encode()
    if method in ("PUT", "PATCH", "POST") and not body:
        body = b"{}"
    return method, httpx.URL("http://gateway", raw_path=target.encode()), body, content_type or JSON


@pytest.mark.parametrize(("given", "expected"), to_the_gateway("http-route"))
async def test_route(
    client: httpx.AsyncClient, gateway: Gateway, given: Json, expected: Json
) -> None:
    name = new_id()
    # Their back end is a dummy that answers 200 to everything; here the parts have to exist.
    made = await client.put(thing(name), json={"attributes": {}, "features": {"f": {}}})
    assert made.status_code == 201
    method, url, body, content_type = read_request(given["request"], name)
    answers: list[Json] = []

    def respond(message: Json) -> Json:
        answers.append(message)
        return {"status": given.get("responder", 200)}

    async with Subscriber.open(gateway, start="START-SEND-MESSAGES", respond=respond):
        answer = await client.request(
            method,
            httpx.URL(client.base_url, raw_path=url.raw_path),
            content=body,
            headers={"content-type": content_type},
        )
    wanted = expected.get("status")
    if "command" in expected:
        # Taken as that command: what becomes of it depends on the thing.
        assert answer.status_code in (201, 204, 400), answer.text
        assert "json.invalid" not in answer.text
    elif wanted == 200 and "merge-patch" in content_type:
        assert answer.status_code == 204
    else:
        assert answer.status_code == wanted, answer.text
    problem = answer.json() if answer.status_code >= 400 else {}
    for part in ("error", "message", "description"):
        if part in expected:
            assert problem[part] == expected[part]
    if "subject" in expected:
        assert answers[0]["headers"]["ditto-message-subject"] == expected["subject"]


BODIES = {p.id: p.values for p in load("http-body")}


async def live_put(
    client: httpx.AsyncClient, gateway: Gateway, response: Json, **parameters: str
) -> tuple[httpx.Response, list[Json]]:
    """PUT an attribute on the live channel; a subscriber answers with ``response``'s fields."""
    name = new_id()
    await client.put(thing(name), json={})

    def respond(command: Json) -> Json:
        return response

    async with Subscriber.open(
        gateway, start="START-SEND-LIVE-COMMANDS", respond=respond
    ) as subscriber:
        answer = await client.put(
            thing(name, "/attributes/a"), json=1, params={"channel": "live", **parameters}
        )
        await subscriber.event()
        return answer, subscriber.events


async def test_hbd_002_a_live_response_is_the_answer(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    expected = BODIES["HBD-002"][1]
    answer, _ = await live_put(client, gateway, {"status": 204})
    assert answer.status_code == expected["status"]
    for name, value in expected["headers"].items():
        assert answer.headers[name] == value


async def test_hbd_004_a_live_command_without_response(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    expected = BODIES["HBD-004"][1]
    answer, commands = await live_put(
        client, gateway, {"status": 204}, **{"response-required": "false"}
    )
    assert answer.status_code == expected["status"]
    forwarded = commands[0]["headers"].get("requested-acks", [])
    assert forwarded == expected["forwarded requested-acks"]


async def test_hbd_006_a_responders_status_and_payload(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    given, expected = BODIES["HBD-006"]
    name = new_id()
    await client.put(thing(name), json={})

    def respond(message: Json) -> Json:
        return {
            "status": given["response"]["status"],
            "value": given["response"]["payload"].strip('"'),
            "headers": {"content-type": given["response"]["content-type"]},
        }

    async with Subscriber.open(gateway, start="START-SEND-MESSAGES", respond=respond):
        answer = await client.post(thing(name, "/inbox/messages/sayPing"), content=b"")
    assert answer.status_code == expected["status"]
    assert answer.headers["content-type"] == expected["content-type"]
    assert answer.text == expected["body"]


@pytest.mark.parametrize(
    ("vector", "response"),
    [
        ("HBD-016", {"status": 200, "topic": "{topic}/commands/retrieve"}),
        ("HBD-017", {"status": 204, "topic": "org.example/other/things/live/commands/modify"}),
    ],
)
async def test_hbd_016_017_a_response_that_does_not_fit_is_none(
    client: httpx.AsyncClient, gateway: Gateway, vector: str, response: Json
) -> None:
    expected = BODIES[vector][1]
    name = new_id()
    await client.put(thing(name), json={})

    def respond(command: Json) -> Json:
        prefix = command["topic"].rpartition("/commands/")[0]
        return {**response, "topic": response["topic"].format(topic=prefix)}

    async with Subscriber.open(gateway, start="START-SEND-LIVE-COMMANDS", respond=respond):
        answer = await client.put(
            thing(name, "/attributes/a"), json=1, params={"channel": "live", "timeout": "500ms"}
        )
    assert answer.status_code == expected["status"]
    assert "invalid response was received" in answer.json()["description"]
