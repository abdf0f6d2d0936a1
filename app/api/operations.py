"""OpenAPI operations of the endpoints that are plain ASGI, made from tables of resources.

A row says what a resource is; its methods, parameters and answers follow (spec acks-and-http 9.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from app.api.openapi_acks import ACKS
from app.api.openapi_answers import ETAG, LOCATION, answer, errors, json_content
from app.api.openapi_connections import CONNECTIONS
from app.api.openapi_parameters import parameters
from app.api.openapi_schemas import ANY, OBJECT_OR_NULL, or_null, ref
from app.api.openapi_search import SEARCH
from app.api.openapi_streams import with_streams

Json = dict[str, Any]

THINGS = "/api/2/things"
POLICIES = "/api/2/policies"

_VERBS = {
    "get": "Read",
    "put": "Create or replace",
    "patch": "Merge a patch into",
    "delete": "Delete",
    "post": "Create",
}
_ACKS = ("requested-acks", "response-required", "timeout")
_TAGS = ("if-match", "if-none-match")
_READ = (
    "requested-acks", "timeout", "channel", "condition", "live-channel-condition",
    "live-channel-timeout-strategy", *_TAGS, "correlation-id",
)  # fmt: skip
_CHANGE = (*_ACKS, "channel", "condition", *_TAGS, "if-equal", "prefer", "correlation-id")
_DELETE = tuple(name for name in _CHANGE if name != "if-equal")
_CREATE = (
    *_ACKS, "channel", "namespace", "allow-policy-lockout", "prefer", "correlation-id",
)  # fmt: skip
_MESSAGE = (*_ACKS, "condition", "prefer", "correlation-id")
_CLAIM = tuple(name for name in _MESSAGE if name != "condition")
_POLICY_READ = ("timeout", *_TAGS, "correlation-id")
_POLICY_CHANGE = ("timeout", "response-required", *_TAGS, "if-equal", "correlation-id")

_ALWAYS = (401, 429, 431, 503)
_MERGE_PATCH = "application/merge-patch+json"


class Resource(NamedTuple):
    """One addressable thing: what it is called and what it looks like.

    What is ``sent`` looks like that too, and so does a ``patch``, unless something else is said.
    ``made`` are the methods that may answer 201; ``fields``: parts of it can be selected.
    """

    path: str
    name: str
    text: str
    value: Json
    sent: Json | None = None
    patch: Json | None = None
    methods: tuple[str, ...] = ("get", "put", "patch", "delete")
    made: tuple[str, ...] = ("put",)
    fields: bool = False

    @property
    def put(self) -> Json:
        """What a PUT sends."""
        return self.value if self.sent is None else self.sent

    @property
    def merge(self) -> Json:
        """What a PATCH sends."""
        return self.value if self.patch is None else self.patch


_FEATURE = "/features/{featureId}"

_THING_RESOURCES = (
    Resource("", "Thing", "a thing", ref("Thing"), ref("NewThing"), ref("ThingPatch"),
             made=("put", "patch"), fields=True),
    Resource("/policyId", "PolicyId", "the policy id of a thing", ref("EntityId"),
             methods=("get", "put", "patch"), made=()),
    Resource("/definition", "Definition", "the definition of a thing",
             or_null(ref("Definition"))),
    Resource("/attributes", "Attributes", "all attributes of a thing", OBJECT_OR_NULL,
             fields=True),
    Resource("/attributes/{attributePath}", "Attribute", "an attribute", ANY),
    Resource("/features", "Features", "all features of a thing",
             or_null({"type": "object", "additionalProperties": or_null(ref("Feature"))}),
             fields=True),
    Resource(_FEATURE, "Feature", "a feature", or_null(ref("Feature")), fields=True),
    Resource(f"{_FEATURE}/definition", "FeatureDefinition", "the definition of a feature",
             or_null(ref("FeatureDefinition"))),
    *(
        Resource(f"{_FEATURE}/{key}{below}", f"Feature{key[0].upper()}{key[1:]}{suffix}", text,
                 value, fields=not below)
        for key, all_of_them, one in (
            ("properties", "all properties of a feature", "a property of a feature"),
            ("desiredProperties", "all desired properties of a feature",
             "a desired property of a feature"),
        )
        for below, suffix, text, value in (
            ("", "", all_of_them, OBJECT_OR_NULL),
            ("/{propertyPath}", "Path", one, ANY),
        )
    ),
)  # fmt: skip

_ALL = ("get", "put", "delete")
_POLICY_RESOURCES = (
    Resource("", "Policy", "a policy", ref("Policy"), ref("NewPolicy"), methods=_ALL,
             fields=True),
    *(
        Resource(path, name, f"{text} of {owner}", ref(name),
                 methods=_ALL if single else ("get", "put"), made=("put",) if single else ())
        for path, name, text, owner, single in (
            ("/entries", "PolicyEntries", "all entries", "a policy", False),
            ("/entries/{label}", "PolicyEntry", "an entry", "a policy", True),
            ("/entries/{label}/subjects", "PolicySubjects", "all subjects", "an entry", False),
            ("/entries/{label}/subjects/{subjectId}", "PolicySubject", "a subject", "an entry",
             True),
            ("/entries/{label}/resources", "PolicyResources", "all resources", "an entry", False),
            ("/entries/{label}/resources/{resourcePath}", "PolicyResource", "a resource",
             "an entry", True),
        )
    ),
)  # fmt: skip


class _Route(NamedTuple):
    path: str
    method: str
    operation: Json


def _operation(
    tag: str, method: str, name: str, summary: str, params: list[Json], responses: Json
) -> Json:
    return {
        "tags": [tag],
        "summary": summary,
        "operationId": f"{method}{name}",
        "parameters": params,
        "responses": responses,
    }


def _body(schema: Json, *media_types: str, required: bool = True) -> Json:
    types = media_types or ("application/json",)
    return {"required": required, "content": {one: {"schema": schema} for one in types}}


def _created(schema: Json) -> Json:
    return {
        "description": "Created; the body is what was created.",
        "headers": {**ETAG, **LOCATION},
        "content": json_content(schema),
    }


def _read(schema: Json, area: str, *statuses: int) -> Json:
    return {
        "200": {
            "description": "What is there.",
            "headers": ETAG,
            "content": json_content(schema),
        },
        "304": answer("NotModified"),
        **errors(area, 400, *_ALWAYS, 404, 412, *statuses),
    }


def _acknowledged(area: str, *statuses: int) -> Json:
    """Answers of whatever may ask for acks."""
    return {
        "202": answer("Accepted"),
        "424": answer("NotAllAcknowledged"),
        "default": answer("SingleAcknowledgement"),
        **errors(area, 400, *_ALWAYS, 404, 408, 409, *statuses),
    }


def _thing_change(resource: Resource, method: str) -> Json:
    responses = {
        "200": answer("AllAcknowledged"),
        "204": answer("Changed"),
        **_acknowledged("Things", 403, 405, 412),
    }
    if method != "delete":
        responses |= errors("Things", 413, 415)
    if method in resource.made:
        responses["201"] = _created(resource.value)
    return responses


def _thing_operation(resource: Resource, method: str) -> Json:
    path = f"{THINGS}/{{thingId}}{resource.path}"
    summary = f"{_VERBS[method]} {resource.text}"
    if method == "get":
        names: tuple[str, ...] = ("fields", *_READ) if resource.fields else _READ
        responses = {
            **_read(resource.value, "Things", 408),
            "424": answer("NotAllAcknowledged"),
            "default": answer("SingleAcknowledgement"),
        }
    else:
        names = _DELETE if method == "delete" else _CHANGE
        if method == "put" and not resource.path:
            names = (*names, "allow-policy-lockout")
        responses = _thing_change(resource, method)
    operation = _operation(
        "Things", method, resource.name, summary, parameters(path, *names), responses
    )
    if method == "put":
        operation["requestBody"] = _body(resource.put)
    elif method == "patch":
        operation["requestBody"] = _body(resource.merge, _MERGE_PATCH)
    return operation


def _things() -> Iterator[_Route]:
    read_many = {
        "200": {
            "description": "Those that are there and may be read, in the order of `ids`. Without "
            "`ids` the first 200 that may be read, by their ids: as in the search index. If there "
            "are more, the header `link` names a search for them.",
            "content": json_content({"type": "array", "items": ref("Thing")}),
        },
        **errors("Things", 400, *_ALWAYS, 413),
        **errors("Search", 504),
    }
    names = ("ids", "fields", "timeout", "correlation-id")
    yield _Route(
        THINGS,
        "get",
        _operation("Things", "get", "Things", "Read things", parameters("", *names), read_many),
    )
    create = {
        "200": answer("AllAcknowledged"),
        "201": _created(ref("Thing")),
        **_acknowledged("Things", 403, 405, 413, 415),
    }
    operation = _operation(
        "Things", "post", "Thing", "Create a thing", parameters("", *_CREATE), create
    )
    yield _Route(THINGS, "post", {**operation, "requestBody": _body(ref("PostedThing"))})
    for resource in _THING_RESOURCES:
        path = f"{THINGS}/{{thingId}}{resource.path}"
        for method in resource.methods:
            yield _Route(path, method, _thing_operation(resource, method))


def _messages() -> Iterator[_Route]:
    thing = f"{THINGS}/{{thingId}}"
    for place, owner in ((thing, "Thing"), (f"{thing}{_FEATURE}", "Feature")):
        for box, direction in (("inbox", "to"), ("outbox", "from")):
            path = f"{place}/{box}/messages/{{messageSubject}}"
            name = f"{owner}{box.capitalize()}Message"
            summary = f"Send a message {direction} a {owner.lower()}"
            yield _Route(path, "post", _message(path, name, summary, _MESSAGE, (403, 412)))
    claim = f"{thing}/inbox/claim"
    yield _Route(claim, "post", _message(claim, "Claim", "Claim a thing", _CLAIM, ()))


def _message(
    path: str, name: str, summary: str, names: tuple[str, ...], statuses: tuple[int, ...]
) -> Json:
    responses = {
        "200": {
            "description": "The responder's answer; or several acknowledgements, all successful.",
            "content": {"*/*": {}},
        },
        "204": {"description": "The responder has answered, without a payload."},
        **_acknowledged("Messages", 413, *statuses),
    }
    operation = _operation("Messages", "post", name, summary, parameters(path, *names), responses)
    types = ("application/json", "text/plain", "application/octet-stream")
    body = _body(ANY, *types, required=False)
    body["content"]["text/plain"] = {"schema": {"type": "string"}}
    body["content"]["application/octet-stream"] = {}
    return {**operation, "requestBody": body}


def _policy_operation(resource: Resource, method: str) -> Json:
    path = f"{POLICIES}/{{policyId}}{resource.path}"
    summary = f"{_VERBS[method]} {resource.text}"
    if method == "get":
        names: tuple[str, ...] = ("fields", *_POLICY_READ) if resource.fields else _POLICY_READ
        responses = _read(resource.value, "Policies", 408)
    else:
        names = ("allow-policy-lockout", *_POLICY_CHANGE)
        if method == "delete":
            names = tuple(name for name in names if name != "if-equal")
        responses = {"204": answer("Changed"), **_policy_change(404, 412)}
        if method in resource.made:
            responses["201"] = _created(resource.value)
        if method == "put":
            responses |= errors("Policies", 413, 415)
    operation = _operation(
        "Policies", method, resource.name, summary, parameters(path, *names), responses
    )
    return (
        {
            **operation,
            "requestBody": _body(resource.put),
        }
        if method == "put"
        else operation
    )


def _policy_change(*statuses: int) -> Json:
    return {
        "202": answer("Accepted"),
        **errors("Policies", 400, *_ALWAYS, 403, 408, *statuses),
    }


def _policies() -> Iterator[_Route]:
    names = ("allow-policy-lockout", "timeout", "response-required", "namespace", "correlation-id")
    responses = {"201": _created(ref("Policy")), **_policy_change(413, 415)}
    operation = _operation(
        "Policies", "post", "Policy", "Create a policy", parameters("", *names), responses
    )
    yield _Route(POLICIES, "post", {**operation, "requestBody": _body(ref("PostedPolicy"))})
    for resource in _POLICY_RESOURCES:
        path = f"{POLICIES}/{{policyId}}{resource.path}"
        for method in resource.methods:
            yield _Route(path, method, _policy_operation(resource, method))


def _others() -> Iterator[_Route]:
    responses: Json = {
        "200": {"description": "The subjects policies know you by.",
                "content": json_content(ref("WhoAmI"))},
        **errors("General", 400, *_ALWAYS),
    }  # fmt: skip
    params = parameters("", "correlation-id")
    yield _Route(
        "/api/2/whoami",
        "get",
        _operation("Policies", "get", "WhoAmI", "Who you are", params, responses),
    )
    responses = {
        "101": {"description": "Switched to WebSocket."},
        **errors("General", 400, 401, 404, 429, 431, 503),
    }
    summary = "Commands, events and acks in Ditto Protocol (see asyncapi.yaml)"
    params = parameters("", "declared-acks", "ack-group")
    yield _Route(
        "/ws/2", "get", _operation("WebSocket", "get", "WebSocket", summary, params, responses)
    )


def _paths() -> Json:
    paths: Json = {}
    for routes in (_things(), _messages(), _policies(), _others()):
        for path, method, operation in routes:
            operation["responses"] = dict(sorted(operation["responses"].items()))
            paths.setdefault(path, {})[method] = operation
    return with_streams(paths | ACKS | CONNECTIONS | SEARCH)


OPERATIONS: Json = _paths()
"""Path -> method -> operation."""
