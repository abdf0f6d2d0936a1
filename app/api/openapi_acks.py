"""OpenAPI operations of acknowledgements: accepted requests, labels, the report."""

from __future__ import annotations

from typing import Any

from app.api.openapi_answers import errors, json_content
from app.api.openapi_parameters import parameters
from app.api.openapi_schemas import ref

Json = dict[str, Any]

_ACCEPTED = "/api/2/acks/{correlationId}"
_STATUSES = (400, 401, 429, 431, 503)


def _operation(name: str, summary: str, params: list[Json], answers: Json, *statuses: int) -> Json:
    found = {**answers, **errors("Acks", *_STATUSES, *statuses)}
    return {
        "tags": ["Acks"],
        "summary": summary,
        "operationId": name,
        "parameters": [*params, *parameters("", "correlation-id")],
        "responses": dict(sorted(found.items())),
    }


def _query(name: str, text: str, **schema: Any) -> Json:
    """A parameter that no other resource has."""
    return {
        "name": name,
        "in": "query",
        "description": text,
        "required": False,
        "schema": {"type": "string", **schema},
    }


def _accepted() -> Json:
    answers = {
        "200": {
            "description": "The acknowledgements so far, and the outcome once it is there. With "
            "`accept: text/event-stream` a stream of events, the last of them the outcome.",
            "content": {
                **json_content(ref("AcceptedRequest")),
                "text/event-stream": {"schema": {"type": "string"}},
            },
        },
        "204": {"description": "A stream whose client has seen all events already."},
    }
    params = parameters(_ACCEPTED, "last-event-id")
    return _operation("getAcks", "What became of an accepted request", params, answers, 404)


def _labels() -> Json:
    answers = {
        "200": {
            "description": "All declared labels, for operators.",
            "content": json_content(ref("DeclaredLabels")),
        },
    }
    label = _query("label", "Of this label alone; may be repeated. Example: `my:ack`.")
    return _operation("getLabels", "Who has declared which label", [label], answers, 403)


def _report() -> Json:
    answers = {
        "200": {
            "description": "How well labels are acknowledged, for operators; from the Spark job "
            "ack-report.",
            "content": json_content(ref("AckReport")),
        },
    }
    example = "Example: `2026-01-31T12:00:00Z`."
    params = [
        _query("label", "Of these labels alone, separated by commas. Example: `my:ack`."),
        _query(
            "from", f"Windows that begin at this instant or later. {example}", format="date-time"
        ),
        _query("to", f"Windows that begin before this instant. {example}", format="date-time"),
    ]
    return _operation("getReport", "How well labels are acknowledged", params, answers, 403)


ACKS: Json = {
    _ACCEPTED: {"get": _accepted()},
    "/api/2/acks/labels": {"get": _labels()},
    "/api/2/acks/report": {"get": _report()},
}
"""Path -> method -> operation."""
