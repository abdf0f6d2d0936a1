"""Vectors about addresses, bodies and headers of requests, as far as no server is needed.

Those of the areas http-body and http-route that name a responder, a method or a query are run
against a gateway.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from acks.aggregator import Aggregator, http_answer
from acks.changes import change, check_merge, check_put
from acks.document import Twin, check_json, check_thing_id
from acks.errors import GatewayError, error
from acks.headers import Setter, complete
from acks.resources import location, parse_resource
from acks.signals import Command, Response
from app.api.http import parse_json
from tests.vectors import load

Json = Any
THING = "org.example:lamp"


@pytest.mark.parametrize(("given", "expected"), load("location-header"))
def test_location(given: Json, expected: Json) -> None:
    found = location(given["method"], given["uri"], given["entityId"], given["resourcePath"])
    assert found == expected["location"]


def _route(*ids: str) -> list[Any]:
    return [p for p in load("http-route") if p.id in ids]


def _segments(request: str) -> list[str]:
    return request.split()[1].partition("?")[0].split("/")[4:]


@pytest.mark.parametrize(("given", "expected"), _route("RTE-013", "RTE-024", "RTE-025"))
def test_addresses(given: Json, expected: Json) -> None:
    segments = _segments(given["request"])
    assert segments[0] == "{id}"
    with pytest.raises(GatewayError) as caught:
        parse_resource(given["request"], segments[1:])
    assert caught.value.status == expected["status"]


@pytest.mark.parametrize(
    ("given", "expected"), _route("RTE-016", "RTE-018", "RTE-020", "RTE-026", "RTE-029")
)
def test_bodies_that_are_refused(given: Json, expected: Json) -> None:
    body = given["request"].partition(" body ")[2].removesuffix(" (unquoted)").encode()
    with pytest.raises(GatewayError) as caught:
        check_json(parse_json(body), body)
    assert caught.value.status == expected["status"]
    assert caught.value.code == expected.get("error", caught.value.code)


@pytest.mark.parametrize(("given", "expected"), _route("RTE-019", "RTE-021", "RTE-028"))
def test_bodies_that_are_taken(given: Json, expected: Json) -> None:
    path = parse_resource("", _segments(given["request"])[1:])
    value = json.loads(given["request"].partition(" body ")[2])
    patched = given["request"].startswith("PATCH")
    value = (check_merge if patched else check_put)(THING, path, value)
    document = {"thingId": THING, "policyId": THING, "definition": "a:b:1"}
    twin = Twin("t", 1, THING, "", "", document)
    options = complete(Setter.TWIN_MODIFY, None, None, None)
    done = change(
        twin,
        Command(THING, path, value, "c", options, ("s",), action="merge" if patched else "put"),
    )
    assert done.document == {**document, path[0]: value}
    assert "command" in expected or expected["status"] == 200


@pytest.mark.parametrize(("given", "expected"), _route("RTE-022", "RTE-031"))
def test_thing_ids(given: Json, expected: Json) -> None:
    thing_id = "a" * 100 * 36 if "UUIDs" in given["request"] else ""
    with pytest.raises(GatewayError) as caught:
        check_thing_id(thing_id)
    assert (caught.value.status, caught.value.code) == (expected["status"], expected["error"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        p
        for p in load("http-body")
        if p.values[0].get("response-required") is False or "twin modify" in p.values[0]
    ],
)
def test_requests_that_want_no_body(given: Json, expected: Json) -> None:
    setter = Setter.TWIN_MODIFY if "twin modify" in given else Setter.LIVE
    acks = given.get("requested-acks")
    timeout_ms = 0 if given.get("timeout") == "0" else None
    options = complete(
        setter, None if acks is None else tuple(acks), given.get("response-required"), timeout_ms
    )
    forwarded = expected.get("forwarded", {"requested-acks": []})
    assert list(options.requested_acks) == forwarded["requested-acks"]
    assert options.response_required is False
    aggregator = Aggregator(THING, "c", options.requested_acks, 3_000, False)
    if "404" in given.get("backend", ""):
        outcome = aggregator.fail(error("things:thing.notfound", thing_id=THING))
    else:
        outcome = aggregator.respond(Response(204, None, {}))
    assert outcome is not None
    assert http_answer(outcome, False, {}).status == expected["status"]
