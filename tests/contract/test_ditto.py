"""Our OpenAPI document beside Ditto's: the same routes and answers, or a difference stated here."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.contract.ditto import ditto_file
from tests.gateways import ROOT, Json

AREA = re.compile(r"/api/2/(things|policies|whoami|acks|connections|search)\b")
"""What of both documents is compared."""
METHODS = ("get", "put", "patch", "post", "delete")

Route = tuple[str, str]

ROUTES_OF_OURS: dict[Route, str] = {
    ("get", "/api/2/acks/{correlationId}"): "what became of a request with Prefer: respond-async",
    ("get", "/api/2/acks/labels"): "who owns which label, for operators",
    ("get", "/api/2/acks/report"): "what became of requested acks, for operators",
    ("post", "/api/2/policies"): "Ditto has it, its document has not",
    **{
        ("get", f"/api/2/things/{{thingId}}{feature}/{box}/messages{subject}"): (
            "Ditto streams messages, its document does not say so"
        )
        for feature in ("", "/features/{featureId}")
        for box in ("inbox", "outbox")
        for subject in ("", "/{messageSubject}")
    },
}
STATUSES_OF_OURS: dict[str, str] = {
    "401": "every request is authenticated",
    "405": "the live channel cannot do everything; live-channel-condition is for queries",
    "408": "timeouts of requested acks and of the live channel",
    "429": "password checks are bounded",
    "431": "headers are bounded",
    "503": "the store may be away",
    "default": "a single requested ack, or a live response, is the answer",
}
"""Answers that Ditto gives too, or that follow from our limits; its document leaves them out."""
ACKS_OF_OURS: dict[str, str] = {
    "200": "several acks, all successful",
    "202": "no detailed answer was wanted",
    "204": "the single ack, or the responder, has no payload",
    "409": "the correlation-id belongs to another open request",
    "415": "the body is of another media type",
    "424": "several acks, at least one of them failed",
}
"""The same for requests that may ask for acks."""
CONNECTIONS_OF_OURS: dict[str, str] = {
    "304": "entity tags",
    "409": "somebody else has changed it meanwhile; a label that two targets issue",
    "412": "entity tags",
    "413": "the document is bounded",
    "415": "the body is of another media type",
    "504": "a connection that was only tried cannot be made",
}
"""The same for connections."""
SEARCH_OF_OURS: dict[str, str] = {
    "413": "the form is bounded",
    "415": "the body is of another media type",
}
"""The same for searches."""
OTHERS_OF_OURS: dict[tuple[Route, str], str] = {
    (("get", "/api/2/things"), "413"): "the number of ids is bounded",
    (("get", "/api/2/things"), "504"): "a search is behind it",
    (("get", "/api/2/whoami"), "400"): "headers are checked here too",
    (("put", "/api/2/things/{thingId}/policyId"), "403"): "as for every other part",
    (("patch", "/api/2/things/{thingId}/policyId"), "403"): "as for every other part",
}
STATUSES_OF_DITTO: dict[tuple[Route, str], str] = {
    (("get", "/api/2/things"), "414"): "a long address is 431 here",
    (("get", "/api/2/connections"), "404"): "none is an empty list",
    **{
        ((method, f"/api/2/search/things{below}"), "403"): "wrong credentials are 401"
        for method in ("get", "post")
        for below in ("", "/count")
    },
    (("post", "/api/2/connections"), "404"): "nothing is looked for",
    (("post", "/api/2/things"), "412"): "nothing is there yet that a condition could be about",
    (("get", "/api/2/things/{thingId}/definition"), "403"): "404, as for every other part",
    (("put", "/api/2/policies/{policyId}/entries/{label}/resources/{resourcePath}"), "304"): (
        "a PUT that changes nothing is 412"
    ),
}
"""Answers that Ditto's document has and ours has not."""
ROUTES_OF_DITTO: tuple[str, ...] = (
    "/api/2/things/{thingId}/migrateDefinition",
    "/api/2/policies/{policyId}/actions/",
    "/api/2/policies/{policyId}/imports",
    "/api/2/policies/{policyId}/entries/{label}/actions/",
    "/api/2/policies/{policyId}/entries/{label}/allowedAdditions",
    "/api/2/policies/{policyId}/entries/{label}/importable",
    "/api/2/policies/{policyId}/entries/{label}/namespaces",
    "/api/2/policies/{policyId}/entries/{label}/references",
)
"""Beginnings of routes that this gateway does not have: see docs/status.md."""


def routes(document: Json) -> dict[Route, set[str]]:
    """(method, path) -> statuses, of the compared part of a document."""
    return {
        (method, path): {str(status) for status in item[method]["responses"]}
        for path, item in document["paths"].items()
        if AREA.match(path)
        for method in METHODS
        if method in item
    }


@pytest.fixture(scope="module")
def ours() -> dict[Route, set[str]]:
    return routes(json.loads((ROOT / "openapi" / "openapi.json").read_text()))


@pytest.fixture(scope="module")
def dittos() -> dict[Route, set[str]]:
    file = ditto_file("ditto-api-2.yml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return routes(yaml.load(file.read_text(), Loader=loader))


def test_every_route_of_ours_is_one_of_ditto(
    ours: dict[Route, set[str]], dittos: dict[Route, set[str]]
) -> None:
    assert set(ours) - set(dittos) == set(ROUTES_OF_OURS)


def test_every_route_of_ditto_is_here_or_stated_as_missing(
    ours: dict[Route, set[str]], dittos: dict[Route, set[str]]
) -> None:
    missing = {path for _, path in set(dittos) - set(ours)}
    assert {path for path in missing if not path.startswith(ROUTES_OF_DITTO)} == set()
    for beginning in ROUTES_OF_DITTO:
        assert any(path.startswith(beginning) for path in missing), f"{beginning} is here now"


def test_every_status_of_ours_is_one_of_ditto_or_stated(
    ours: dict[Route, set[str]], dittos: dict[Route, set[str]]
) -> None:
    found = set()
    for route in set(ours) & set(dittos):
        more = ours[route] - dittos[route] - set(STATUSES_OF_OURS)
        if "424" in ours[route]:
            more -= set(ACKS_OF_OURS)
        elif "202" in ours[route]:
            more -= {"202", "415"}
        elif route[1].startswith("/api/2/connections"):
            more -= set(CONNECTIONS_OF_OURS)
        elif route[1].startswith("/api/2/search/") and route[0] == "post":
            more -= set(SEARCH_OF_OURS)
        found |= {(route, status) for status in more}
    assert found == set(OTHERS_OF_OURS)


def test_every_status_of_ditto_is_one_of_ours_or_stated(
    ours: dict[Route, set[str]], dittos: dict[Route, set[str]]
) -> None:
    found = {
        (route, status)
        for route in set(ours) & set(dittos)
        for status in dittos[route] - ours[route]
    }
    assert found == set(STATUSES_OF_DITTO)
