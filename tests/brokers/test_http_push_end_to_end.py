"""HTTP push through a real gateway process: what the server answers is what the sender is told."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.authority import Authority
from tests.brokers.http_peer import answering, server_tls
from tests.brokers.http_server import Answer, Asked, http_server
from tests.brokers.push_scene import LABEL, Scene, push_scene
from tests.brokers.scenes import until
from tests.connected import target
from tests.gateways import ROOT, Json, thing
from tests.servers import free_port, wait_for

DEADLINE = 30.0


scene = pytest.fixture(push_scene)


# ----------------------------------------------------------- the response is the acknowledgement


@pytest.mark.parametrize(
    ("answer", "overall", "payload"),
    [
        (Answer(200, b'{"a": 1}', "application/json"), 200, {"a": 1}),
        (Answer(201, "schön".encode(), "text/plain"), 200, "schön"),
        (Answer(202, b"\x00\x01", "application/octet-stream"), 200, "AAE="),
        (Answer(204), 200, None),
        (Answer(302, headers={"location": "/elsewhere"}), 424, None),
        (Answer(400, b'{"error": "no"}', "application/json"), 424, {"error": "no"}),
        (Answer(404, b"not here", "text/plain"), 424, "not here"),
        (Answer(418, b"short and stout", "text/html; charset=utf-8"), 424, "short and stout"),
        (Answer(500, b"null", "application/json"), 424, None),
        (Answer(503), 424, None),
    ],
)
async def test_a_response_is_told_to_the_sender(
    scene: Scene, answer: Answer, overall: int, payload: Any
) -> None:
    answering(scene.server, answer)
    async with scene.pushing() as connection:
        status, ack = await scene.change(connection)
    assert (status, ack["status"], ack.get("payload")) == (overall, answer.status, payload)
    assert ack["headers"]["ditto-connection-id"] == connection


async def test_headers_of_the_response_are_those_of_the_ack(scene: Scene) -> None:
    answering(scene.server, Answer(200, b"{}", "application/json", {"x-own": "a"}))
    async with scene.pushing() as connection:
        _, ack = await scene.change(connection)
    assert (ack["headers"]["x-own"], ack["headers"]["content-type"]) == ("a", "application/json")


async def test_a_large_response_has_no_payload(scene: Scene) -> None:
    answering(scene.server, Answer(200, b"x" * 100_001, "text/plain"))
    async with scene.pushing() as connection:
        status, ack = await scene.change(connection)
    assert (status, ack["status"], "payload" in ack) == (200, 200, False)


async def test_the_sender_does_not_wait_longer_than_it_wants(scene: Scene) -> None:
    answers = asyncio.Event()

    async def answer(asked: Asked) -> Answer:
        await answers.wait()
        return Answer(201)

    scene.server.answers = answer
    async with scene.pushing() as connection:
        status, ack = await scene.change(connection, timeout="1s")
        assert (status, ack["status"]) == (424, 408)
        assert ack["payload"]["error"] == "acknowledgement:request.timeout"
        answers.set()  # what comes late is nobody's answer
        assert (await scene.change(connection, 2))[1]["status"] == 201
    assert [json.loads(asked.body)["value"] for asked in scene.server.asked] == [1, 2]


async def test_a_response_that_breaks_off(scene: Scene) -> None:
    answering(scene.server, Answer(200, b"half of it", cut=True), None, Answer())
    async with scene.pushing() as connection:
        for _ in range(2):
            status, ack = await scene.change(connection)
            assert (status, ack["status"]) == (424, 500)
            assert ack["payload"]["message"] == "Encountered <RemoteProtocolError>."
            assert "status" not in ack["payload"]
        assert (await scene.change(connection))[0] == 200


async def test_a_server_that_goes_away_and_comes_back(scene: Scene) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    async with scene.pushing(uri=uri, wait=False) as connection:
        await scene.operator.is_live(connection, "failed")
        status, ack = await scene.change(connection, "nobody is there yet")
        assert (status, ack["status"]) == (424, 503)
        assert ack["payload"]["error"] == "connectivity:message.sending.failed"
        # What nobody waits for is sent as soon as somebody is there.
        path = thing(scene.thing_id, "/attributes/n")
        await scene.client.put(path, json="waits", headers={"requested-acks": "twin-persisted"})
        async with http_server(port=port) as server:
            await wait_for(lambda: server.asked, DEADLINE, "the event that had to wait")
            assert (await scene.change(connection, "now"))[0] == 200
            assert [json.loads(a.body)["value"] for a in server.asked] == ["waits", "now"]
        status, ack = await scene.change(connection, "gone")
        assert (status, ack["status"]) == (424, 500)
        assert ack["payload"]["message"] == "Encountered <ConnectError>."

        async def shown() -> bool:
            return await scene.target_status(connection) == {"failed"}

        await until(shown, "the target is shown as failed", DEADLINE)
        async with http_server(port=port):
            assert (await scene.change(connection, "again"))[0] == 200


async def test_an_address_without_a_value(scene: Scene) -> None:
    address = "POST:/{{ header:device }}/{{ thing:name }}"
    async with scene.pushing(target(address, issuedAcknowledgementLabel=LABEL)) as connection:
        status, ack = await scene.change(connection, timeout="1s")
        assert (status, ack["status"]) == (424, 408)
        assert (await scene.change(connection, device="d/1"))[0] == 200
    assert [asked.target for asked in scene.server.asked] == [
        f"/d/1/{scene.thing_id.partition(':')[2]}"
    ]


async def test_what_the_target_does_not_get_is_confirmed_weakly(scene: Scene) -> None:
    only = target(
        "POST:/in",
        "_/_/things/twin/events?filter=gt(attributes/n,9)",
        issuedAcknowledgementLabel=LABEL,
    )
    async with scene.pushing(only) as connection:
        status, ack = await scene.change(connection, 9)
    assert (status, ack["status"], ack["headers"]["ditto-weak-ack"]) == (200, 200, True)
    assert scene.server.asked == []


async def test_header_and_payload_mapping(scene: Scene) -> None:
    mapped = target(
        "PUT:/base/{{ thing:id }}?from={{ topic:channel }}",
        headerMapping={
            "x-device": "{{ header:device | fn:upper() }}",
            "x-thing": "{{ thing:namespace }}",
            "content-type": "application/x-own",
            "x-absent": "{{ header:nobody }}",
        },
        payloadMapping=["small"],
        issuedAcknowledgementLabel=LABEL,
    )
    rules = {"payload": {"n": "{{ json:value }}"}}
    small = {"mappingEngine": "JsonTemplate", "options": {"outgoing": rules}}
    async with scene.pushing(mapped, mappingDefinitions={"small": small}) as connection:
        assert (await scene.change(connection, 7, device="lamp"))[0] == 200
    (asked,) = scene.server.asked
    assert (asked.method, asked.target) == ("PUT", f"/base/{scene.thing_id}?from=twin")
    assert json.loads(asked.body) == {"n": 7}
    assert asked.headers["x-device"] == "LAMP"
    assert asked.headers["x-thing"] == "org.example"
    assert asked.headers["content-type"] == "application/x-own"
    assert "x-absent" not in asked.headers


# ------------------------------------------------------------------------ who may, and TLS


async def test_a_token_that_is_refused_is_replaced(scene: Scene) -> None:
    async def answer(asked: Asked) -> Answer:
        if asked.target == "/token":
            token = {"access_token": f"t{len(scene.server.of('/token'))}", "expires_in": 300}
            return Answer(200, json.dumps(token).encode(), "application/json")
        return Answer(401 if asked.headers["authorization"] == "Bearer t1" else 200)

    scene.server.answers = answer
    credentials = {
        "type": "oauth-client-credentials",
        "tokenEndpoint": f"http://127.0.0.1:{scene.server.port}/token",
        "clientId": "me",
        "clientSecret": "secret",
    }
    async with scene.pushing(credentials=credentials) as connection:
        statuses = [(await scene.change(connection))[1]["status"] for _ in range(2)]
        shown = await scene.operator.client.get(f"/api/2/connections/{connection}")
    assert statuses == [401, 200]
    assert '"secret"' not in shown.text


async def test_tls_with_a_certificate_of_the_gateway(scene: Scene, tmp_path: Path) -> None:
    authority, clients = Authority(), Authority()
    cert, key = clients.pair("gateway")
    async with http_server(server_tls(tmp_path, authority, clients.pem)) as secure:
        fields: Json = {
            "uri": f"https://localhost:{secure.port}",
            "ca": authority.pem,
            "credentials": {"type": "client-cert", "cert": cert, "key": key},
        }
        async with scene.pushing(**fields) as connection:
            assert (await scene.change(connection))[0] == 200
        del fields["ca"]  # nobody's certificates but the system's
        async with scene.pushing(**fields, wait=False) as connection:
            await scene.operator.is_live(connection, "misconfigured")
            status, ack = await scene.change(connection)
            assert (status, ack["status"]) == (424, 503)
        assert len(secure.asked) == 1


# --------------------------------------------------------------- the example of the documentation


async def test_the_example_of_the_documentation(scene: Scene) -> None:
    page = (ROOT / "docs/connections/http-push.md").read_text()
    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    document = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    port = str(free_port())
    document["uri"] = document["uri"].replace("9000", port)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program.replace("9000", port)), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        made = await scene.operator.create(document)
        lamp = thing("org.example:lamp-1")
        await scene.client.put(lamp, json={"attributes": {"color": "red"}})
        acks = f'["twin-persisted","{made}:stored"]'
        answer = await scene.client.put(
            f"{lamp}/attributes/color", json="green", headers={"requested-acks": acks}
        )
        assert answer.status_code == 200, answer.text
        ack = answer.json()[f"{made}:stored"]
        assert (ack["status"], ack["payload"]) == (201, {"stored": True})
        answer = await scene.client.post(f"{lamp}/inbox/messages/say", json="hello")
        assert (answer.status_code, answer.json()) == (200, {"heard": "hello"})
        async with asyncio.timeout(DEADLINE):
            lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
        said = "/things/org.example%3Alamp-1/events 2 green"
        assert lines[1:] == [said, "/messages/say None hello"]
        assert said in page
        await scene.operator.client.delete(f"/api/2/connections/{made}")
    finally:
        process.terminate()
        await process.wait()
