"""OpenAPI of server-sent events: beside the reads of things, and alone for messages."""

from __future__ import annotations

from typing import Any

from app.api.openapi_answers import errors
from app.api.openapi_parameters import parameters

Json = dict[str, Any]

EVENT_STREAM = "text/event-stream"
_CONTENT: Json = {EVENT_STREAM: {"schema": {"type": "string"}}}
_FILTERS = ("filter", "extraFields")
_THINGS = "/api/2/things"
_TEXT = (
    "With `accept: text/event-stream` a stream of the changes, as far as you may read them, which "
    "does not end (see the documentation)."
)
_BOXES = {"inbox": "to", "outbox": "from"}


def with_streams(paths: Json) -> Json:
    """The paths (path -> method -> operation) with the streams; ``paths`` is changed."""
    for path, item in paths.items():
        if path.startswith(_THINGS) and "get" in item:
            _add_stream(path, item["get"])
    for place, owner in (("{thingId}", "thing"), ("{thingId}/features/{featureId}", "feature")):
        for box, direction in _BOXES.items():
            name = f"{owner.capitalize()}{box.capitalize()}"
            summary = f"Watch messages {direction} a {owner}"
            path = f"{_THINGS}/{place}/{box}/messages"
            paths[path] = {"get": _messages(path, name, summary)}
            path = f"{path}/{{messageSubject}}"
            paths[path]["get"] = _messages(path, f"{name}Subject", f"{summary} with this subject")
    return paths


def _add_stream(path: str, read: Json) -> None:
    """Say of a GET that it may be a stream."""
    found = read["responses"]["200"]
    found["description"] += f" {_TEXT}"
    found["content"] = {**found["content"], **_CONTENT}
    names: tuple[str, ...] = _FILTERS
    if path == _THINGS:
        names = ("namespaces", *names)
    elif not any(one["$ref"].endswith("/query-fields") for one in read["parameters"]):
        names = ("fields", *names)
    read["parameters"] += parameters("", *names, "last-event-id")


def _messages(path: str, name: str, summary: str) -> Json:
    return {
        "tags": ["Messages"],
        "summary": summary,
        "operationId": f"watch{name}",
        "parameters": parameters(path, *_FILTERS, "last-event-id", "correlation-id"),
        "responses": {
            "200": {
                "description": "The messages that you may read, as they come: the subject as the "
                "type of the event, the payload as its data. It must be asked for by "
                "`accept: text/event-stream`, and does not end.",
                "content": _CONTENT,
            },
            **errors("Messages", 400, 401, 404, 405, 429, 431, 503),
        },
    }
