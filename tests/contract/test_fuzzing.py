"""Requests made up from the OpenAPI document against a real gateway (schemathesis).

No answer is a 5xx, every answer is as the document says, and what the document forbids is refused.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateways import PASSWORDS, ROOT, Gateway, Json, running, thing
from tests.servers import redis_server, wait_for_sync

HERE = Path(__file__).parent
DOCUMENT: Json = json.loads((ROOT / "openapi" / "openapi.json").read_text())
THING, READ = "org.example:fuzzed", "org.example:read"
"""The things, and policies, that requests change and read; those that delete have their own."""
POLICY = "org.example:fuzzed-policy"
"""The policy that requests change."""
ACCEPTED = "fuzzed-1"
"""Correlation-id of an accepted request."""
USER, OPERATOR = "ditto", "devops"

KNOWN: Json = {
    "path-thingId": [THING],
    "path-policyId": [POLICY],
    "path-label": ["owner"],
    "path-subjectId": [f"nginx:{USER}"],
    "path-resourcePath": ["thing:/"],
    "path-correlationId": [ACCEPTED],
    "path-featureId": ["lamp"],
    "path-attributePath": ["colour", "a%2Fb"],
    "path-propertyPath": ["on", "a%2Fb"],
    "query-condition": ["exists(thingId)", 'eq(attributes/colour,"red")'],
    "query-live-channel-condition": ["exists(thingId)"],
    "query-fields": ["thingId", "attributes(colour),_revision"],
    "query-ids": [READ, f"{READ},org.example:none"],
    "query-namespace": ["org.example"],
    # Never one custom label alone: without response-required its failure has no body.
    "query-requested-acks": ["", "twin-persisted", "twin-persisted,my:ack,other:ack"],
    "query-search-filter": ["exists(thingId)", 'eq(attributes/colour,"red")'],
    "query-search-namespaces": ["org.example", "org.example,org.other"],
    "query-search-option": ["sort(-_modified),size(2)", "limit(0,5)"],
    "query-search-condition": ["exists(thingId)"],
    "query-timeout": ["20ms"],
    "header-if-match": ["*", '"rev:1"', '"rev:2"'],  # :func:`prepare` may run twice
    "header-if-none-match": ['"rev:0"'],
}
"""Values with which requests come further than to the first check."""
OWN_IDS = {
    "NewThing": ("thingId", "policyId"),
    "ThingPatch": ("thingId", "policyId"),
    "NewPolicy": ("policyId",),
}
"""What would at random contradict the address, or name what is not there."""
PATIENT: Json = {
    "name": "timeout",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "enum": ["200ms"], "example": "200ms"},
}
"""The timeout of requests that delete, and of those that are tried again."""
TRIES = 4
"""How often an operation may answer none of its requests with 2xx, on a machine that is busy."""
LEFT_OUT = ("header-requested-acks", "header-timeout", "header-response-required")
"""What would most often contradict the query parameter of the same name."""
SEARCH = "/api/2/search/"


_ENTRY = "DELETE /api/2/policies/{policyId}/entries/{label}"
UNLIKELY = {_ENTRY, f"{_ENTRY}/subjects/{{subjectId}}", f"{_ENTRY}/resources/{{resourcePath}}"}
"""Where few requests succeed: they would lock their sender out, or nothing is there any more."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that does not wait long for acks that nobody sends."""
    place = tmp_path_factory.mktemp("fuzzed")
    with redis_server() as store:
        gateway = Gateway(
            place,
            redis_url=store.url,
            default_timeout="20ms",
            max_timeout="200ms",
            async_keep="120s",
            search_index="sqlite",
        )
        with running(gateway):
            yield gateway


def published() -> Json:
    """The document, but for answers that may be anything: all the others have to be in it."""
    document = copy.deepcopy(DOCUMENT)
    del document["paths"]["/ws/2"]  # not a request with an answer
    for path, item in list(document["paths"].items()):
        for method, operation in list(item.items()):
            operation["responses"].pop("default", None)
            if is_stream(operation):
                del item[method]
        if not item:
            del document["paths"][path]
    return document


def is_stream(operation: Json) -> bool:
    """Whether it has no other answer than one that does not end (tests/service/test_sse.py)."""
    return list(operation["responses"].get("200", {}).get("content", ())) == ["text/event-stream"]


