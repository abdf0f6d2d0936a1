"""``/api/2/connections``: documents, commands and states, for operators alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.store.connections import ConnectionStore
from app.store.redis_client import Redis, RedisAddress
from connections.documents.masking import MASK
from tests.connections.documents import document, source, target
from tests.gateways import Gateway, check_error, http, running
from tests.servers import RedisServer, free_port, redis_server, wait_for

URL = "/api/2/connections"
PASSWORD = "wolfsbane"
SECRET_URI = f"tcp://me:{PASSWORD}@broker:1883"
INVALID = "connectivity:connection.configuration.invalid"
NOT_FOUND = "connectivity:connection.notfound"
COMMANDS = "connectivity.commands:"


@pytest.fixture
async def operator(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway, "devops") as client:
        yield client


@pytest.fixture
async def made(operator: httpx.AsyncClient) -> AsyncIterator[str]:
    """The id of a connection that is there, closed."""
    answer = await operator.post(URL, json=document(uri=SECRET_URI))
    assert answer.status_code == 201, answer.text
    connection_id: str = answer.json()["id"]
    yield connection_id
    await operator.delete(f"{URL}/{connection_id}")


@pytest.fixture
async def documents(store: RedisServer) -> AsyncIterator[ConnectionStore]:
    """What the gateway has stored, and what clients of connections would report to it."""
    redis = Redis(RedisAddress.parse(store.url), name="test")
    connections = ConnectionStore(redis, "service")
    await redis.start()
    yield connections
    await redis.close()


async def send(client: httpx.AsyncClient, connection_id: str, command: str) -> httpx.Response:
    return await client.post(
        f"{URL}/{connection_id}/command", content=command, headers={"content-type": "text/plain"}
    )


# --- who


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("POST", ""), ("GET", "/x"), ("PUT", "/x"), ("DELETE", "/x"),
        ("POST", "/x/command"), ("GET", "/x/status"), ("GET", "/x/metrics"), ("GET", "/x/logs"),
    ],
)  # fmt: skip
async def test_nobody_else_gets_in(
    gateway: Gateway, client: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await client.request(method, URL + path, json={})
    check_error(answer, 403, "gateway:authorization.missing")
    async with http(gateway, None) as nobody:
        answer = await nobody.request(method, URL + path, json={})
        check_error(answer, 401, "gateway:authentication.failed")


# --- documents


async def test_a_connection_is_created_with_an_id_of_ours(operator: httpx.AsyncClient) -> None:
    answer = await operator.post(URL, json=document(name="ä", tags=["t"], connectionStatus=None))
    assert answer.status_code == 201
    body = answer.json()
    location = answer.headers["location"]
    assert location.endswith(f"{URL}/{body['id']}")
    assert answer.headers["etag"] == '"rev:1"'
    assert (body["name"], body["tags"]) == ("ä", ["t"])
    assert (body["connectionStatus"], body["clientCount"]) == ("unknown", 1)
    assert (await operator.get(location)).json() == body
    assert body in (await operator.get(URL)).json()
    assert (await operator.delete(location)).status_code == 204
    check_error(await operator.get(location), 404, NOT_FOUND)


async def test_only_what_is_asked_for(operator: httpx.AsyncClient, made: str) -> None:
    answer = await operator.get(URL, params={"ids-only": "true"})
    assert made in answer.json()
    assert sorted(answer.json()) == answer.json()
    answer = await operator.get(URL, params={"fields": "id,uri"})
    assert {"id": made, "uri": f"tcp://me:{MASK}@broker:1883"} in answer.json()
    answer = await operator.get(
        f"{URL}/{made}", params={"fields": "sources(addresses),clientCount"}
    )
    assert answer.json()["clientCount"] == 1
    assert "uri" not in answer.json()
    check_error(
        await operator.get(URL, params={"fields": "a(b"}), 400, "json.fieldselector.invalid"
    )
    check_error(await operator.get(URL, params={"ids-only": "yes"}), 400, "header.invalid")


async def test_no_password_leaves(
    gateway: Gateway, operator: httpx.AsyncClient, made: str, documents: ConnectionStore
) -> None:
    path = f"{URL}/{made}"
    shown = await operator.get(path)
    wrong = await operator.put(path, json=document(uri=SECRET_URI + "?query"))
    check_error(wrong, 400, "connectivity:connection.uri.invalid")
    answers = [shown, wrong, await operator.get(URL), await operator.get(f"{path}/status")]
    assert all(PASSWORD not in answer.text for answer in answers)

    back = {**shown.json(), "name": "renamed"}
    assert (await operator.put(path, json=back)).status_code == 204
    stored = await documents.get(made)
    assert stored is not None
    assert (stored.document["name"], stored.document["uri"]) == ("renamed", SECRET_URI)
    elsewhere = {**back, "uri": back["uri"].replace("broker", "elsewhere")}
    check_error(await operator.put(path, json=elsewhere), 400, INVALID)
    fresh = document(uri=f"tcp://me:{MASK}@broker:1883")
    check_error(await operator.post(URL, json=fresh), 400, INVALID)
    assert PASSWORD not in gateway.log


async def test_a_connection_is_replaced_where_it_is(
    operator: httpx.AsyncClient, made: str, documents: ConnectionStore
) -> None:
    path = f"{URL}/{made}"
    before = await documents.version()
    answer = await operator.put(path, json=document(name="a", id=made))
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["etag"] == '"rev:2"'
    assert await documents.version() > before
    assert (await operator.get(path)).json()["name"] == "a"
    for wrong, code in (
        ({"id": "another"}, "connectivity:id.notsettable"),
        ({"connectionType": None}, "json.field.missing"),
        ({"clientCount": 0}, INVALID),
    ):
        check_error(await operator.put(path, json=document(**wrong)), 400, code)
    check_error(await operator.put(f"{URL}/nobody", json=document()), 404, NOT_FOUND)
    check_error(await operator.post(URL, json=document(id="mine")), 400,
                "connectivity:id.notsettable")  # fmt: skip


async def test_entity_tags(operator: httpx.AsyncClient, made: str) -> None:
    path = f"{URL}/{made}"
    assert (await operator.get(path, headers={"if-none-match": '"rev:1"'})).status_code == 304
    assert (await operator.get(path, headers={"if-none-match": '"rev:7"'})).status_code == 200
    old = {"if-match": '"rev:7"'}
    for answer in (
        await operator.get(path, headers=old),
        await operator.put(path, json=document(), headers=old),
        await operator.put(path, json=document(), headers={"if-none-match": "*"}),
        await operator.delete(path, headers=old),
    ):
        check_error(answer, 412, "connectivity:precondition.failed")
        assert answer.headers["etag"] == '"rev:1"'
    new = {"if-match": '"rev:1"'}
    assert (await operator.put(path, json=document(), headers=new)).status_code == 204


async def test_of_two_that_change_it_at_once_none_is_lost(
    operator: httpx.AsyncClient, made: str
) -> None:
    path = f"{URL}/{made}"
    answers = await asyncio.gather(
        *(operator.put(path, json=document(name=str(number))) for number in range(10))
    )
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {204, 409}
    assert 204 in statuses
    tag = (await operator.get(path)).headers["etag"]
    assert tag == f'"rev:{1 + statuses.count(204)}"'


@pytest.mark.parametrize(
    ("wrong", "status", "code"),
    [
        ({"sources": [], "targets": None}, 400, INVALID),
        ({"connectionStatus": "ajar"}, 400, INVALID),
        ({"uri": None}, 400, "json.field.missing"),
        ({"uri": "tcp://broker"}, 400, "connectivity:connection.uri.invalid"),
        ({"targets": [target(topics=["_/_/x"])]}, 400, "connectivity:topic.invalid"),
        ({"targets": [target(topics=["_/_/things/twin/events?filter=eq("])]}, 400,
         "rql.expression.invalid"),
        ({"targets": [target(address="{{ no:such }}")]}, 400, "placeholder:unresolved"),
        ({"sources": [source(declaredAcks=["ack"])]}, 400, "acknowledgement:label.invalid"),
        ({"targets": [target(issuedAcknowledgementLabel="live-response")] * 2}, 409,
         "acknowledgement:label.not.unique"),
        ({"name": "x" * 110_000}, 413, "request.toolarge"),
        ({"name": 5}, 400, INVALID),
        ({"unknown": 5}, 400, INVALID),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_refused(
    operator: httpx.AsyncClient, made: str, wrong: dict[str, Any], status: int, code: str
) -> None:
    check_error(await operator.post(URL, json=document(**wrong)), status, code)
    check_error(await operator.put(f"{URL}/{made}", json=document(**wrong)), status, code)
    tried = await operator.post(URL, json=document(**wrong), params={"dry-run": "true"})
    check_error(tried, status, code)


@pytest.mark.parametrize("body", ["[]", "null", '"x"', "5"])
async def test_a_document_is_an_object(operator: httpx.AsyncClient, body: str) -> None:
    headers = {"content-type": "application/json"}
    check_error(await operator.post(URL, content=body, headers=headers), 400, INVALID)


async def test_bodies_are_json(operator: httpx.AsyncClient, made: str) -> None:
    headers = {"content-type": "text/plain"}
    answer = await operator.post(URL, content="{}", headers=headers)
    check_error(answer, 415, "mediatype.unsupported")
    headers = {"content-type": "application/json"}
    answer = await operator.put(f"{URL}/{made}", content="{", headers=headers)
    check_error(answer, 400, "json.invalid")


async def test_addresses_that_are_none(operator: httpx.AsyncClient, made: str) -> None:
    for path in (f"{URL}/{made}/nothing", f"{URL}/{made}/status/x"):
        check_error(await operator.get(path), 404, "gateway:resource.notfound")
    for path in (f"{URL}/a%2Fb", f"{URL}/a%20b/status", f"{URL}/{'a' * 101}"):
        check_error(await operator.get(path), 400, "connectivity:id.invalid")
    for method, path in (
        ("PATCH", f"{URL}/{made}"),
        ("PUT", URL),
        ("GET", f"{URL}/{made}/command"),
        ("POST", f"{URL}/{made}/logs"),
    ):
        answer = await operator.request(method, path, json={})
        check_error(answer, 405, "gateway:method.notallowed")


# --- trying


async def test_a_connection_is_only_tried(operator: httpx.AsyncClient) -> None:
    before = (await operator.get(URL, params={"ids-only": "true"})).json()
    uri = f"tcp://me:{PASSWORD}@127.0.0.1:{free_port()}"
    answer = await operator.post(URL, json=document(uri=uri), params={"dry-run": "true"})
    body = check_error(answer, 504, "connectivity:connection.failed")
    assert "-dry-run" in body["message"]
    assert body["description"]
    assert PASSWORD not in answer.text
    assert (await operator.get(URL, params={"ids-only": "true"})).json() == before


# --- commands


async def test_opened_and_closed(
    operator: httpx.AsyncClient, made: str, documents: ConnectionStore
) -> None:
    for command, status in (("openConnection", "open"), ("closeConnection", "closed")):
        answer = await send(operator, made, COMMANDS + command)
        assert (answer.status_code, answer.content) == (200, b"")
        shown = (await operator.get(f"{URL}/{made}")).json()
        assert shown["connectionStatus"] == status
    stored = await documents.get(made)
    assert stored is not None
    assert list(stored.commands) == ["enableConnectionLogs"]  # opening enables them


@pytest.mark.parametrize(
    "name", ["resetConnectionMetrics", "enableConnectionLogs", "resetConnectionLogs"]
)
async def test_commands_of_running_clients(
    operator: httpx.AsyncClient, made: str, documents: ConnectionStore, name: str
) -> None:
    assert (await send(operator, made, f" {COMMANDS}{name}\n")).status_code == 200
    stored = await documents.get(made)
    assert stored is not None
    assert list(stored.commands) == [name]
    assert stored.revision == 1


async def test_commands_that_are_none(operator: httpx.AsyncClient, made: str) -> None:
    for command in ("", "openConnection", f"{COMMANDS}closeconnection", f"{COMMANDS}x"):
        check_error(await send(operator, made, command), 400, "connectivity:command.invalid")
    check_error(await send(operator, made, "x" * 2_000), 413, "request.toolarge")
    check_error(await send(operator, "nobody", f"{COMMANDS}openConnection"), 404, NOT_FOUND)
    answer = await operator.post(f"{URL}/{made}/command", json=f"{COMMANDS}openConnection")
    check_error(answer, 415, "mediatype.unsupported")


# --- states


def report(client: int, live: str, consumed: int, since: str | None = None) -> dict[str, Any]:
    """What a client says of itself."""
    meter = {"PT1M": consumed, "PT1H": consumed, "PT24H": consumed, "lastMessageAt": since}
    measures = {"consumed": {"success": meter}}
    entry = {"type": "client", "client": f"n{client}", "status": live}
    return {
        "client": client,
        "status": {
            "liveStatus": live,
            "recoveryStatus": "succeeded",
            "connectedSince": since,
            "clientStatus": [entry],
            "sourceStatus": [{**entry, "type": "source", "address": "in"}],
            "targetStatus": [],
        },
        "metrics": {
            "containsFailures": client == 1,
            "connectionMetrics": {"inbound": measures, "outbound": {}},
            "sourceMetrics": {"addressMetrics": {"in": measures}},
            "targetMetrics": {"addressMetrics": {}},
        },
        "logs": [
            {"timestamp": f"2026-01-01T00:00:0{9 - client}Z", "category": "source",
             "type": "consumed", "level": "success", "message": f"from {client}"},
        ],
        "enabledSince": since,
        "enabledUntil": None,
    }  # fmt: skip


async def test_a_connection_that_nobody_runs(operator: httpx.AsyncClient, made: str) -> None:
    status = (await operator.get(f"{URL}/{made}/status")).json()
    assert (status["connectionId"], status["connectionStatus"]) == (made, "closed")
    assert (status["liveStatus"], status["clientStatus"]) == ("closed", [])
    metrics = (await operator.get(f"{URL}/{made}/metrics")).json()
    zero = {"PT1M": 0, "PT1H": 0, "PT24H": 0, "lastMessageAt": None}
    nothing = {"success": zero, "failure": zero}
    assert metrics["connectionMetrics"]["inbound"]["consumed"] == nothing
    assert metrics["connectionMetrics"]["outbound"]["published"] == nothing
    assert metrics["sourceMetrics"]["addressMetrics"]["in"]["enforced"] == nothing
    assert metrics["targetMetrics"]["addressMetrics"]["out"]["dispatched"] == nothing
    logs = (await operator.get(f"{URL}/{made}/logs")).json()
    assert (logs["connectionLogs"], logs["enabledSince"]) == ([], None)
    for part in ("status", "metrics", "logs"):
        check_error(await operator.get(f"{URL}/nobody/{part}"), 404, NOT_FOUND)


async def test_what_the_clients_say_is_put_together(
    operator: httpx.AsyncClient, made: str, documents: ConnectionStore
) -> None:
    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    for client, live, since in ((0, "open", late), (1, "failed", early)):
        assert await documents.report(made, client, "n", report(client, live, 5, since), 60_000)
    status = (await operator.get(f"{URL}/{made}/status")).json()
    assert (status["liveStatus"], status["recoveryStatus"]) == ("failed", "succeeded")
    assert status["connectedSince"] == early
    assert [entry["client"] for entry in status["clientStatus"]] == ["n0", "n1"]
    assert [entry["address"] for entry in status["sourceStatus"]] == ["in", "in"]

    metrics = (await operator.get(f"{URL}/{made}/metrics")).json()
    assert metrics["containsFailures"] is True
    total = {"PT1M": 10, "PT1H": 10, "PT24H": 10, "lastMessageAt": late}
    assert metrics["connectionMetrics"]["inbound"]["consumed"]["success"] == total
    assert metrics["sourceMetrics"]["addressMetrics"]["in"]["consumed"]["success"] == total

    logs = (await operator.get(f"{URL}/{made}/logs")).json()
    assert [entry["message"] for entry in logs["connectionLogs"]] == ["from 1", "from 0"]
    assert (logs["enabledSince"], logs["enabledUntil"]) == (early, None)


async def test_the_store_may_be_away(place: Path) -> None:
    with redis_server() as store:
        gateway = Gateway(place, redis_url=store.url, store_timeout="500ms")
        with running(gateway):
            async with http(gateway, "devops") as client:
                answer = await client.post(URL, json=document())
                path = f"{URL}/{answer.json()['id']}"
                store.kill9()
                for given, code in (
                    (URL, "gateway:service.unavailable"),
                    (path, "connectivity:connection.unavailable"),
                    (f"{path}/status", "connectivity:connection.unavailable"),
                ):
                    check_error(await client.get(given), 503, code)
                answer = await send(client, path.rpartition("/")[2], f"{COMMANDS}openConnection")
                check_error(answer, 503, "connectivity:connection.unavailable")
                store.start()
                await wait_for(gateway.is_ready)
                assert (await client.get(path)).json()["connectionStatus"] == "closed"


async def test_hosts_may_be_blocked(place: Path, store: RedisServer) -> None:
    gateway = Gateway(
        place, redis_url=store.url, prefix="blocked", connection_blocked_hosts="bad.example"
    )
    with running(gateway):
        async with http(gateway, "devops") as client:
            for uri in ("tcp://bad.example:1", "tcp://127.0.0.1:1", "tcp://localhost:1"):
                for query in ({}, {"dry-run": "true"}):
                    answer = await client.post(URL, json=document(uri=uri), params=query)
                    check_error(answer, 400, INVALID)
                    assert "is blocked" in answer.json()["message"]
            assert (await client.get(URL)).json() == []
            answer = await client.post(URL, json=document(uri="tcp://8.8.8.8:1883"))
            assert answer.status_code == 201
