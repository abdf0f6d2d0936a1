"""Messages whose subject or feature has a slash or a tilde meet the rules made for them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateways import Gateway, Subscriber, check_error, new_id, thing

START = "START-SEND-MESSAGES"
NOW = {"response-required": "false"}
ALL = {"grant": ["READ", "WRITE"], "revoke": []}
NONE = {"grant": [], "revoke": ["READ", "WRITE"]}


async def made(client: httpx.AsyncClient, **rules: dict[str, Any]) -> str:
    """A thing of ditto's, who may send all messages; user2 has ``rules`` for messages."""
    everything = {f"{kind}:/": ALL for kind in ("thing", "policy", "message")}
    users = {"ditto": everything, "user2": rules}
    entries = {
        user: {"subjects": {f"nginx:{user}": {"type": "t"}}, "resources": resources}
        for user, resources in users.items()
    }
    thing_id = new_id()
    answer = await client.put(thing(thing_id), json={"_policy": {"entries": entries}})
    assert answer.status_code == 201, answer.text
    return thing_id


@pytest.mark.parametrize(
    ("revoked", "path"),
    [
        ("/inbox/messages/a~1b", "/inbox/messages/a~1b"),
        ("/inbox/messages/a~1b", "/inbox/messages/a%2Fb"),
        ("/inbox/messages/a~1b", "/inbox/messages/a/b"),
        ("/inbox/messages/a~1b", "/inbox/messages/a%2Fb/c"),
        ("/inbox/messages/a/b", "/inbox/messages/a~1b"),
        ("/inbox/messages/a/b", "/inbox/messages/a%2Fb"),
        ("/inbox/messages/a", "/inbox/messages/a%2Fb"),
        ("/inbox/messages/a~0b", "/inbox/messages/a~0b"),
        ("/inbox/messages/a~0b", "/inbox/messages/a~b"),
        ("/inbox/messages/a~01b", "/inbox/messages/a~1b"),
        ("/inbox/messages/a~01b", "/inbox/messages/a~01b"),
        ("/features/a~1b", "/features/a%2Fb/inbox/messages/x"),
        ("/features/a~1b", "/features/a~1b/inbox/messages/x"),
        ("/features/a~1b/inbox/messages/x~1y", "/features/a%2Fb/inbox/messages/x/y"),
        ("/features/c~0d", "/features/c~0d/inbox/messages/x"),
        ("/features/c~0d", "/features/c~d/inbox/messages/x"),
        ("/features/q~1inbox~1messages~1z", "/features/q%2Finbox%2Fmessages%2Fz/inbox/messages/w"),
    ],
)
async def test_no_spelling_escapes_a_rule(
    gateway: Gateway, client: httpx.AsyncClient, user2: httpx.AsyncClient, revoked: str, path: str
) -> None:
    name = await made(client, **{"message:/": ALL, f"message:{revoked}": NONE})
    async with (
        Subscriber.open(gateway, start=START) as ditto,
        Subscriber.open(gateway, user="user2", start=START) as two,
    ):
        check_error(await user2.post(thing(name, path)), 403, "messages:send.notallowed")
        assert (await client.post(thing(name, path), params=NOW)).status_code == 202
        await ditto.event()
        await two.nothing_came()


async def test_a_rule_for_one_feature_is_not_for_another(
    gateway: Gateway, client: httpx.AsyncClient, user2: httpx.AsyncClient
) -> None:
    name = await made(client, **{"message:/features/q/inbox/messages/z": ALL})
    odd = "/features/q%2Finbox%2Fmessages%2Fz/inbox/messages/w"
    async with (
        Subscriber.open(gateway, start=START) as ditto,
        Subscriber.open(gateway, user="user2", start=START) as two,
    ):
        check_error(await user2.post(thing(name, odd)), 403, "messages:send.notallowed")
        assert (await client.post(thing(name, odd), params=NOW)).status_code == 202
        signal = await ditto.event()
        assert signal["path"] == "/features/q~1inbox~1messages~1z/inbox/messages/w"
        assert signal["headers"]["ditto-message-feature-id"] == "q/inbox/messages/z"
        await two.nothing_came()
        fine = thing(name, "/features/q/inbox/messages/z/y")
        assert (await user2.post(fine, params=NOW)).status_code == 202
        assert (await two.event())["path"] == "/features/q/inbox/messages/z/y"


@pytest.mark.parametrize("path", ["/inbox/messages/a%2Fb", "/features/a~1b/outbox/messages/a~1b"])
async def test_such_messages_are_answered(
    gateway: Gateway, client: httpx.AsyncClient, path: str
) -> None:
    name = await made(client, **{"message:/": ALL})
    async with Subscriber.open(gateway, respond=lambda _: {"status": 204}, start=START):
        assert (await client.post(thing(name, path))).status_code == 204


@pytest.mark.parametrize("feature", ["a%0ab", "%00", "x" * 257])
async def test_features_that_are_none(client: httpx.AsyncClient, feature: str) -> None:
    name = await made(client, **{"message:/": ALL})
    answer = await client.post(thing(name, f"/features/{feature}/inbox/messages/x"), params=NOW)
    check_error(answer, 404, "gateway:resource.notfound")
