"""Things over HTTP: the hot routes, as one plain ASGI endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


from acks.aggregator import http_answer
from acks.document import check_thing, check_thing_id, parse_pointer
from acks.errors import error
from acks.headers import HeaderDefaults, Setter, http_options
from acks.policy import Policy
from acks.signals import Command, JsonObject
from app.api.auth import Authenticator
from app.api.http import (
    Receive,
    RequestHead,
    Scope,
    Send,
    base_url,
    parse_json,
    path_of,
    raw_path,
    read_body,
    send_answer,
)
from app.gateway import Gateway
from app.store.twins import etag

_JSON_TYPES = ("application/json", "application/octet-stream")


class Things:
    """``/api/2/things/{thingId}`` and below: PUT thing, PUT attributes and their paths, GET thing."""

    def __init__(
        self,
        gateway: Gateway,
        authenticator: Authenticator,
        *,
        defaults: HeaderDefaults,
        max_timeout_ms: int,
        default_timeout_ms: int,
        max_body: int,
        max_headers: int,
    ) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._defaults = defaults
        self._timeouts = (max_timeout_ms, default_timeout_ms)
        self._max_body = max_body
        self._max_headers = max_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request and return its status; raises GatewayError, which the caller renders."""
        head = RequestHead(scope, self._max_headers)
        scope["correlation_id"] = head.correlation_id
        principal = self._authenticator.known(head.authorization)
        if principal is None:
            principal = await self._authenticator.check(head.authorization)
        segments = path_of(scope)[3:]
        thing_id = check_thing_id(segments[0])
        path = _resource(scope, segments)
        method = scope["method"]
        if method == "GET" and not path:
            return await self._get(thing_id, principal.subjects, head, send)
        if method == "PUT":
            command = await self._put(scope, receive, head, thing_id, path, principal.subjects)
            return await self._submit(command, send)
        allowed = "PUT" if path else "GET, PUT"
        raise error("gateway:method.notallowed", method=method, path=scope["path"], allowed=allowed)

    async def _put(
        self,
        scope: Scope,
        receive: Receive,
        head: RequestHead,
        thing_id: str,
        path: tuple[str, ...],
        subjects: tuple[str, ...],
    ) -> Command:
        known = head.known
        options = http_options(
            Setter.TWIN_MODIFY,
            known.get("requested-acks"),
            known.get("response-required"),
            known.get("timeout"),
            self._defaults,
            *self._timeouts,
        )
        _check_unsupported(known)
        _check_content_type(known.get("content-type"))
        value = parse_json(await read_body(receive, self._max_body))
        policy = None
        if not path:
            policy = _inline_policy(thing_id, value)
            value = check_thing(thing_id, value)
        elif len(path) == 1 and not isinstance(value, dict) and value is not None:
            raise error("json.format.invalid", reason="The attributes must be a JSON object.")
        return Command(
            thing_id,
            path,
            value,
            head.correlation_id,
            options,
            subjects,
            head.carried,
            policy,
            base_url(scope, head) + raw_path(scope),
        )

    async def _submit(self, command: Command, send: Send) -> int:
        outcome = await self._gateway.submit(command)
        headers: dict[str, Any] = {
            "correlation-id": command.correlation_id,
            "response-required": False,
        }
        if command.options.given:
            headers.update(command.options.given)
        answer = http_answer(outcome, command.options.response_required, headers)
        shown = answer.headers
        if answer.status != 201 and "location" in shown:
            shown = {name: value for name, value in shown.items() if name != "location"}
        await send_answer(send, answer.status, answer.body, shown)
        return answer.status

    async def _get(
        self, thing_id: str, subjects: tuple[str, ...], head: RequestHead, send: Send
    ) -> int:
        if head.known.get("response-required") == "false":
            raise error("command.headers.invalid")
        timeout = head.known.get("timeout")
        http_options(Setter.TWIN_MODIFY, None, None, timeout, self._defaults, *self._timeouts)
        twin = await self._gateway.read(thing_id, subjects)
        headers: Mapping[str, Any] = {
            "correlation-id": head.correlation_id,
            "response-required": False,
            "etag": etag((), twin.revision, b""),
            "entity-revision": twin.revision,
        }
        await send_answer(send, 200, twin.document, headers)
        return 200


def _resource(scope: Scope, segments: list[str]) -> tuple[str, ...]:
    """The addressed part of the thing: () or ("attributes", ...)."""
    rest = segments[1:]
    if rest and rest[-1] == "":
        rest.pop()  # one trailing slash is tolerated
    if not rest:
        return ()
    if rest[0] != "attributes":
        raise error("gateway:resource.notfound", path=scope["path"])
    if "" in rest:
        parse_pointer("/" + "/".join(rest))
        raise error("json.pointer.invalid", pointer="/" + "/".join(rest))
    return ("attributes", *(part.replace("~1", "/").replace("~0", "~") for part in rest[1:]))


def _inline_policy(thing_id: str, value: Any) -> JsonObject | None:
    """The ``_policy`` of a thing to create, checked; its id is the thing's."""
    if not isinstance(value, dict) or value.get("_policy") is None:
        return None
    policy = value["_policy"]
    if not isinstance(policy, dict):
        raise error("policies:entry.invalid", reason="'_policy' must be a JSON object.")
    if policy.get("policyId", thing_id) != thing_id or value.get("policyId", thing_id) != thing_id:
        raise error(
            "policies:entry.invalid", reason="The policyId of '_policy' must be the thing's ID."
        )
    Policy(policy)
    return {**policy, "policyId": thing_id}


_UNSUPPORTED = frozenset(
    {
        "channel", "condition", "live-channel-condition", "dry-run", "if-match", "if-none-match",
        "if-equal",
    }
)  # fmt: skip


def _check_unsupported(known: Mapping[str, str]) -> None:
    """Refuse headers whose meaning would be lost: doing as if they were absent could do harm."""
    if _UNSUPPORTED.isdisjoint(known):
        return
    for name in sorted(_UNSUPPORTED.intersection(known)):
        if name == "channel":
            if known[name].strip().lower() != "twin":
                raise error(
                    "header.invalid", value=known[name], header=name, type=name,
                    description="This gateway serves the <twin> channel only.",
                    extras={"invalidHeaderKey": name},
                )  # fmt: skip
        else:
            raise error(
                "header.invalid", value=known[name], header=name, type=name,
                description=f"This gateway does not serve the header '{name}' yet.",
                extras={"invalidHeaderKey": name},
            )  # fmt: skip


def _check_content_type(content_type: str | None) -> None:
    if content_type is None:
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type not in _JSON_TYPES:
        raise error("mediatype.unsupported", given=media_type, allowed="application/json")


