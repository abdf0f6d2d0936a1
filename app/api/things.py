"""Things over HTTP: ``/api/2/things`` and everything below but messages (spec acks-and-http 9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from uuid import uuid4

from acks.aggregator import Answer, Outcome, http_answer
from acks.changes import check_merge, check_put
from acks.document import check_thing_id
from acks.errors import GatewayError, error
from acks.headers import AckOptions, Setter, allows_lockout, http_options
from acks.labels import TWIN_PERSISTED
from acks.policy_document import check_policy
from acks.preconditions import Preconditions, parse_preconditions
from acks.resources import location, parse_resource
from acks.signals import Command, JsonObject
from app.api.acks import accepted_answer, prefers_async
from app.api.auth import Authenticator, Principal
from app.api.http import (
    Receive,
    RequestHead,
    Rules,
    Scope,
    Send,
    base_url,
    error_answer,
    parse_json,
    query_items,
    raw_path,
    read_body,
    send_answer,
    split_path,
)
from app.api.live import answer_live, is_live, live_command
from app.api.queries import Queries
from app.gateway import Gateway

_ACTIONS = {"PUT": "put", "PATCH": "merge", "DELETE": "delete"}
_PUT_TYPES = ("application/json", "application/octet-stream")
_MERGE_TYPES = ("application/merge-patch+json",)
_COLLECTION = "/api/2/things"
_REMEMBERED = 4096
"""Combinations of ack headers whose meaning is kept: clients send the same few ones."""
DEFAULT_NAMESPACE = "org.eclipse.ditto"
"""Namespace of things that are made by POST without another one, as in Ditto."""

_UNUSUAL = frozenset(
    {
        "condition", "if-match", "if-none-match", "if-equal", "live-channel-condition", "dry-run",
        "merge-thing-patch-conditions", "put-metadata", "delete-metadata",
    }
)  # fmt: skip
_NOT_SERVED = ("dry-run", "merge-thing-patch-conditions", "put-metadata", "delete-metadata")
"""Headers that the common request does not have: one look tells."""


class Things:
    """PUT, PATCH, DELETE and GET of things and their parts; POST and GET of the collection."""

    def __init__(
        self,
        gateway: Gateway,
        authenticator: Authenticator,
        queries: Queries,
        rules: Rules,
        *,
        max_body: int,
        max_headers: int,
    ) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._queries = queries
        self._rules = rules
        self._completed: dict[tuple[bool, str | None, str | None, str | None], AckOptions] = {}
        self._max_body = max_body
        self._max_headers = max_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head = RequestHead(scope, self._max_headers)
        scope["correlation_id"] = head.correlation_id
        principal = await self._authenticator.check(head.authorization)
        path = raw_path(scope)
        method: str = scope["method"]
        thing_id = ""
        part: tuple[str, ...] = ()
        allowed: tuple[str, ...] = ("GET", "POST")
        if path.rstrip("/") != _COLLECTION:
            thing_id, part = self._address(path)
            allowed = ("GET", "PUT", "PATCH") if part == ("policyId",) else _ALL
        if method not in allowed:
            raise error(
                "gateway:method.notallowed",
                method=method,
                path=scope["path"],
                allowed=", ".join(allowed),
            )
        if method == "GET":
            if thing_id:
                answer = await self._queries.one(scope, head, principal, thing_id, part)
            else:
                answer = await self._queries.many(scope, head, principal)
        else:
            body = await read_body(receive, self._max_body)
            command = self.command(scope, head, principal, body)
            answer = await self._change(scope, head, command)
        await send_answer(send, *answer)
        return answer.status

    async def _change(self, scope: Scope, head: RequestHead, command: Command) -> Answer:
        live = live_command(head, command, self._rules) if is_live(head) else None
        if prefers_async(head):
            await self._gateway.accept(live or command, _location(scope, head, command))
            return accepted_answer(scope, head, command)
        if live is not None:
            return await answer_live(self._gateway, live, _location(scope, head, command))
        return self.answer(scope, head, command, await self._gateway.ask(command))

    def known(self, scope: Scope) -> tuple[RequestHead, Principal] | None:
        """Head and requester of a request that needs no waiting before it is submitted.

        None if its credentials have not been checked before, or it goes another way.
        """
        try:
            head = RequestHead(scope, self._max_headers)
        except GatewayError:
            return None
        if "channel" in head.known or "prefer" in head.known:
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
        """The command that a changing request asks for. Raises GatewayError."""
        known = head.known
        options = self._options(known, "channel" in known and is_live(head))
        checks: Preconditions | None = None
        if not _UNUSUAL.isdisjoint(known):
            _check_unusual(known)
            checks = parse_preconditions(known)
        if len(body) > self._max_body:
            raise error("request.toolarge", limit=self._max_body)
        method = scope["method"]
        policy = None
        path: tuple[str, ...] = ()
        if method == "POST":
            thing_id, action = _new_thing_id(scope), "create"
        else:
            thing_id, path = self._address(raw_path(scope))
            action = _ACTIONS[method]
        if action == "delete":
            value = None
        else:
            allowed = _MERGE_TYPES if action == "merge" else _PUT_TYPES
            content_type = known.get("content-type")
            if content_type != allowed[0]:
                _check_content_type(content_type, allowed)
            value = parse_json(body)
            if not path:
                if action == "create" and isinstance(value, dict) and "thingId" in value:
                    raise error("things:id.notsettable", message=_NO_ID, description=_GENERATED)
                policy = _inline_policy(thing_id, value, principal.subjects[0])
            check = check_merge if action == "merge" else check_put
            value = check(thing_id, path, value)
        return Command(
            thing_id,
            path,
            value,
            head.correlation_id,
            options,
            principal.subjects,
            head.carried,
            policy,
            None,
            action,
            checks,
            allow_lockout=policy is not None and allows_lockout(known),
        )

    def _options(self, known: Mapping[str, str], live: bool) -> AckOptions:
        """The ack headers, read and completed; raises as :func:`http_options`."""
        given = (
            live,
            known.get("requested-acks"),
            known.get("response-required"),
            known.get("timeout"),
        )
        options = self._completed.get(given)
        if options is None:
            options = http_options(
                Setter.LIVE if live else Setter.TWIN_MODIFY, *given[1:], *self._rules
            )
            if len(self._completed) < _REMEMBERED:
                self._completed[given] = options
        return options

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
        if answer.status == 201:
            return answer._replace(
                headers={**answer.headers, "location": _location(scope, head, command)}
            )
        for ack in outcome.acks:
            if ack.label == TWIN_PERSISTED and ack.status == 201 and isinstance(answer.body, dict):
                entry = answer.body.get(TWIN_PERSISTED)
                if isinstance(entry, dict) and options.response_required:
                    entry["headers"]["location"] = _location(scope, head, command)
        return answer

    def _address(self, path: str) -> tuple[str, tuple[str, ...]]:
        """Thing id and addressed part of the thing. Raises GatewayError."""
        if len(path) > self._max_headers:
            raise error("headers.too.large", limit=self._max_headers)
        return _address(path)


_ALL = ("GET", "PUT", "PATCH", "DELETE")
_NO_ID = "It is not allowed to provide a Thing ID in the request body."
_GENERATED = "The ID of a Thing made by POST is generated; leave 'thingId' out, or use PUT."


def _location(scope: Scope, head: RequestHead, command: Command) -> str:
    return base_url(scope, head) + location(scope["method"], raw_path(scope), command.thing_id, "/")


@lru_cache(maxsize=4096)
def _address(path: str) -> tuple[str, tuple[str, ...]]:
    segments = split_path(path)[3:]
    return check_thing_id(segments[0]), parse_resource(path, segments[1:])


def _new_thing_id(scope: Scope) -> str:
    for name, value in query_items(scope):
        if name == "namespace":
            return check_thing_id(f"{value}:{uuid4()}")
    return f"{DEFAULT_NAMESPACE}:{uuid4()}"


def _inline_policy(thing_id: str, value: Any, requester: str) -> JsonObject | None:
    """The ``_policy`` of a thing to create, checked; its id is the thing's."""
    if not isinstance(value, dict):
        return None
    if "_copyPolicyFrom" in value:
        raise error(
            "json.format.invalid",
            reason="This gateway does not copy policies yet: give '_policy' or 'policyId'.",
        )
    policy = value.get("_policy")
    if policy is None:
        return None
    given = policy.get("policyId", thing_id) if isinstance(policy, dict) else thing_id
    if given != thing_id or value.get("policyId", thing_id) != thing_id:
        raise error(
            "policies:entry.invalid", reason="The policyId of '_policy' must be the thing's ID."
        )
    return check_policy(thing_id, policy, requester, time.time_ns() // 1_000_000)


def _check_unusual(known: Mapping[str, str]) -> None:
    """Refuse headers whose meaning would be lost: doing as if they were absent could do harm."""
    if "live-channel-condition" in known:
        raise error("things:live.channelcondition.notallowed")
    for name in _NOT_SERVED:
        if name in known:
            raise error(
                "header.invalid", value=known[name], header=name, type=name,
                description=f"This gateway does not serve the header '{name}' yet.",
                extras={"invalidHeaderKey": name},
            )  # fmt: skip


def _check_content_type(content_type: str | None, allowed: tuple[str, ...]) -> None:
    if content_type is None and allowed is _PUT_TYPES:
        return
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type not in allowed and (media_type or allowed is not _PUT_TYPES):
        raise error("mediatype.unsupported", given=media_type, allowed=allowed[0])
