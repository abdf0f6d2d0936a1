"""Things over HTTP: the hot routes, as one plain ASGI endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from acks.aggregator import Answer, Outcome, http_answer
from acks.document import MAX_DEPTH, check_thing, check_thing_id, parse_pointer
from acks.errors import GatewayError, error
from acks.headers import HeaderDefaults, Setter, http_options
from acks.labels import TWIN_PERSISTED
from acks.policy import Policy
from acks.signals import Command, JsonObject
from app.api.auth import Authenticator, Principal
from app.api.http import (
    Receive,
    RequestHead,
    Scope,
    Send,
    base_url,
    error_answer,
    parse_json,
    raw_path,
    read_body,
    send_answer,
    split_path,
)
from app.gateway import Gateway
from app.store.twins import etag

_JSON_TYPES = ("application/json", "application/octet-stream")


class Things:
    """``/api/2/things/{thingId}`` and below: PUT and GET thing, PUT attributes and their paths."""

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
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head = RequestHead(scope, self._max_headers)
        scope["correlation_id"] = head.correlation_id
        principal = await self._authenticator.check(head.authorization)
        thing_id, path = self._address(scope)
        method = scope["method"]
        if method == "GET" and not path:
            return await self._get(scope, thing_id, principal.subjects, head, send)
        if method == "PUT":
            body = await read_body(receive, self._max_body)
            command = self.command(scope, head, principal, body)
            outcome = await self._gateway.ask(command)
            answer = self.answer(scope, head, command, outcome)
            await send_answer(send, answer.status, answer.body, answer.headers)
            return answer.status
        allowed = "PUT" if path else "GET, PUT"
        raise error("gateway:method.notallowed", method=method, path=scope["path"], allowed=allowed)

    def known(self, scope: Scope) -> tuple[RequestHead, Principal] | None:
        """Head and requester of a request, if its credentials have been checked before."""
        try:
            head = RequestHead(scope, self._max_headers)
        except GatewayError:
            return None
        principal = self._authenticator.known(head.authorization)
        return None if principal is None else (head, principal)

    def submit(
        self,
        scope: Scope,
        head: RequestHead,
        principal: Principal,
        body: bytes,
        on_answer: Callable[[Answer], None],
    ) -> None:
        """Carry out a PUT without a task: ``on_answer`` gets the answer. Raises GatewayError."""
        command = self.command(scope, head, principal, body)
        self._gateway.submit(
            command, lambda outcome: on_answer(self.answer(scope, head, command, outcome))
        )

    def command(
        self, scope: Scope, head: RequestHead, principal: Principal, body: bytes
    ) -> Command:
        """The command that a PUT asks for. Raises GatewayError."""
        thing_id, path = self._address(scope)
        known = head.known
        options = http_options(
            Setter.TWIN_MODIFY,
            known.get("requested-acks"),
            known.get("response-required"),
            known.get("timeout"),
            self._defaults,
            *self._timeouts,
        )
        if not _UNSUPPORTED.isdisjoint(known):
            _check_unsupported(known, _UNSUPPORTED)
        content_type = known.get("content-type")
        if content_type != "application/json":
            _check_content_type(content_type)
        if len(body) > self._max_body:
            raise error("request.toolarge", limit=self._max_body)
        value = parse_json(body)
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
            principal.subjects,
            head.carried,
            policy,
        )

    def answer(self, scope: Scope, head: RequestHead, command: Command, outcome: Outcome) -> Answer:
        """An outcome as the answer to its HTTP request."""
        options = command.options
        if outcome.error is not None:
            answer = error_answer(outcome.error, command.correlation_id)
            return answer._replace(headers={**answer.headers, **dict(options.given)})
        headers = {"correlation-id": command.correlation_id, "response-required": "false"}
        if options.given:
            headers.update(options.given)
        answer = http_answer(outcome, options.response_required, headers)
        if answer.status == 201 and outcome.response is not None:
            location = base_url(scope, head) + raw_path(scope)
            return answer._replace(headers={**answer.headers, "location": location})
        for ack in outcome.acks:
            if ack.label == TWIN_PERSISTED and ack.status == 201 and isinstance(answer.body, dict):
                entry = answer.body.get(TWIN_PERSISTED)
                if isinstance(entry, dict) and options.response_required:
                    entry["headers"]["location"] = base_url(scope, head) + raw_path(scope)
        return answer

    def _address(self, scope: Scope) -> tuple[str, tuple[str, ...]]:
        """Thing id and addressed part of the thing. Raises GatewayError."""
        path = raw_path(scope)
        if len(path) > self._max_headers:
            raise error("headers.too.large", limit=self._max_headers)
        return _address(path)

    async def _get(
        self,
        scope: Scope,
        thing_id: str,
        subjects: tuple[str, ...],
        head: RequestHead,
        send: Send,
    ) -> int:
        if head.known.get("response-required") == "false":
            raise error("command.headers.invalid")
        if not _UNSUPPORTED_READ.isdisjoint(head.known):
            _check_unsupported(head.known, _UNSUPPORTED_READ)
        if b"fields=" in scope["query_string"]:
            raise error(
                "things:field.selection.invalid",
                text="fields",
                reason="This gateway does not select fields yet.",
            )
        timeout = head.known.get("timeout")
        # A query always wants an answer, so a zero timeout is refused (spec acks-and-http 2.5).
        http_options(Setter.TWIN_MODIFY, None, "true", timeout, self._defaults, *self._timeouts)
        twin, text = await self._gateway.read(thing_id, subjects)
        headers: Mapping[str, Any] = {
            "correlation-id": head.correlation_id,
            "response-required": "false",
            "etag": etag((), twin.revision, b""),
            "entity-revision": twin.revision,
        }
        await send_answer(send, 200, orjson.Fragment(text), headers)
        return 200


@lru_cache(maxsize=4096)
def _address(path: str) -> tuple[str, tuple[str, ...]]:
    """Thing id and addressed part of the thing, from the path as it was sent.

    Raises GatewayError.
    """
    segments = split_path(path)[3:]
    return check_thing_id(segments[0]), _resource(path, segments)


def _resource(path: str, segments: list[str]) -> tuple[str, ...]:
    """The addressed part of the thing: () or ("attributes", ...)."""
    rest = segments[1:]
    if rest and rest[-1] == "":
        rest.pop()  # one trailing slash is tolerated
    if not rest:
        return ()
    if rest[0] != "attributes":
        raise error("gateway:resource.notfound", path=path)
    if "" in rest:
        parse_pointer("/" + "/".join(rest))
        raise error("json.pointer.invalid", pointer="/" + "/".join(rest))
    if len(rest) > MAX_DEPTH:
        pointer, reason = "/" + "/".join(rest), f"A path has at most {MAX_DEPTH} parts."
        raise error("json.pointer.invalid", pointer=pointer, description=reason)
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


_UNSUPPORTED_READ = frozenset(
    {
        "channel", "condition", "live-channel-condition", "at-historical-revision",
        "at-historical-timestamp",
    }
)  # fmt: skip


def _check_unsupported(known: Mapping[str, str], unsupported: frozenset[str]) -> None:
    """Refuse headers whose meaning would be lost: doing as if they were absent could do harm."""
    for name in sorted(unsupported.intersection(known)):
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
