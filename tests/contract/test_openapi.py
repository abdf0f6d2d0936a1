"""Real answers against our OpenAPI document; our envelopes against Ditto's JSON schemas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema

from acks.errors import CATALOGUE
from tests.contract.ditto import ditto_file
from tests.gateways import (
    ROOT,
    Gateway,
    Json,
    Subscriber,
    ack_envelope,
    environment,
    http,
    new_id,
    new_label,
    thing,
)
from tests.searching import COUNT, SEARCH, new_namespace, put_all

DOCUMENT: Json = json.loads((ROOT / "openapi" / "openapi.json").read_text())
ERRORS: list[Json] = json.loads((ROOT / "openapi" / "errors.json").read_text())

THING = "/api/2/things/{thingId}"
ATTRIBUTES = "/api/2/things/{thingId}/attributes"
ATTRIBUTE = "/api/2/things/{thingId}/attributes/{attributePath}"


def test_the_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app", "openapi", "--check"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def resolved(item: Json) -> Json:
    """What a reference into the document's components names, or the item itself."""
    if "$ref" not in item:
        return item
    _, _, kind, name = item["$ref"].split("/")
    found: Json = DOCUMENT["components"][kind][name]
    return found


def operations() -> Iterator[tuple[str, str, Json]]:
    """(path, method, operation) of the whole document."""
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_every_schema_is_one() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def references(item: object) -> Iterator[str]:
    if isinstance(item, dict):
        if isinstance(item.get("$ref"), str):
            yield item["$ref"]
        for one in item.values():
            yield from references(one)
    elif isinstance(item, list):
        for one in item:
            yield from references(one)


def test_every_reference_leads_somewhere_and_nothing_is_left_over() -> None:
    used = set(references(DOCUMENT["paths"])) | set(references(DOCUMENT["components"]))
    kept = {
        f"#/components/{kind}/{name}"
        for kind in ("parameters", "responses", "schemas")
        for name in DOCUMENT["components"][kind]
    }
    assert used == kept


def test_operations_are_named_and_their_paths_have_parameters() -> None:
    names = [operation.get("operationId") for _, _, operation in operations()]
    assert None not in names
    assert len(set(names)) == len(names)
    for path, method, operation in operations():
        given = {
            one["name"]
            for one in map(resolved, operation.get("parameters", ()))
            if one["in"] == "path"
        }
        assert given == set(re.findall(r"\{(\w+)\}", path)), (method, path)


def test_error_examples_are_as_the_schema_of_errors_says() -> None:
    error = {**DOCUMENT["components"]["schemas"]["Error"], "components": DOCUMENT["components"]}
    seen = set()
    for name, response in DOCUMENT["components"]["responses"].items():
        for content in response.get("content", {}).values():
            for code, example in content.get("examples", {}).items():
                jsonschema.Draft202012Validator(error).validate(example["value"])
                assert example["value"]["error"] == code
                assert name.endswith(str(example["value"]["status"]))
                seen.add(code)
    assert seen <= set(CATALOGUE)
    assert len(seen) > 50


def test_aggregated_examples_are_as_their_schema_says() -> None:
    schema = {
        **DOCUMENT["components"]["schemas"]["Acknowledgements"],
        "components": DOCUMENT["components"],
    }
    for name in ("AllAcknowledged", "NotAllAcknowledged"):
        body = DOCUMENT["components"]["responses"][name]["content"]["application/json"]
        jsonschema.Draft202012Validator(schema).validate(body["example"])
        good = all(200 <= ack["status"] < 300 for ack in body["example"].values())
        assert good is (name == "AllAcknowledged")


def test_the_catalogue_is_complete() -> None:
    assert {entry["error"] for entry in ERRORS} == set(CATALOGUE)
    for entry in ERRORS:
        assert entry["status"] == 304 or 400 <= entry["status"] <= 599
        assert isinstance(entry["retryable"], bool)


