"""Answers of the HTTP API by status, for the OpenAPI document; errors are the catalogue's."""

from __future__ import annotations

from string import Formatter
from typing import Any

from acks.error_kind import ErrorKind
from acks.errors import CATALOGUE, GatewayError
from app.api.openapi_schemas import FAILED_ACKS, GOOD_ACKS, ref

Json = dict[str, Any]

_TEXTS = {
    400: "Something in the request is wrong; the description says what.",
    401: "Authentication is missing or wrong.",
    403: "You may not do this.",
    404: "Not there, or you may not see it.",
    405: "Not possible this way, or not on this channel.",
    408: "The timeout was reached. Without a body for a single ack and response-required=false.",
    409: "It exists already, or the correlation-id is in use by another open request.",
    412: "A condition or precondition does not hold.",
    413: "The body, or what it would make, is too large.",
    415: "The body is not of the media type that is expected here.",
    429: "Too many requests at once.",
    431: "The headers are too large.",
    503: "Temporarily unavailable; try again.",
    504: "The broker cannot be reached, or does not let us in.",
}
_GENERAL = ("", "gateway")
_AREAS: dict[str, tuple[str, ...]] = {
    "Things": (*_GENERAL, "acknowledgement", "things"),
    "Messages": (*_GENERAL, "acknowledgement", "messages", "things:thing", "things:condition"),
    "Policies": (*_GENERAL, "policies"),
    "Acks": (*_GENERAL, "acknowledgement:request"),
    "Connections": (*_GENERAL, "connectivity", "placeholder", "acknowledgement:label"),
    "Search": (*_GENERAL, "thing-search:search"),
    "General": _GENERAL,
}
"""Which codes may be an answer where: domains, or the beginnings of codes."""
_NOT_HERE = (
    "acknowledgement:label.not.",
    "acknowledgement:ditto.",
    "acknowledgement:correlation-id.",
    "acknowledgement:request.parsing.",
    "connectivity:connection.id.",
    "connectivity:kafka.",
    "connectivity:message.",
)
"""Errors of subscribers and of messages of connections, which have no HTTP answers."""
_ONLY_HERE = {"gateway:query.": "Search"}
"""Beginnings of codes that are answers in one area alone."""
_TEXTS_HERE = {
    ("Search", 504): "The search took longer than its timeout, or than this gateway allows.",
}
"""What a status says in one area, where that is something else."""
_FACTS: dict[str, object] = {
    "thing_id": "org.example:lamp-1",
    "policy_id": "org.example:lamp-1",
    "connection_id": "7e2ee9b1-35a4-4a5b-8a7c-2fbaa0a8a7f4",
    "feature_id": "lamp",
    "path": "/colour",
    "label": "my:ack",
    "correlation_id": "db878735",
    "timeout_ms": 10_000,
    "max_ms": 60_000,
    "limit": 102_400,
    "size": 110_000,
    "header": "timeout",
    "method": "POST",
    "allowed": "GET, PUT",
}


_LIMITS = {
    "headers.too.large": 5_120,
    "request.toolarge": 1_048_576,
    "messages:payload.toolarge": 256_000,
}
"""The limits of those errors that do not have the usual one."""


class _Sample(Formatter):
    """Fills the templates of the catalogue; facts without a sample show their name."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        return kwargs.get(key) or _FACTS.get(str(key), _Name(key))


class _Name:
    def __init__(self, key: int | str) -> None:
        self._key = key

    def __format__(self, spec: str) -> str:
        return f"<{self._key}>"


def _example(kind: ErrorKind) -> Json:
    facts = {"limit": _LIMITS[kind.code]} if kind.code in _LIMITS else {}
    fill = _Sample().format
    description = None if kind.description is None else fill(kind.description, **facts)
    return GatewayError(kind, fill(kind.message, **facts), description).to_json()


def _belongs(code: str, area: str) -> bool:
    if code.startswith(_NOT_HERE):
        return False
    if any(code.startswith(one) and area != its for one, its in _ONLY_HERE.items()):
        return False
    domain = code.partition(":")[0] if ":" in code else ""
    return any(code.startswith(f"{one}.") if ":" in one else domain == one for one in _AREAS[area])


def json_content(schema: Json, **more: Any) -> Json:
    """The ``content`` of a JSON body."""
    return {"application/json": {"schema": schema, **more}}


def _error(area: str, status: int) -> Json:
    examples = {
        kind.code: {"value": _example(kind)}
        for kind in CATALOGUE.values()
        if kind.status == status and _belongs(kind.code, area)
    }
    content = json_content(ref("Error"), **({"examples": examples} if examples else {}))
    text = _TEXTS_HERE.get((area, status), _TEXTS[status])
    return {"description": text, "content": content}


def _header(text: str) -> Json:
    return {"description": text, "schema": {"type": "string"}}


ETAG: Json = {"etag": _header('`"rev:4"` of a thing or policy, `"hash:..."` of a part.')}
LOCATION: Json = {"location": _header("The address of what was created.")}

ANSWERS: Json = {
    f"{area}{status}": _error(area, status) for area in _AREAS for status in sorted(_TEXTS)
} | {
    "NotModified": {"description": "It is still what `if-none-match` names.", "headers": ETAG},
    "Changed": {"description": "Changed.", "headers": ETAG},
    "Accepted": {
        "description": "Accepted: no detailed answer was wanted, or `prefer: respond-async`.",
        "headers": {
            "location": _header("With `respond-async`: where the outcome will be."),
            "preference-applied": _header("With `respond-async`."),
        },
    },
    "AllAcknowledged": {
        "description": "Several acknowledgements, all successful.",
        "content": json_content(ref("Acknowledgements"), example=GOOD_ACKS),
    },
    "NotAllAcknowledged": {
        "description": "Several acknowledgements, at least one of them failed.",
        "content": json_content(ref("Acknowledgements"), example=FAILED_ACKS),
    },
    "SingleAcknowledgement": {
        "description": "A single requested custom acknowledgement answers with its own status and "
        "payload, whatever they are; so does the responder of the live channel.",
    },
}


def answer(name: str) -> Json:
    """A reference to one of :data:`ANSWERS`."""
    return {"$ref": f"#/components/responses/{name}"}


def errors(area: str, *statuses: int) -> Json:
    """Responses for these statuses, with the catalogue's errors of ``area`` as examples."""
    return {str(status): answer(f"{area}{status}") for status in statuses}
