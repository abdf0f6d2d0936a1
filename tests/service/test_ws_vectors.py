"""The vectors of WebSocket sessions that need a server, by their ids."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.callers import Caller, topic_of
from tests.gateways import Gateway, Json, Subscriber, ack_all, new_id, new_label, thing
from tests.vectors import load

SESSIONS = {p.id: p.values for p in load("ws.session")}


@pytest.mark.parametrize(("given", "expected"), load("ws-outcome"))
async def test_outcome(
    gateway: Gateway, client: httpx.AsyncClient, given: Json, expected: Json
) -> None:
    name = new_id()
    headers: dict[str, Any] = {
        key: given[key] for key in ("timeout", "response-required", "requested-acks")
    }
    if given["backend"].startswith("204"):
        assert (await client.put(thing(name), json={})).status_code == 201
        frame: Json = {"value": {}}
        path = "/"
    else:
        frame, path = {"value": 1}, "/attributes/a"  # of a thing that is not there
    async with Caller.open(gateway) as caller:
        sent = await caller.tell(topic_of(name, "modify"), path, headers=headers, **frame)
        await caller.ask(topic_of(name, "retrieve"))  # after it
        answers = caller.answers(sent)
    if "frame" in expected:
        assert expected["frame"] is None
        assert answers == []
    else:
        assert [answer["status"] for answer in answers] == [expected["frameStatus"]]


async def test_ws_session_003_an_ack_that_was_not_declared(gateway: Gateway) -> None:
    given, expected = SESSIONS["ws-session-003"]
    label = new_label()  # in place of theirs, which has to be unique
    async with Caller.open(gateway, f"?declared-acks={label}") as caller:
        await caller.send(given["client_sends"])
        problem = await caller.answer("c1")
        wanted = expected["frame"]
        assert {key: problem[key] for key in wanted if key != "value"} == {
            key: value for key, value in wanted.items() if key != "value"
        }
        assert {key: problem["value"][key] for key in wanted["value"]} == wanted["value"]
        await caller.command("START-SEND-EVENTS")


async def test_ws_session_005_the_own_label_of_a_session(gateway: Gateway) -> None:
    given, expected = SESSIONS["ws-session-005"]
    label, name = new_label(), new_id()
    async with Caller.open(gateway, f"?declared-acks={label}") as caller:
        await caller.command("START-SEND-EVENTS")
        headers = {"requested-acks": [label], "timeout": given["timeout"]}
        answer = await caller.ask(topic_of(name, "modify"), value={}, headers=headers)
        assert expected["event_delivered_to_same_session"] is False
        assert caller.frames == [answer]
        assert expected["result"].startswith(str(answer["value"][label]["status"]))


async def test_ws_session_010_a_parameter_without_a_value(gateway: Gateway) -> None:
    """Ditto ends the connection; clients cannot rely on that, and an error is better (spec 1.2)."""
    given, _ = SESSIONS["ws-session-010"]
    async with Subscriber.open(gateway, new_label(), ack=ack_all) as subscriber:
        await subscriber.send(given["client_sends"])
        problem = await subscriber.error()
        assert problem["value"]["error"] == "gateway:websocket.command.invalid"
        await subscriber.nothing_came()
