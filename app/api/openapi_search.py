"""OpenAPI operations of the search (spec websocket-... 6.4)."""

from __future__ import annotations

from typing import Any

from app.api.openapi_answers import errors, json_content
from app.api.openapi_parameters import PARAMETERS, parameters
from app.api.openapi_schemas import ref
from app.api.openapi_streams import EVENT_STREAM

Json = dict[str, Any]

_THINGS = "/api/2/search/things"
_FORM = "application/x-www-form-urlencoded"
_STATUSES = (400, 401, 429, 431, 503, 504)
_COUNT = ("search-filter", "search-namespaces")
_PAGE = (*_COUNT, "search-option", "fields", "search-condition")
_STREAM = (
    "With `accept: text/event-stream` a stream of all things that are found, whose events are a "
    "thing each, with its id (see the documentation)."
)
_PAGE_FOUND: Json = {
    "description": "A page of what was found.",
    "content": json_content(ref("SearchResultThings")),
}
_COUNTED: Json = {
    "description": "How many things there are.",
    "content": json_content({"type": "integer", "minimum": 0}),
}


def _operation(name: str, summary: str, found: Json, names: tuple[str, ...], *more: int) -> Json:
    return {
        "tags": ["Search"],
        "summary": summary,
        "operationId": name,
        "parameters": parameters("", *names, "timeout", "correlation-id"),
        "responses": {"200": found, **errors("Search", *sorted((*_STATUSES, *more)))},
    }


def _posted(operation: Json, names: tuple[str, ...]) -> Json:
    """The operation with a form that has the parameters ``names`` of a GET."""
    given = [PARAMETERS[f"query-{name}"] for name in names]
    fields = {one["name"]: {**one["schema"], "description": one["description"]} for one in given}
    schema = {"type": "object", "properties": fields}
    body = {"required": False, "content": {_FORM: {"schema": schema}}}
    return {**operation, "requestBody": body}


def _paged() -> Json:
    content = {**_PAGE_FOUND["content"], EVENT_STREAM: {"schema": {"type": "string"}}}
    found = {"description": f"{_PAGE_FOUND['description']} {_STREAM}", "content": content}
    names = (*_PAGE, "last-event-id")
    post = _operation("postSearchThings", "Search things by a form", _PAGE_FOUND, (), 413, 415)
    return {
        "get": _operation("getSearchThings", "Search things", found, names),
        "post": _posted(post, _PAGE),
    }


def _counted() -> Json:
    post = _operation("postSearchCount", "Count things by a form", _COUNTED, (), 413, 415)
    return {
        "get": _operation("getSearchCount", "Count things", _COUNTED, _COUNT),
        "post": _posted(post, _COUNT),
    }


SEARCH: Json = {_THINGS: _paged(), f"{_THINGS}/count": _counted()}
"""Path -> method -> operation."""
