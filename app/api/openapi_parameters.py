"""Parameters of the HTTP API, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from app.api.openapi_schemas import ref

Json = dict[str, Any]

_BOOLEAN: Json = {"type": "string", "enum": ["true", "false"]}
_TEXT: Json = {"type": "string"}
_PART: Json = {"type": "string", "minLength": 1}
_POINTER = "a JSON pointer without its first slash; a slash inside a key is `~1` or `%2F`."


def _path(text: str, schema: Json) -> tuple[str, str, Json]:
    return ("path", text, schema)


_ROWS: dict[str, tuple[str, str, Json]] = {
    "thingId": _path("`namespace:name`", ref("EntityId")),
    "attributePath": _path(f"Where in the attributes: {_POINTER}", {**_PART, "example": "colour"}),
    "featureId": _path("The feature's name.", {**_PART, "example": "lamp"}),
    "propertyPath": _path(f"Where in the properties: {_POINTER}", {**_PART, "example": "on"}),
    "messageSubject": _path(
        "What the message is about; may contain slashes.", {**_PART, "example": "ask"}
    ),
    "policyId": _path("`namespace:name`", ref("EntityId")),
    "label": _path("The entry's label.", {**_PART, "example": "owner"}),
    "subjectId": _path("`issuer:name`", {**_PART, "example": "nginx:ditto"}),
    "resourcePath": _path(
        "Kind and path, e.g. `thing:/`",
        {
            "type": "string",
            "pattern": "^(thing|policy|message):(/.*)?$",
            "example": "thing:/",
        },
    ),
    "correlationId": _path("That of the accepted request.", _PART),
    "connectionId": _path(
        "The connection's generated id.",
        {"type": "string", "pattern": "^[a-zA-Z0-9_:-]{1,100}$"},
    ),
    "ids-only": ("query", "Answer with the ids alone.", _BOOLEAN),
    "dry-run": ("query", "Connect and disconnect again; nothing is created.", _BOOLEAN),
    "requested-acks": (
        "both",
        "Labels, comma separated or a JSON array, that must be acknowledged before the answer. "
        "The default depends on the other two headers; see the documentation.",
        {**_TEXT, "example": "twin-persisted,my:ack"},
    ),
    "response-required": ("both", "Whether a detailed answer is wanted.", _BOOLEAN),
    "timeout": (
        "both",
        "How long to wait: `42s`, `250ms`, `1m`; at most 60 s, which is the default.",
        {**_TEXT, "example": "10s"},
    ),
    "channel": (
        "query",
        "Ask the digital twin, which is the default, or the live device. Also as a header.",
        {"type": "string", "enum": ["twin", "live"]},
    ),
    "condition": (
        "query",
        "An RQL expression that the thing must fulfil, else 412. Also as a header.",
        {**_TEXT, "example": 'eq(attributes/colour,"red")'},
    ),
    "live-channel-condition": (
        "query",
        "An RQL expression; if the twin fulfils it, the live device is asked. Also as a header.",
        _TEXT,
    ),
    "live-channel-timeout-strategy": (
        "query",
        "If the device does not answer in time: fail with 408, which is the default, or answer "
        "from the twin. Also as a header.",
        {"type": "string", "enum": ["fail", "use-twin"]},
    ),
    "allow-policy-lockout": (
        "query",
        "Allow a policy without anybody who may change it. Also as a header.",
        _BOOLEAN,
    ),
    "if-match": (
        "header",
        "Entity tags of which the present one must be among, or `*`; else 412.",
        {**_TEXT, "example": '"rev:4"'},
    ),
    "if-none-match": (
        "header",
        "Entity tags of which the present one must not be among, or `*`; else 304 or 412.",
        {**_TEXT, "example": '"rev:4"'},
    ),
    "if-equal": (
        "header",
        "What to do if the value would not change: write it all the same, which is the default, "
        "refuse with 412, or drop the unchanged parts of a merge patch first.",
        {
            "type": "string",
            "enum": ["update", "skip", "skip-minimizing-merge"],
        },
    ),
    "prefer": (
        "header",
        "`respond-async`: answer 202 at once with the address of the outcome in `location`.",
        {**_TEXT, "example": "respond-async"},
    ),
    "correlation-id": ("header", "Names the request; default: a random UUID.", _TEXT),
    "last-event-id": (
        "header",
        "Of a stream: go on after this event, the last `id` that came.",
        _TEXT,
    ),
    "fields": (
        "query",
        "What of the answer is wanted: `thingId,attributes(colour,size),_revision`.",
        {**_TEXT, "example": "thingId,attributes"},
    ),
    "ids": (
        "query",
        "Ids of the things to read, comma separated. Without: of all things that may be read.",
        {**_PART, "example": "org.example:lamp-1,org.example:lamp-2"},
    ),
    "namespaces": (
        "query",
        "Of a stream: namespaces of the things, comma separated.",
        {**_TEXT, "example": "org.example,org.other"},
    ),
    "filter": (
        "query",
        "Of a stream: an RQL expression that the change, with its extra fields, must fulfil.",
        {**_TEXT, "example": "gt(attributes/size,2)"},
    ),
    "extraFields": (
        "query",
        "Of a stream: what of the thing is added to each change.",
        {**_TEXT, "example": "attributes/room,_revision"},
    ),
    "search-filter": (
        "query",
        "An RQL expression that the things must fulfil; of several, all of them.",
        {**_TEXT, "example": 'eq(attributes/colour,"red")'},
    ),
    "search-namespaces": (
        "query",
        "Namespaces of the things, comma separated; all if there is none.",
        {**_TEXT, "example": "org.example,org.other"},
    ),
    "search-option": (
        "query",
        "`sort(+property,-property)`, by default by thing id; `size(n)`, 25 by default and 200 at "
        "most; `cursor(text)` of the page before; or `limit(offset,count)` in their place.",
        {**_TEXT, "example": "sort(-_modified),size(50)"},
    ),
    "search-condition": (
        "query",
        "An RQL expression that a thing, once found, must fulfil as it is now. Also as a header.",
        {**_TEXT, "example": "gt(attributes/size,2)"},
    ),
    "namespace": ("query", "Namespace of what is created.", {**_TEXT, "example": "org.example"}),
    "declared-acks": (
        "query",
        "Labels this subscriber will acknowledge; unique in the cluster.",
        {**_TEXT, "example": "my:ack"},
    ),
    "ack-group": (
        "query",
        "Group of subscribers with the same labels; one of them gets what asks for one of these.",
        {**_TEXT, "pattern": "^[a-zA-Z0-9:_-]{3,165}$", "example": "workers"},
    ),
}


def _without_example(text: str, schema: Json) -> tuple[str, Json]:
    """The example as part of the text: from the schema a page would send it with every request."""
    rest = dict(schema)
    example = rest.pop("example", None)
    return (text if example is None else f"{text} Example: `{example}`."), rest


def _build() -> Json:
    found: Json = {}
    for name, (place, given_text, given_schema) in _ROWS.items():
        required = place == "path"
        text, schema = given_text, given_schema
        if not required:
            text, schema = _without_example(given_text, given_schema)
        for one in ("query", "header") if place == "both" else (place,):
            found[f"{one}-{name}"] = {
                # Some mean something else in a search.
                "name": name.removeprefix("search-"),
                "in": one,
                "description": text,
                "required": required,
                "schema": schema,
            }
    return found


PARAMETERS: Json = _build()
"""Components by ``<place>-<name>``."""


def parameters(path: str, *names: str) -> list[Json]:
    """References to the parameters in ``path`` and to those named, in every place they may have."""
    keys = [f"path-{part[1:-1]}" for part in path.split("/") if part.startswith("{")]
    for name in names:
        keys.extend(key for key in (f"query-{name}", f"header-{name}") if key in PARAMETERS)
    return [{"$ref": f"#/components/parameters/{key}"} for key in keys]