def check(answer: httpx.Response, path: str, status: int) -> None:
    """Assert that the document describes this answer: status, content type, schema."""
    assert answer.status_code == status, answer.text
    method = answer.request.method.lower()
    described = DOCUMENT["paths"][path][method]["responses"]
    response = resolved(described[str(status)])
    if status == 201:
        assert answer.headers["location"]
        assert answer.headers["etag"]
    content = response.get("content")
    if content is None:
        assert answer.content == b""
        return
    media_type = answer.headers["content-type"].partition(";")[0]
    schema = {**content[media_type]["schema"], "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json())


async def test_answers_of_things(client: httpx.AsyncClient, gateway: Gateway) -> None:
    name, label = new_id(), new_label()
    both = {"requested-acks": f"twin-persisted,{label}", "timeout": "200ms"}

    async def put(path: str = "", body: Any = None, **options: Any) -> httpx.Response:
        return await client.put(thing(name, path), json={} if body is None else body, **options)

    check(await put("/attributes", {}), ATTRIBUTES, 404)
    check(await put(), THING, 201)
    check(await put(), THING, 204)
    check(await put("/attributes"), ATTRIBUTES, 201)
    check(await put("/attributes"), ATTRIBUTES, 204)
    check(await put("/attributes/a", 1), ATTRIBUTE, 201)
    check(await put("/attributes/a", 1), ATTRIBUTE, 204)
    check(await client.get(thing(name)), THING, 200)
    check(await put(params={"requested-acks": ""}), THING, 202)
    check(await put(params={"timeout": "61s"}), THING, 400)
    check(await put(params=both), THING, 424)
    check(await put(params={"requested-acks": label, "timeout": "10ms"}), THING, 408)
    check(await put("/attributes/a", "x" * 110_000), ATTRIBUTE, 413)
    check(await put(headers={"content-type": "text/plain"}), THING, 415)
    check(await put(headers={"x-long": "x" * 6_000}), THING, 431)
    async with Subscriber.open(gateway, label, ack=lambda *_: {"status": 200, "value": [1]}):
        check(await put(params=both), THING, 200)
        check(await put("/attributes/b", 1, params=both), ATTRIBUTE, 200)
    check(await client.get(thing(new_id())), THING, 404)
    check(await client.get(thing(name), params={"response-required": "false"}), THING, 400)
    async with http(gateway, None) as nobody:
        check(await nobody.get(thing(name)), THING, 401)
        check(await nobody.put(thing(name), json={}), THING, 401)
    everything = {"grant": ["READ", "WRITE"], "revoke": []}
    policy = {
        "entries": {
            "a": {
                "subjects": {"nginx:ditto": {"type": "t"}},
                "resources": {"thing:/": everything, "policy:/": everything},
            }
        }
    }
    shared = new_id()
    assert (await client.put(thing(shared), json={"_policy": policy})).status_code == 201
    async with http(gateway, "user2") as other:
        check(await other.put(thing(shared), json={}), THING, 403)
        check(await other.get(thing(shared)), THING, 404)


async def test_answers_of_searches(client: httpx.AsyncClient, gateway: Gateway) -> None:
    space = new_namespace()
    await put_all(client, space, {"a": {"attributes": {"a": 1}}, "b": {}})
    form = {"content-type": "application/x-www-form-urlencoded"}
    for path in (SEARCH, COUNT):
        for params in ({}, {"option": "size(1)"}, {"option": "limit(0,1)"}):
            given = {"namespaces": space, **params}
            check(await client.get(path, params=given), path, 200)
            check(await client.post(path, data=given), path, 200)
        check(await client.get(path, params={"filter": "x"}), path, 400)
        check(await client.post(path, data={"option": "x"}), path, 400)
        check(await client.post(path, content=b"a" * 1_100_000, headers=form), path, 413)
        check(await client.post(path, json={}), path, 415)
        async with http(gateway, None) as nobody:
            check(await nobody.get(path), path, 401)


async def test_answers_of_the_ordinary_routes(client: httpx.AsyncClient, gateway: Gateway) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/"):
        check(await client.get(path), path, 200)
    served = (await client.get("/openapi.json")).json()
    assert served == DOCUMENT


async def test_every_error_seen_is_in_the_catalogue(client: httpx.AsyncClient) -> None:
    by_code = {entry["error"]: entry for entry in ERRORS}
    answers = [
        await client.put(thing("bad"), json={}),
        await client.post(thing(new_id())),
        await client.get("/api/1/things"),
        await client.put(thing(new_id()), content=b"{"),
    ]
    for answer in answers:
        assert by_code[answer.json()["error"]]["status"] == answer.status_code


# --- Ditto's schemas


def ditto_validator(name: str) -> Any:
    """A validator of Ditto's ``protocol-<name>.json``; skips the test if it is not here."""
    schema = json.loads(ditto_file(f"jsonschema/protocol-{name}.json").read_text())
    return jsonschema.Draft4Validator(schema)


async def test_our_envelopes_are_valid_for_ditto(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    envelope, ack, acks = (ditto_validator(kind) for kind in ("envelope", "ack", "acks"))
    problem = ditto_validator("error_response")
    name, label = new_id(), new_label()
    sent: list[Json] = []

    def fields(event: Json, of: str) -> Json:
        sent.append(ack_envelope(event, of, status=200, value={"a": 1}))
        return {"status": 200, "value": {"a": 1}}

    async with Subscriber.open(gateway, label, ack=fields) as subscriber:
        params = {"requested-acks": f"twin-persisted,{label}"}
        bodies: tuple[tuple[str, Any], ...] = (("", {}), ("/attributes", {}), ("/attributes/a", 1))
        answers = []
        for path, body in bodies:
            answer = await client.put(thing(name, path), json=body, params=params)
            assert answer.status_code == 200, "acks that are valid for Ditto are taken"
            answers.append(answer)
        await subscriber.send({"topic": "a/b/things/twin/acks/none", "status": 200})
        problem.validate(await subscriber.error())
        envelope.validate(subscriber.errors[0])
    assert len(subscriber.events) == len(sent) == 3
    for event in subscriber.events:
        envelope.validate(event)
    for one in sent:
        ack.validate(one)
        envelope.validate(one)
    answer = answers[-1]
    aggregate = {
        "topic": f"{name.replace(':', '/')}/things/twin/acks",
        "headers": {"correlation-id": answer.headers["correlation-id"]},
        "path": "/",
        "value": answer.json(),
        "status": answer.status_code,
    }
    acks.validate(aggregate)
