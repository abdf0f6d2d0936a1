"""JSON schemas of what the HTTP API takes and gives, for the OpenAPI document.

They say what the checks in ``acks`` accept, so a request that a schema forbids is refused. What a
schema cannot say (a policy that must exist, keys that must not begin with a slash) is not said.
"""

from __future__ import annotations

from typing import Any

from acks.errors import CATALOGUE, error
from app.api.openapi_connection_schemas import CONNECTIONS
from app.api.openapi_search_schemas import SEARCH

Json = dict[str, Any]

_WORD = "[a-zA-Z0-9_]"
ID_PATTERN = rf"^([a-zA-Z]{_WORD}*([.\-]{_WORD}+)*)?:[^\x00-\x1F\x7F-\xFF/]+$"
_DEFINITION_PATTERN = r"^([a-zA-Z0-9_.\-]+:[a-zA-Z0-9_.\-]+:[a-zA-Z0-9_.\-]+|https?://\S+)$"

ANY: Json = {}
"""Any JSON value."""
OBJECT: Json = {"type": "object"}
OBJECT_OR_NULL: Json = {"type": ["object", "null"]}
_PERMISSIONS: Json = {
    "type": "array",
    "items": {"type": "string", "enum": ["READ", "WRITE", "EXECUTE"]},
}


def ref(schema: str) -> Json:
    """A reference to one of :data:`SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{schema}"}


def _object(properties: Json, *required: str, **more: Any) -> Json:
    schema: Json = {"type": "object", "properties": properties, **more}
    return {**schema, "required": list(required)} if required else schema


def _map(of: Json, **more: Any) -> Json:
    return {"type": "object", "additionalProperties": of, **more}


def or_null(schema: Json) -> Json:
    """What is so, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


_FEATURE_EXAMPLE: Json = {"properties": {"brightness": 70}}
_THING_FIELDS: Json = {
    "definition": or_null(ref("Definition")),
    "attributes": {**OBJECT_OR_NULL, "example": {"colour": "red"}},
    "features": {
        **or_null(_map(or_null(ref("Feature")))),
        "example": {"lamp": _FEATURE_EXAMPLE},
    },
}
_POLICY_EXAMPLE: Json = {
    "entries": {
        "owner": {
            "subjects": {"nginx:ditto": {"type": "user"}},
            "resources": {
                "thing:/": {"grant": ["READ", "WRITE"], "revoke": []},
                "policy:/": {"grant": ["READ", "WRITE"], "revoke": []},
                "message:/": {"grant": ["READ", "WRITE"], "revoke": []},
            },
        }
    }
}

_STORED: Json = {
    "_revision": {"type": "integer", "minimum": 1, "description": "With `fields` only."},
    "_created": _text("With `fields` only.", format="date-time"),
    "_modified": _text("With `fields` only.", format="date-time"),
}

_THINGS: Json = {
    "EntityId": {
        "type": "string",
        "maxLength": 256,
        "pattern": ID_PATTERN,
        "description": "`namespace:name`",
        "example": "org.example:lamp-1",
    },
    "Definition": {
        "type": "string",
        "pattern": _DEFINITION_PATTERN,
        "description": "`namespace:name:version`, or a URL.",
        "example": "org.example:lamp:1.0.0",
    },
    "Thing": _object(
        {
            "thingId": ref("EntityId"),
            "policyId": ref("EntityId"),
            **_THING_FIELDS,
            "_namespace": _text("With `fields` only."),
            **_STORED,
            "_policy": {**OBJECT, "description": "With `fields` only."},
        },
        description="A digital twin. With `fields` only what was selected is there.",
    ),
    "NewThing": _object(
        {
            "thingId": {**ref("EntityId"), "description": "That of the path, if it is given."},
            "policyId": or_null(ref("EntityId")),
            **_THING_FIELDS,
            "_policy": {
                "type": ["object", "null"],
                "description": "The policy to create the thing with. Without it and `policyId` the "
                "creator may do everything and nobody else anything.",
            },
        },
        description="A thing to store. Other fields are dropped, as are null ones.",
        example={"attributes": {"colour": "red"}, "features": {"lamp": _FEATURE_EXAMPLE}},
    ),
    "PostedThing": {
        "allOf": [ref("NewThing")],
        "not": {"required": ["thingId"]},
        "description": "As `NewThing`, but without `thingId`: the gateway makes one.",
        "example": {"attributes": {"colour": "red"}},
    },
    "ThingPatch": _object(
        {
            "thingId": ref("EntityId"),
            "policyId": ref("EntityId"),
            **_THING_FIELDS,
        },
        description="A merge patch (RFC 7396) of a thing; null deletes.",
        example={"attributes": {"colour": None, "size": 3}},
    ),
    "Feature": _object(
        {
            "definition": or_null(ref("FeatureDefinition")),
            "properties": OBJECT_OR_NULL,
            "desiredProperties": OBJECT_OR_NULL,
        },
        description="Other fields are dropped.",
        example=_FEATURE_EXAMPLE,
    ),
    "FeatureDefinition": {"type": "array", "minItems": 1, "items": ref("Definition")},
}

