"""HTTP push through a real gateway process: the server answers messages and live commands."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from connections.issued import DITTO_TYPE
from tests.brokers.http_peer import answering
from tests.brokers.http_server import Answer, Asked
from tests.brokers.push_scene import Scene, push_scene
from tests.connected import MESSAGES, target
from tests.gateways import Json, thing

COMMANDS = "_/_/things/live/commands"


@dataclass
class LiveScene(Scene):
    """A server that answers the live signals of one thing."""

    def answering(self, topic: str, **fields: Any) -> AbstractAsyncContextManager[str]:
        """A connection with one target; its id."""
        fields = {"issuedAcknowledgementLabel": "live-response", **fields}
        return self.pushing(
            target("POST:/{{ topic:subject | fn:default('none') }}", topic, **fields)
        )

    async def ask(self, **headers: str) -> httpx.Response:
        """Send the message ``ask`` and wait for the answer."""
        path = thing(self.thing_id, "/inbox/messages/ask")
        return await self.client.post(path, json={"what": 1}, headers=headers)

    def responds(self, **changes: Any) -> None:
        """Let the server answer by a Ditto Protocol response to what it was asked."""

        async def answer(asked: Asked) -> Answer:
            signal = json.loads(asked.body)
            correlation_id = {"correlation-id": signal["headers"]["correlation-id"]}
            response: Json = {**signal, "headers": correlation_id, "status": 200, **changes}
            return Answer(202, json.dumps(response).encode(), DITTO_TYPE)

        self.server.answers = answer


push = pytest.fixture(push_scene)


@pytest.fixture
async def scene(push: Scene) -> LiveScene:
    await push.client.put(thing(push.thing_id, "/attributes/n"), json=1)
    return LiveScene(**vars(push))


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (Answer(200, b'{"a": 1}', "application/json"), b'{"a":1}'),
        (Answer(418, b"short and stout", "text/plain"), b"short and stout"),
        (Answer(503, b'"busy"', "application/json"), b'"busy"'),
        (Answer(204), b""),
    ],
)
async def test_a_body_answers_a_message(scene: LiveScene, answer: Answer, body: bytes) -> None:
    answering(scene.server, answer)
    async with scene.answering(MESSAGES):
        answered = await scene.ask()
    assert (answered.status_code, answered.content) == (answer.status, body)
    (asked,) = scene.server.asked
    signal = json.loads(asked.body)
    assert asked.target == "/ask"
    assert signal["topic"].endswith("/things/live/messages/ask")
    assert (signal["path"], signal["value"]) == ("/inbox/messages/ask", {"what": 1})


async def test_headers_of_the_server_do_not_frame_the_answer(scene: LiveScene) -> None:
    headers = {
        "connection": "close",
        "content-encoding": "gzip",
        "set-cookie": "a=b",
        "correlation-id": "theirs",
        "x-own": "a",
    }
    answering(scene.server, Answer(200, b"abc", "text/plain", headers))
    async with scene.answering(MESSAGES):
        answered = await scene.ask(**{"correlation-id": "ours"})
        assert (answered.status_code, answered.text) == (200, "abc")
        assert answered.headers["correlation-id"] == "ours"
        assert not answered.headers.keys() & {"content-encoding", "set-cookie", "connection"}


async def test_a_ditto_response_answers_a_message(scene: LiveScene) -> None:
    scene.responds(status=201, value={"heard": True}, path="/outbox/messages/ask")
    async with scene.answering(MESSAGES):
        answered = await scene.ask()
    assert (answered.status_code, answered.json()) == (201, {"heard": True})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"headers": {"correlation-id": "other"}}, "Correlation ID of live response <other>"),
        ({"topic": "org.example/other/things/live/messages/ask"}, "<org.example:other> differs"),
        ({"topic": "org.example/{name}/things/live/commands/modify"}, "is not related to type"),
        ({"status": None}, "The live response has no status."),
        ({"status": 1000}, "The live response has no status."),
        ({"topic": "nonsense"}, "'nonsense'"),
    ],
)
async def test_a_ditto_response_to_something_else(
    scene: LiveScene, changes: Json, said: str
) -> None:
    name = scene.thing_id.partition(":")[2]
    scene.responds(
        **{k: v.replace("{name}", name) if isinstance(v, str) else v for k, v in changes.items()}
    )
    async with scene.answering(MESSAGES):
        answered = await scene.ask()
    assert answered.status_code == 422
    assert said in answered.json()["message"]


async def test_a_server_that_is_not_there_answers_a_message_with_500(scene: LiveScene) -> None:
    answering(scene.server, None)
    async with scene.answering(MESSAGES):
        answered = await scene.ask()
    assert answered.status_code == 500
    assert answered.json()["message"] == "Encountered <RemoteProtocolError>."


@pytest.mark.parametrize("labelled", [True, False])
async def test_a_ditto_response_answers_a_live_command(scene: LiveScene, labelled: bool) -> None:
    scene.responds(status=200, value=7)
    fields: Json = {} if labelled else {"issuedAcknowledgementLabel": None}
    async with scene.answering(COMMANDS, **fields):
        path = thing(scene.thing_id, "/attributes/n?channel=live&timeout=5s")
        answered = await scene.client.get(path)
    assert (answered.status_code, answered.json()) == (200, 7)
    (asked,) = scene.server.asked
    assert json.loads(asked.body)["topic"].endswith("/things/live/commands/retrieve")


async def test_a_body_answers_a_live_command(scene: LiveScene) -> None:
    answering(scene.server, Answer(204), Answer(409, b'{"busy": true}', "application/json"))
    async with scene.answering(COMMANDS):
        path = thing(scene.thing_id, "/attributes/n?channel=live&timeout=5s")
        answered = [await scene.client.put(path, json=2) for _ in range(2)]
    assert [one.status_code for one in answered] == [204, 409]
    assert answered[1].json() == {"busy": True}
    stored = await scene.client.get(thing(scene.thing_id, "/attributes/n"))
    assert stored.json() == 1


async def test_a_message_that_wants_no_response_is_sent_all_the_same(scene: LiveScene) -> None:
    async with scene.answering(MESSAGES):
        answered = await scene.ask(**{"response-required": "false"})
        assert answered.status_code == 202
        await scene.ask()
    assert [asked.target for asked in scene.server.asked] == ["/ask", "/ask"]
