"""OpenAPI operations of the hot routes, kept by hand because those routes are plain ASGI."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SECURITY: Json = {"basic": {"type": "http", "scheme": "basic"}}

SCHEMAS: Json = {
    "Thing": {
        "type": "object",
        "properties": {
            "thingId": {"type": "string", "example": "org.example:lamp-1"},
            "policyId": {"type": "string"},
            "definition": {"type": "string", "example": "org.example:lamp:1.0.0"},
            "attributes": {"type": "object", "additionalProperties": True},
            "features": {"type": "object", "additionalProperties": {"type": "object"}},
        },
    },
    "Error": {
        "type": "object",
        "required": ["status", "error", "message"],
        "properties": {
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "error": {"type": "string", "example": "things:thing.notfound"},
            "message": {"type": "string"},
            "description": {"type": "string"},
            "href": {"type": "string"},
        },
    },
    "AggregatedAcknowledgement": {
        "type": "object",
        "required": ["status", "headers"],
        "properties": {
            "status": {"type": "integer", "minimum": 100, "maximum": 599},
            "payload": {"description": "Any JSON; absent if the acknowledgement has none."},
            "headers": {"type": "object", "additionalProperties": True},
        },
    },
    "Acknowledgements": {
        "type": "object",
        "description": "One entry per requested label, in the order they were requested.",
        "additionalProperties": {"$ref": "#/components/schemas/AggregatedAcknowledgement"},
        "example": {
            "twin-persisted": {
                "status": 201,
                "payload": {"thingId": "org.example:lamp-1", "policyId": "org.example:lamp-1"},
                "headers": {
                    "correlation-id": "db878735",
                    "response-required": False,
                    "etag": '"rev:1"',
                    "location": "http://127.0.0.1:8080/api/2/things/org.example:lamp-1",
                },
            },
            "my:ack": {
                "status": 408,
                "payload": {
                    "status": 408,
                    "error": "acknowledgement:request.timeout",
                    "message": "The acknowledgement request reached the specified timeout of "
                    "42,000ms.",
                    "description": "Try increasing the timeout and make sure that the requested "
                    "acknowledgement is sent back in time.",
                },
                "headers": {"correlation-id": "db878735", "response-required": False},
            },
        },
    },
}


def _parameter(name: str, place: str, text: str, schema: Json, required: bool = False) -> Json:
    return {
        "name": name,
        "in": place,
        "description": text,
        "required": required,
        "schema": schema,
    }


_THING_ID = _parameter(
    "thingId", "path", "`namespace:name`", {"type": "string", "maxLength": 256}, True
)
_PATH = _parameter(
    "attributePath", "path", "JSON pointer inside the attributes", {"type": "string"}, True
)
_ACK_HEADERS: tuple[tuple[str, str, Json], ...] = (
    (
        "requested-acks",
        "Labels, comma separated or a JSON array, that must be acknowledged before the answer. "
        "Default: `twin-persisted`.",
        {"type": "string", "example": "twin-persisted,my:ack"},
    ),
    (
        "timeout",
        "How long to wait: `42s`, `250ms`, `1m`; at most 60 s, which is the default.",
        {"type": "string", "example": "10s"},
    ),
    (
        "response-required",
        "Whether a detailed answer is wanted. Default: true, unless `timeout` is zero or "
        "`requested-acks` is empty.",
        {"type": "string", "enum": ["true", "false"]},
    ),
)
_ACK_PARAMETERS = [
    _parameter(name, place, text, schema)
    for name, text, schema in _ACK_HEADERS
    for place in ("header", "query")
] + [_parameter("correlation-id", "header", "Default: a random UUID.", {"type": "string"})]


def _json(schema: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _errors(*statuses: int) -> Json:
    texts = {
        400: "Something in the request is wrong; the description says what.",
        401: "Authentication is missing or wrong.",
        403: "You may not change this.",
        404: "Not there, or you may not see it.",
        405: "The method does not exist here.",
        408: "The timeout was reached.",
        409: "The correlation-id is in use by another open request.",
        413: "The body or the thing is too large.",
        415: "The body is not JSON.",
        429: "Too many requests at once.",
        431: "The headers are too large.",
        503: "Temporarily unavailable; try again.",
    }
    return {
        str(status): {"description": texts[status], "content": _json("Error")}
        for status in statuses
    }


def _put(summary: str, parameters: list[Json], schema: Json) -> Json:
    return {
        "tags": ["Things"],
        "summary": summary,
        "parameters": [*parameters, *_ACK_PARAMETERS],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "Several acknowledgements, all successful.",
                "content": _json("Acknowledgements"),
            },
            "201": {
                "description": "Created; the body is what was created.",
                "headers": {"Location": {"schema": {"type": "string"}}},
                "content": {"application/json": {"schema": schema}},
            },
            "202": {"description": "Accepted: no detailed answer was wanted."},
            "204": {"description": "Changed."},
            **_errors(400, 401, 403, 404, 405, 408, 409, 413, 415),
            "424": {
                "description": "Several acknowledgements, at least one of them failed.",
                "content": _json("Acknowledgements"),
            },
            **_errors(429, 431, 503),
            "default": {
                "description": "A single requested custom acknowledgement answers with its own "
                "status and payload.",
            },
        },
    }


_OBJECT: Json = {"type": "object", "additionalProperties": True}

OPERATIONS: Json = {
    "/api/2/things/{thingId}": {
        "get": {
            "tags": ["Things"],
            "summary": "Read a thing",
            "parameters": [_THING_ID],
            "responses": {
                "200": {"description": "The thing.", "content": _json("Thing")},
                **_errors(400, 401, 404, 405, 429, 431, 503),
            },
        },
        "put": _put(
            "Create or replace a thing", [_THING_ID], {"$ref": "#/components/schemas/Thing"}
        ),
    },
    "/api/2/things/{thingId}/attributes": {
        "put": _put("Create or replace all attributes", [_THING_ID], _OBJECT)
    },
    "/api/2/things/{thingId}/attributes/{attributePath}": {
        "put": _put("Create or replace an attribute", [_THING_ID, _PATH], {})
    },
    "/ws/2": {
        "get": {
            "tags": ["WebSocket"],
            "summary": "Subscribe to events and acknowledge them (see asyncapi.yaml)",
            "parameters": [
                _parameter(
                    "declared-acks",
                    "query",
                    "Labels this subscriber will acknowledge; unique in the cluster.",
                    {"type": "string", "example": "my:ack"},
                )
            ],
            "responses": {
                "101": {"description": "Switched to WebSocket."},
                **_errors(400, 401, 404, 429, 431),
            },
        }
    },
}
