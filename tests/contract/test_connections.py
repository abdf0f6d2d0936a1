"""Answers about connections against our OpenAPI document, and against Ditto's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from tests.connections.documents import document, source, target
from tests.contract.ditto import ditto_file
from tests.contract.test_openapi import check
from tests.gateways import Gateway, http
from tests.servers import free_port

URL = "/api/2/connections"
ONE = f"{URL}/{{connectionId}}"
COMMAND = "connectivity.commands:"
FULL = document(
    connectionType="mqtt-5",
    name="full",
    clientCount=1,
    sources=[
        source(
            enforcement={"input": "{{ source:address }}", "filters": ["{{ thing:id }}"]},
            acknowledgementRequests={"includes": ["twin-persisted"]},
            declaredAcks=["{{connection:id}}:done"],
            payloadMapping=["Ditto"],
            headerMapping={"correlation-id": "{{ header:correlation-id }}"},
            replyTarget={"address": "replies", "expectedResponseTypes": ["response", "nack"]},
        )
    ],
    targets=[target(issuedAcknowledgementLabel="{{connection:id}}:sent")],
    specificConfig={"clientId": "x"},
)


@pytest.fixture
async def operator(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway, "devops") as client:
        yield client


def dittos(schema: str) -> Any:
    """A validator of one of the schemas in Ditto's API document; skips if it is not here."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = yaml.load(ditto_file("ditto-api-2.yml").read_text(), Loader=loader)
    whole = {"$ref": f"#/components/schemas/{schema}", "components": found["components"]}
    return jsonschema.Draft4Validator(whole)


async def send(client: httpx.AsyncClient, path: str, command: str) -> httpx.Response:
    headers = {"content-type": "text/plain"}
    return await client.post(f"{path}/command", content=command, headers=headers)


def filled(value: Any) -> Any:
    """Instants of what has not happened are null; Ditto's document has no word for these."""
    if isinstance(value, dict):
        return {key: filled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one) for one in value]
    return "" if value is None else value


async def test_answers_are_as_our_document_says(
    operator: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    created = await operator.post(URL, json=FULL)
    check(created, URL, 201)
    path = f"{URL}/{created.json()['id']}"
    tag = created.headers["etag"]
    check(await operator.get(URL), URL, 200)
    check(await operator.get(URL, params={"ids-only": "true"}), URL, 200)
    check(await operator.post(URL, json={}), URL, 400)
    check(await operator.post(URL, content="{}"), URL, 400)
    check(await operator.post(URL, json={"name": "x" * 110_000}), URL, 413)
    check(await operator.post(URL, content="", headers={"content-type": "a/b"}), URL, 415)
    dead = document(uri=f"tcp://127.0.0.1:{free_port()}")
    check(await operator.post(URL, json=dead, params={"dry-run": "true"}), URL, 504)
    check(await operator.get(path), ONE, 200)
    check(await operator.get(path, headers={"if-none-match": tag}), ONE, 304)
    check(await operator.get(path, headers={"if-match": '"x"'}), ONE, 412)
    check(await operator.put(path, json=created.json()), ONE, 204)
    check(await operator.put(path, json={}), ONE, 400)
    check(await operator.put(path, json=FULL, headers={"if-match": tag}), ONE, 412)
    check(await operator.put(f"{URL}/nobody", json=FULL), ONE, 404)
    for part in ("status", "metrics", "logs"):
        check(await operator.get(f"{path}/{part}"), f"{ONE}/{part}", 200)
        check(await operator.get(f"{URL}/nobody/{part}"), f"{ONE}/{part}", 404)
    answer = await send(operator, path, f"{COMMAND}resetConnectionLogs")
    assert (answer.status_code, answer.content) == (200, b"")
    check(await send(operator, path, "nothing"), f"{ONE}/command", 400)
    check(await send(operator, f"{URL}/nobody", f"{COMMAND}openConnection"), f"{ONE}/command", 404)
    check(await operator.post(f"{path}/command", json="x"), f"{ONE}/command", 415)
    check(await client.get(path), ONE, 403)
    check(await operator.delete(path), ONE, 204)
    check(await operator.delete(path), ONE, 404)


async def test_documents_are_dittos(operator: httpx.AsyncClient) -> None:
    answer = await operator.post(URL, json=FULL)
    body = answer.json()
    await operator.delete(f"{URL}/{body['id']}")
    dittos("Connection").validate(body)
    # The older schema knows no tags.
    schema = yaml.safe_load(ditto_file("jsonschema/connection.json").read_text())
    jsonschema.Draft4Validator(schema).validate({k: v for k, v in body.items() if k != "tags"})


async def test_states_are_dittos(operator: httpx.AsyncClient) -> None:
    states = {
        part: dittos(f"Connection{part.capitalize()}") for part in ("status", "metrics", "logs")
    }
    dead = document(connectionStatus="open", uri=f"tcp://127.0.0.1:{free_port()}")
    path = f"{URL}/{(await operator.post(URL, json=dead)).json()['id']}"
    async with asyncio.timeout(20):
        while True:
            status = (await operator.get(f"{path}/status")).json()
            if status["liveStatus"] == "failed":
                break
    for part, validator in states.items():
        answer = await operator.get(f"{path}/{part}")
        check(answer, f"{ONE}/{part}", 200)
        validator.validate(filled(answer.json()))
    assert (await operator.get(f"{path}/logs")).json()["connectionLogs"]
    assert (await operator.delete(path)).status_code == 204
