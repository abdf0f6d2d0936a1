"""JSON schemas of connections for the OpenAPI document: see connections/documents/reading.py."""

from __future__ import annotations

from typing import Any

from connections.documents.reading import (
    KINDS,
    MAX_CLIENTS,
    MAX_ITEMS,
    MAX_MAPPINGS,
    MAX_SOURCES,
    MAX_TARGETS,
    MAX_TEXT,
    STATUSES,
)

Json = dict[str, Any]

_TEXT: Json = {"type": "string", "maxLength": MAX_TEXT, "pattern": "^[^\\x00-\\x1F\\x7F]*$"}
_INSTANT: Json = {"type": ["string", "null"], "format": "date-time"}
_COUNT: Json = {"type": "integer", "minimum": 0}


def _ref(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _null(schema: Json) -> Json:
    """Optional fields may as well be null."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _array(items: Json, most: int = MAX_ITEMS, **more: Any) -> Json:
    return {"type": "array", "items": items, "maxItems": most, **more}


def _map(values: Json) -> Json:
    return {"type": "object", "additionalProperties": values, "maxProperties": MAX_ITEMS}


def _fields(required: Json, optional: Json, **more: Any) -> Json:
    """An object of these fields alone, and of ignored ones whose names begin with ``_``."""
    return {
        "type": "object",
        "properties": {**required, **{name: _null(one) for name, one in optional.items()}},
        "patternProperties": {"^_": {}},
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
        **more,
    }


def _said(schema: Json, description: str) -> Json:
    return {**schema, "description": description}


_SUBJECTS = _said(
    _array(_TEXT, minItems=1),
    "The subjects policies know it by; those of a source may have placeholders.",
)
_HEADERS = _said(_map(_TEXT), "Header -> its value, a text with placeholders.")
_MAPPING = _said(
    _array(_TEXT, MAX_MAPPINGS), "Names of built-in mappers, or of `mappingDefinitions`."
)
_QOS: Json = {"type": "integer", "minimum": 0, "maximum": 2}
_CLIENTS: Json = {"type": "integer", "minimum": 1, "maximum": MAX_CLIENTS, "default": 1}

_NEEDED: Json = {
    "connectionType": {"type": "string", "enum": [kind for kind in KINDS if kind != "hono"]},
    "uri": _said(
        {"type": "string", "maxLength": 2_048, "example": "ssl://user:password@broker:8883"},
        "`scheme://user:password@host:port/path`. A password is shown as `*****`.",
    ),
}
_FREE: Json = {
    "name": _TEXT,
    "connectionStatus": {"type": "string", "enum": list(STATUSES), "default": "unknown"},
    "sources": _array(_ref("ConnectionSource"), MAX_SOURCES),
    "targets": _array(_ref("ConnectionTarget"), MAX_TARGETS),
    "clientCount": _CLIENTS,
    "failoverEnabled": {"type": "boolean", "default": True},
    "validateCertificates": {"type": "boolean", "default": True},
    "processorPoolSize": {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 1},
    "specificConfig": _said(
        _map({"type": ["string", "number", "boolean", "null"]}), "What the kind of broker has."
    ),
    "mappingDefinitions": _map(_ref("ConnectionMapping")),
    "tags": _array(_TEXT),
    "ca": _said({"type": "string"}, "The authorities that are trusted, as PEM."),
    "credentials": _said(
        {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}},
        "Of type `client-cert`, for `http-push` also `user-pass`, `oauth-client-credentials`. "
        "Secrets are shown as `*****`; sent back like that they stay as they are.",
    ),
    "sshTunnel": _said(
        {"type": "object", "properties": {"enabled": {"type": "boolean", "enum": [False]}}},
        "Not supported.",
    ),
}
_ENTRY: Json = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "client": {"type": "string"},
        "address": {"type": "string"},
        "status": {"type": "string"},
        "recoveryStatus": {"type": "string"},
        "statusDetails": {"type": ["string", "null"]},
        "inStateSince": _INSTANT,
        "unsettled": _said(
            {"type": "integer", "minimum": 0},
            "Of a client: messages that the broker has given it and does not know to be done.",
        ),
    },
    "required": ["type", "client", "status"],
}
_METER: Json = {
    "type": "object",
    "properties": {**dict.fromkeys(("PT1M", "PT1H", "PT24H"), _COUNT), "lastMessageAt": _INSTANT},
}
_MEASURES: Json = {
    "type": "object",
    "description": "Type -> `success` and `failure`.",
    "additionalProperties": {"type": "object", "additionalProperties": _METER},
}
_ADDRESSES: Json = {
    "type": "object",
    "properties": {
        "addressMetrics": {"type": "object", "additionalProperties": _ref("ConnectionMeasures")}
    },
    "required": ["addressMetrics"],
}

CONNECTIONS: Json = {
    "NewConnection": _fields(_NEEDED, _FREE),
    "Connection": {
        "type": "object",
        "properties": {"id": {"type": "string"}, **_NEEDED, **_FREE},
        "description": "All of it, unless `fields` selects less.",
    },
    "ChangedConnection": _fields(_NEEDED, {"id": _TEXT, **_FREE}),
    "ConnectionSource": _fields(
        {"addresses": _array(_TEXT, minItems=1), "authorizationContext": _SUBJECTS},
        {
            "consumerCount": _CLIENTS,
            "qos": _QOS,
            "enforcement": _fields({"input": _TEXT}, {"filters": _array(_TEXT)}),
            "acknowledgementRequests": _fields({}, {"includes": _array(_TEXT), "filter": _TEXT}),
            "headerMapping": _HEADERS,
            "payloadMapping": _MAPPING,
            "declaredAcks": _said(
                _array(_TEXT), "Labels it acknowledges: `{{connection:id}}:<name>`."
            ),
            "replyTarget": _fields(
                {},
                {
                    "enabled": {"type": "boolean", "default": True},
                    "address": _TEXT,
                    "headerMapping": _HEADERS,
                    "expectedResponseTypes": _said(
                        _array(_TEXT), "Of `response`, `error` and `nack`; others are ignored."
                    ),
                },
            ),
        },
    ),
    "ConnectionTarget": _fields(
        {
            "address": _said(_TEXT, "May have placeholders."),
            "topics": _said(
                _array({**_TEXT, "example": "_/_/things/twin/events?filter=gt(attributes/a,1)"},
                       minItems=1),
                "What is published, with `namespaces`, `filter` and `extraFields`.",
            ),
            "authorizationContext": _SUBJECTS,
        },
        {
            "qos": _QOS,
            "issuedAcknowledgementLabel": _said(
                _TEXT, "The ack the broker's confirmation stands for."
            ),
            "headerMapping": _HEADERS,
            "payloadMapping": _MAPPING,
        },
    ),
    "ConnectionMapping": _fields(
        {"mappingEngine": _TEXT},
        {
            "options": {"type": "object", "maxProperties": MAX_ITEMS},
            "incomingConditions": _map(_TEXT),
            "outgoingConditions": _map(_TEXT),
        },
    ),
    "ConnectionState": {
        "type": "object",
        "properties": {
            "connectionId": {"type": "string"},
            "connectionStatus": _said({"type": "string"}, "What it is meant to be."),
            "liveStatus": _said({"type": "string"}, "What it is."),
            "recoveryStatus": {"type": "string"},
            "connectedSince": _INSTANT,
            **{
                name: {"type": "array", "items": _ref("ConnectionStateEntry")}
                for name in ("clientStatus", "sourceStatus", "targetStatus", "sshTunnelStatus")
            },
        },
        "required": ["connectionId", "connectionStatus", "liveStatus", "clientStatus"],
    },
    "ConnectionStateEntry": _ENTRY,
    "ConnectionMetrics": {
        "type": "object",
        "properties": {
            "connectionId": {"type": "string"},
            "containsFailures": {"type": "boolean"},
            "connectionMetrics": {
                "type": "object",
                "properties": dict.fromkeys(("inbound", "outbound"), _ref("ConnectionMeasures")),
                "required": ["inbound", "outbound"],
            },
            "sourceMetrics": _ADDRESSES,
            "targetMetrics": _ADDRESSES,
        },
        "required": [
            "connectionId", "containsFailures", "connectionMetrics", "sourceMetrics",
            "targetMetrics",
        ],
    },
    "ConnectionMeasures": _MEASURES,
    "ConnectionLogs": {
        "type": "object",
        "properties": {
            "connectionId": {"type": "string"},
            "connectionLogs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "correlationId": {"type": "string"},
                        "timestamp": {"type": "string", "format": "date-time"},
                        "category": {
                            "type": "string",
                            "enum": ["source", "target", "response", "connection"],
                        },
                        "type": {"type": "string"},
                        "level": {"type": "string", "enum": ["success", "failure"]},
                        "message": {"type": "string"},
                        "address": {"type": "string"},
                        "entityType": {"type": "string"},
                        "entityId": {"type": "string"},
                    },
                    "required": ["timestamp", "category", "type", "level", "message"],
                },
            },
            "enabledSince": _INSTANT,
            "enabledUntil": _INSTANT,
        },
        "required": ["connectionId", "connectionLogs"],
    },
}  # fmt: skip
"""Name -> schema."""