_POLICY_FIELDS: Json = {"policyId": ref("EntityId"), "entries": ref("PolicyEntries")}
_ENTRY_EXAMPLE: Json = _POLICY_EXAMPLE["entries"]["owner"]

_POLICIES: Json = {
    "Policy": _object(
        {**_POLICY_FIELDS, **_STORED},
        description="Who may do what. With `fields` only what was selected is there.",
        example={"policyId": "org.example:lamp-1", **_POLICY_EXAMPLE},
    ),
    "NewPolicy": _object(_POLICY_FIELDS, "entries", example=_POLICY_EXAMPLE),
    "PostedPolicy": {
        "allOf": [ref("NewPolicy")],
        "not": {"required": ["policyId"]},
        "description": "As `NewPolicy`, but without `policyId`: the gateway makes one.",
        "example": _POLICY_EXAMPLE,
    },
    "PolicyEntries": _map(ref("PolicyEntry"), example=_POLICY_EXAMPLE["entries"]),
    "PolicyEntry": _object(
        {
            "subjects": ref("PolicySubjects"),
            "resources": ref("PolicyResources"),
            "importable": {"enum": ["implicit", "explicit", "never", None]},
        },
        "subjects",
        "resources",
        example=_ENTRY_EXAMPLE,
    ),
    "PolicySubjects": _map(ref("PolicySubject"), example=_ENTRY_EXAMPLE["subjects"]),
    "PolicySubject": _object(
        {
            "type": _text("Says what kind of subject it is; decides nothing."),
            "expiry": {
                "type": ["string", "null"],
                "description": "An ISO-8601 instant to come, at which it is deleted.",
            },
            "announcement": or_null(ref("SubjectAnnouncement")),
        },
        "type",
        example={"type": "user"},
    ),
    "SubjectAnnouncement": _object(
        {
            "beforeExpiry": or_null(
                _text("How long ahead of the expiry it is announced.", pattern="^[1-9][0-9]*[hms]$")
            ),
            "whenDeleted": {"type": ["boolean", "null"]},
            "requestedAcks": or_null(
                _object(
                    {
                        "labels": {"type": "array", "items": {"type": "string"}},
                        "timeout": or_null(_text("How long it is waited for them each time.")),
                    },
                    "labels",
                )
            ),
            "randomizationInterval": or_null(
                _text("By how much at most it may come earlier; 5m if it is not given.")
            ),
        },
        description="Tells the subject over WebSocket that it is deleted, or soon will be.",
        example={"beforeExpiry": "5m", "whenDeleted": True},
    ),
    "PolicyResources": _map(ref("PolicyResource"), example=_ENTRY_EXAMPLE["resources"]),
    "PolicyResource": _object(
        {"grant": or_null(_PERMISSIONS), "revoke": or_null(_PERMISSIONS)},
        anyOf=[{"required": ["grant"]}, {"required": ["revoke"]}],
        example={"grant": ["READ", "WRITE"], "revoke": []},
    ),
    "WhoAmI": _object(
        {
            "defaultSubject": {"type": "string", "example": "nginx:ditto"},
            "subjects": {"type": "array", "items": {"type": "string"}},
        },
        "defaultSubject",
        "subjects",
    ),
}


def _acks_example() -> Json:
    late = error("acknowledgement:request.timeout", timeout_ms=42_000)
    return {
        "twin-persisted": {
            "status": 201,
            "payload": {"thingId": "org.example:lamp-1", "policyId": "org.example:lamp-1"},
            "headers": {
                "correlation-id": "db878735",
                "response-required": False,
                "etag": '"rev:1"',
                "entity-revision": 1,
                "ditto-originator": "nginx:ditto",
                "location": "http://127.0.0.1:8080/api/2/things/org.example:lamp-1",
            },
        },
        "my:ack": {
            "status": late.status,
            "payload": late.to_json(),
            "headers": {"correlation-id": "db878735", "response-required": False},
        },
    }


