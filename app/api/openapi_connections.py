"""OpenAPI operations of connections (spec websocket-... 4.6)."""

from __future__ import annotations

from typing import Any

from app.api.openapi_answers import ETAG, LOCATION, answer, errors, json_content
from app.api.openapi_parameters import parameters
from app.api.openapi_schemas import ref

Json = dict[str, Any]

_COLLECTION = "/api/2/connections"
_ONE = f"{_COLLECTION}/{{connectionId}}"
_TAGS = ("if-match", "if-none-match")
_ALWAYS = (400, 401, 403, 429, 431, 503)
_VIEWS = (
    ("status", "ConnectionState", "How a connection and its clients are"),
    ("metrics", "ConnectionMetrics", "What a connection has consumed and published"),
    ("logs", "ConnectionLogs", "What has happened on a connection lately"),
)


def _operation(
    name: str, summary: str, path: str, names: tuple[str, ...], responses: Json, *statuses: int
) -> Json:
    found = {**responses, **errors("Connections", *_ALWAYS, *statuses)}
    return {
        "tags": ["Connections"],
        "summary": summary,
        "operationId": name,
        "parameters": parameters(path, *names, "correlation-id"),
        "responses": dict(sorted(found.items())),
    }


def _found(schema: Json, **more: Any) -> Json:
    return {"200": {"description": "What is there.", "content": json_content(schema), **more}}


def _with_body(operation: Json, media_type: str, schema: Json) -> Json:
    body = {"required": True, "content": {media_type: {"schema": schema}}}
    return {**operation, "requestBody": body}


def _collection() -> Json:
    listed = _found({"type": "array", "items": {"anyOf": [ref("Connection"), {"type": "string"}]}})
    created: Json = {
        "200": {
            "description": "With `dry-run`: it can be connected.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        "201": {
            "description": "Created; the body is what was created.",
            "headers": {**ETAG, **LOCATION},
            "content": json_content(ref("Connection")),
        },
    }
    post = _operation(
        "postConnection", "Create a connection", "", ("dry-run",), created, 409, 413, 415, 504
    )
    return {
        "get": _operation(
            "getConnections", "Read all connections", "", ("fields", "ids-only"), listed
        ),
        "post": _with_body(post, "application/json", ref("NewConnection")),
    }


def _single() -> Json:
    changed = {"204": answer("Changed")}
    put = _operation(
        "putConnection", "Replace a connection", _ONE, _TAGS, changed, 404, 409, 412, 413, 415
    )
    return {
        "get": _operation(
            "getConnection",
            "Read a connection",
            _ONE,
            ("fields", *_TAGS),
            {**_found(ref("Connection"), headers=ETAG), "304": answer("NotModified")},
            404,
            412,
        ),
        "put": _with_body(put, "application/json", ref("ChangedConnection")),
        "delete": _operation(
            "deleteConnection", "Delete a connection", _ONE, _TAGS, changed, 404, 412
        ),
    }


def _command() -> Json:
    path = f"{_ONE}/command"
    done: Json = {"200": {"description": "The command is on its way to the clients."}}
    post = _operation(
        "postConnectionCommand", "Open, close or watch a connection", path, (), done,
        404, 409, 413, 415,
    )  # fmt: skip
    names = (
        "openConnection", "closeConnection", "resetConnectionMetrics", "enableConnectionLogs",
        "resetConnectionLogs",
    )  # fmt: skip
    schema = {"type": "string", "enum": [f"connectivity.commands:{name}" for name in names]}
    return {"post": _with_body(post, "text/plain", schema)}


CONNECTIONS: Json = {
    _COLLECTION: _collection(),
    _ONE: _single(),
    f"{_ONE}/command": _command(),
    **{
        f"{_ONE}/{part}": {
            "get": _operation(
                f"getConnection{part.capitalize()}", summary, f"{_ONE}/{part}", (),
                _found(ref(schema)), 404,
            )
        }
        for part, schema, summary in _VIEWS
    },
}  # fmt: skip
"""Path -> method -> operation."""