def narrowed() -> Json:
    """The document with a few values only for what is mostly refused at random."""
    document = published()
    components = document["components"]
    for name, values in KNOWN.items():
        schema = {"type": "string", "enum": values, "example": values[0]}
        components["parameters"][name]["schema"] = schema
    for name, fields in OWN_IDS.items():
        for field in fields:
            del components["schemas"][name]["properties"][field]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            about = {"get": READ, "delete": own(operation)}.get(method)
            if method == "delete":  # it succeeds once: not to be hidden by a 408
                operation["parameters"] = [patient(one) for one in operation["parameters"]]
            named = {"type": "string", "enum": [about], "example": about}
            given = [
                components["parameters"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
                for one in operation.get("parameters", ())
                if not one.get("$ref", "").endswith(LEFT_OUT)
                # A search of 20 ms may be too long: 504 is right then.
                and not (path.startswith(SEARCH) and one.get("$ref", "").endswith("timeout"))
            ]
            operation["parameters"] = [
                {**one, "schema": named}
                if about and one["name"] in ("thingId", "policyId")
                else one
                for one in given
            ]
            if path.startswith(SEARCH) and method == "post":
                form = operation["requestBody"]["content"].values()
                for content in form:
                    for field in content["schema"]["properties"]:
                        known = KNOWN.get(f"query-search-{field}") or KNOWN[f"query-{field}"]
                        content["schema"]["properties"][field] = {"type": "string", "enum": known}
            if path.endswith("/policyId") and "requestBody" in operation:
                for content in operation["requestBody"]["content"].values():
                    content["schema"] = {"type": "string", "enum": [THING]}
    return document


def own(operation: Json) -> str:
    """The thing or policy of an operation that deletes: no other one takes it away."""
    return f"org.example:{operation['operationId']}"


def deleted(beginning: str) -> list[str]:
    """What the operations delete whose paths begin so."""
    return [
        own(item["delete"])
        for path, item in DOCUMENT["paths"].items()
        if path.startswith(beginning) and "delete" in item
    ]


def run(gateway: Gateway, document: Json, place: Path, *options: str, user: str = USER) -> Json:
    """Let schemathesis test the gateway; its report. AssertionError with its output if it fails."""
    source, report = place / "openapi.json", place / "report.json"
    source.write_text(json.dumps(document))
    command = [
        sys.executable, "-m", "schemathesis.cli",
        f"--config-file={HERE / 'schemathesis.toml'}",
        "run", str(source), f"--url={gateway.url}", f"--auth={user}:{PASSWORDS[user]}",
        "--report=json", f"--report-json-path={report}", "--warnings=off", *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=270, cwd=place, check=False
    )
    raised = {event["exception"] for event in gateway.events("request.failed")}
    assert not raised, "\n".join(raised)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Json = json.loads(report.read_text())
    assert found["complete"]
    operations = sum(len(item) for item in document["paths"].values())
    assert found["operations"]["tested"] == operations
    assert found["test_cases"]["generated"] > 3 * operations
    return found


def operated(kept: str, deleted: str) -> Json:
    """The part of the document that is for operators, about two connections by their ids."""
    document = published()
    document["components"]["parameters"]["path-connectionId"]["schema"] = one_of(kept)
    for name in ("NewConnection", "ChangedConnection"):
        document["components"]["schemas"][name]["properties"]["uri"] = one_of("tcp://127.0.0.1:1")
    document["paths"] = {
        path: item
        for path, item in document["paths"].items()
        if path.startswith("/api/2/connections")
    }
    for item in document["paths"].values():
        for method, operation in item.items():
            operation["parameters"] = [
                {"name": "connectionId", "in": "path", "required": True, "schema": one_of(deleted)}
                if method == "delete" and one["$ref"].endswith("path-connectionId")
                else one
                for one in operation.get("parameters", ())
                # It answers 504 where nobody is.
                if not one["$ref"].endswith("query-dry-run")
            ]
    return document


def one_of(text: str) -> Json:
    """The schema of one text."""
    return {"type": "string", "enum": [text], "example": text}


def prepare(gateway: Gateway) -> None:
    """Make what most requests are about: things, a policy, and an accepted request."""
    lamp = {"definition": ["org.example:lamp:1.0.0"], "properties": {"on": True}}
    lamp["desiredProperties"] = {"on": False}
    body = {
        "definition": "org.example:lamp:1.0.0",
        "attributes": {"colour": "red"},
        "features": {"lamp": lamp},
    }
    auth = (USER, PASSWORDS[USER])
    with httpx.Client(base_url=gateway.url, auth=auth, trust_env=False) as client:
        policy = DOCUMENT["components"]["schemas"]["NewPolicy"]["example"]
        for name in (THING, READ, *deleted("/api/2/things/")):
            put(client, thing(name), {**body, "_policy": policy})
        for name in (POLICY, *deleted("/api/2/policies/")):
            put(client, f"/api/2/policies/{name}", policy)
        later = {"prefer": "respond-async", "correlation-id": ACCEPTED}
        client.put(thing(READ), json=body, headers=later)
        assert client.get(f"/api/2/acks/{ACCEPTED}").status_code == 200


def put(client: httpx.Client, path: str, body: Json) -> None:
    """Have something there; the gateway's short timeout may be over before it is."""

    def stored() -> bool:
        status = client.put(path, json=body, params={"timeout": "200ms"}).status_code
        assert status in (201, 204, 408)
        return status != 408

    wait_for_sync(stored, 30.0, path)


def only(document: Json, names: set[str]) -> Json:
    """The document with these operations alone, named ``GET /path``, and patient ones."""
    paths: Json = {}
    for path, item in document["paths"].items():
        chosen = {
            method: {**one, "parameters": [patient(each) for each in one.get("parameters", ())]}
            for method, one in item.items()
            if f"{method.upper()} {path}" in names
        }
        if chosen:
            paths[path] = chosen
    return {**document, "paths": paths}


def patient(parameter: Json) -> Json:
    """The parameter, or the long timeout instead of a short one."""
    return PATIENT if parameter.get("$ref", "").endswith("query-timeout") else parameter


def never_accepted(found: Json) -> set[str]:
    """The operations that have answered no request with 2xx, but for :data:`UNLIKELY`."""
    never = {
        name
        for name, phases in found["valid_rates"].items()
        if not any(phase["accepted"] for phase in phases.values())
    }
    return never - UNLIKELY


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_requests_within_and_beyond_the_document(fuzzed: Gateway, tmp_path: Path) -> None:
    prepare(fuzzed)
    run(fuzzed, published(), tmp_path, "--max-examples=3")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_requests_that_come_further(fuzzed: Gateway, tmp_path: Path) -> None:
    document, examples = narrowed(), 10
    never: set[str] = set()
    for _ in range(TRIES):
        prepare(fuzzed)
        options = ("--mode=positive", "--phases=examples,fuzzing", f"--max-examples={examples}")
        never = never_accepted(run(fuzzed, document, tmp_path, *options))
        if not never:
            return
        # Ten requests may all have been refused, or been too late, by chance; fifty more are not.
        document, examples = only(document, never), 50
    pytest.fail(f"no request has been answered with 2xx: {never}")


@pytest.mark.slow
def test_connections_by_an_operator(fuzzed: Gateway, tmp_path: Path) -> None:
    example = {
        "connectionType": "mqtt",
        "connectionStatus": "closed",
        "uri": "tcp://127.0.0.1:1",
        "sources": [{"addresses": ["in"], "authorizationContext": ["nginx:ditto"]}],
    }
    auth = (OPERATOR, PASSWORDS[OPERATOR])
    with httpx.Client(base_url=fuzzed.url, auth=auth, trust_env=False) as client:
        made = [client.post("/api/2/connections", json=example) for _ in range(2)]
        assert [answer.status_code for answer in made] == [201, 201]
        kept, deleted = (answer.json()["id"] for answer in made)
        found = run(
            fuzzed,
            operated(kept, deleted),
            tmp_path,
            "--max-examples=8",
            "--phases=examples,fuzzing",
            user=OPERATOR,
        )
        documents = client.get("/api/2/connections").json()
        for one in documents:
            assert client.delete(f"/api/2/connections/{one['id']}").status_code == 204
    accepted = {
        name
        for name, phases in found["valid_rates"].items()
        if any(phase["accepted"] for phase in phases.values())
    }
    assert {name.partition(" ")[0] for name in accepted} >= {"GET", "DELETE"}