FAILED_ACKS: Json = _acks_example()
"""An aggregated answer in which an ack is missing: 424."""
GOOD_ACKS: Json = {
    **FAILED_ACKS,
    "my:ack": {
        "status": 200,
        "payload": {"done": True},
        "headers": {"correlation-id": "db878735", "response-required": False},
    },
}
"""An aggregated answer in which all acks are successful: 200."""

_ANSWERS: Json = {
    "Error": _object(
        {
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "error": _text("A stable code of openapi/errors.json.", enum=sorted(CATALOGUE)),
            "message": {"type": "string"},
            "description": {"type": "string"},
            "href": {"type": "string"},
            "invalidHeaderKey": _text("The header that is wrong, if it is one."),
        },
        "status",
        "error",
        "message",
    ),
    "AggregatedAcknowledgement": _object(
        {
            "status": {"type": "integer", "minimum": 100, "maximum": 599},
            "payload": {"description": "Any JSON; absent if the acknowledgement has none."},
            "headers": OBJECT,
        },
        "status",
        "headers",
    ),
    "Acknowledgements": _map(
        ref("AggregatedAcknowledgement"),
        description="One entry per requested label, in the order they were requested.",
    ),
    "DeclaredLabels": _object(
        {
            "labels": {
                "type": "array",
                "items": _object(
                    {
                        "label": {"type": "string"},
                        "group": _text("The group that owns it; absent for a single owner."),
                        "owners": {
                            "type": "array",
                            "items": _object(
                                {
                                    "node": _text("The gateway process or Spark query."),
                                    "session": {"type": "string"},
                                    "leaseMs": {
                                        "type": "integer",
                                        "description": "What is left of the node's lease, ms.",
                                    },
                                    "subjects": {
                                        "type": "array",
                                        "items": {"type": "string"},
                                        "description": "Known of sessions of the process that "
                                        "answers.",
                                    },
                                },
                                "node",
                                "session",
                                "leaseMs",
                            ),
                        },
                    },
                    "label",
                    "owners",
                ),
            },
            "more": {"type": "boolean", "description": "Whether there are too many to show."},
        },
        "labels",
        "more",
    ),
    "AckReport": _object(
        {
            "windows": {
                "type": "array",
                "items": _object(
                    {
                        "start": {"type": "string", "format": "date-time"},
                        "end": {"type": "string", "format": "date-time"},
                        "labels": _map(ref("ServiceLevel")),
                    },
                    "start",
                    "end",
                    "labels",
                ),
            },
            "more": {"type": "boolean", "description": "Whether there are too many to show."},
        },
        "windows",
        "more",
    ),
    "ServiceLevel": _object(
        {
            "requested": {"type": "integer", "description": "Acks asked for: the sum of the rest."},
            "success": {"type": "integer", "description": "Given with a status 200-299."},
            "failed": {"type": "integer", "description": "Given with another status."},
            "weak": {"type": "integer", "description": "Issued by a gateway."},
            "timedOut": {"type": "integer", "description": "Not given in time."},
            "latencyMs": {
                **_object(
                    {name: {"type": "number"} for name in ("p50", "p95", "p99", "max")},
                    "p50",
                    "p95",
                    "p99",
                    "max",
                ),
                "description": "From the request to the ack, of success and failed.",
            },
        },
        "requested",
        "success",
        "failed",
        "weak",
        "timedOut",
    ),
    "AcceptedRequest": _object(
        {
            "correlationId": {"type": "string"},
            "thingId": ref("EntityId"),
            "state": {"type": "string", "enum": ["pending", "done"]},
            "requestedAcks": {"type": "array", "items": {"type": "string"}},
            "acks": {**ref("Acknowledgements"), "description": "Those that have come."},
            "owed": {"type": "array", "items": {"type": "string"}},
            "acceptedAt": {"type": "string", "format": "date-time"},
            "deadline": {"type": "string", "format": "date-time"},
            "expiresAt": _text("Until when this resource is kept.", format="date-time"),
            "outcome": _object(
                {
                    "status": {"type": "integer", "minimum": 100, "maximum": 599},
                    "body": {},
                    "headers": _map({"type": "string"}),
                },
                "status",
                "headers",
                description="What the answer would have been; absent while it is pending.",
            ),
        },
        "correlationId",
        "thingId",
        "state",
        "requestedAcks",
        "acks",
        "owed",
        "acceptedAt",
        "deadline",
    ),
}

SCHEMAS: Json = {**_THINGS, **_POLICIES, **_ANSWERS, **SEARCH, **CONNECTIONS}
