"""Things over HTTP: ``/api/2/things`` and everything below but messages (spec acks-and-http 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from uuid import uuid4

from acks.aggregator import Answer, Outcome, http_answer
from acks.commands import make_command, parse_checks
from acks.document import check_thing_id
from acks.errors import error
from acks.headers import AckOptions, Setter, http_options
from acks.labels import TWIN_PERSISTED
from acks.resources import location, parse_resource
from acks.signals import Command
from app.api.acks import accepted_answer, prefers_async
from app.api.auth import Principal
from app.api.events import Events, Request
from app.api.http import (
    Receive,
    RequestHead,
    Rules,
    Scope,
    Send,
    base_url,
    error_answer,
    parse_json,
    raw_path,
    send_answer,
    split_path,
)
from app.api.live import answer_live, is_live, live_command, live_options
from app.api.queries import Queries
from app.api.reception import Reception, allow, check_media_type, parameters
from app.api.sse import wants_stream
from app.gateway import Gateway
from app.store.instant import now_ms

_ACTIONS = {"PUT": "put", "PATCH": "merge", "DELETE": "delete"}
_PUT_TYPES = ("application/json", "application/octet-stream", "")
_MERGE_TYPES = ("application/merge-patch+json",)
_COLLECTION = "/api/2/things"
_REMEMBERED = 4096
"""Combinations of ack headers whose meaning is kept: clients send the same few ones."""
DEFAULT_NAMESPACE = "org.eclipse.ditto"
"""Namespace of things that are made by POST without another one, as in Ditto."""


class Things:
    """PUT, PATCH, DELETE and GET of things and their parts; POST and GET of the collection."""

    def __init__(
        self,
        gateway: Gateway,
        reception: Reception,
        queries: Queries,
        events: Events,
        rules: Rules,
    ) -> None:
        self._gateway = gateway
        self._reception = reception
        self._queries = queries
        self._events = events
        self._rules = rules
        self._completed: dict[tuple[bool, str | None, str | None, str | None], AckOptions] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        path = self._reception.path(scope)
        method: str = scope["method"]
        if method == "GET" and wants_stream(head):
            request = Request(scope, receive, send, head, principal)
            return await self._events.of_things(request, path)
        thing_id = ""
        part: tuple[str, ...] = ()
        allowed: tuple[str, ...] = ("GET", "POST")
        if path.rstrip("/") != _COLLECTION:
            thing_id, part = _address(path)
            allowed = ("GET", "PUT", "PATCH") if part == ("policyId",) else _ALL
        allow(method, scope["path"], *allowed)
        if method == "GET":
            if thing_id:
                answer = await self._queries.one(scope, head, principal, thing_id, part)
            else:
                answer = await self._queries.many(scope, head, principal)
        else:
            body = await self._reception.body(receive)
            command = self.command(scope, head, principal, body)
            answer = await self._change(scope, head, command)
        await send_answer(send, *answer)
        return answer.status

    async def _change(self, scope: Scope, head: RequestHead, command: Command) -> Answer:
        live = live_command(command) if is_live(head) else None
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
        found = self._reception.known(scope)
        if found is None or "channel" in found[0].known or "prefer" in found[0].known:
            return None
        return found

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
        checks = parse_checks(known)
        if len(body) > self._reception.max_body:
            raise error("request.toolarge", limit=self._reception.max_body)
        method = scope["method"]
        path: tuple[str, ...] = ()
        if method == "POST":
            thing_id, action = _new_thing_id(scope), "create"
        else:
            thing_id, path = _address(self._reception.path(scope))
            action = _ACTIONS[method]
        value = None
        if action != "delete":
            allowed = _MERGE_TYPES if action == "merge" else _PUT_TYPES
            content_type = known.get("content-type")
            if content_type != allowed[0]:
                check_media_type(content_type, allowed)
            value = parse_json(body)
            if action == "create" and isinstance(value, dict) and "thingId" in value:
                raise error("things:id.notsettable", message=_NO_ID, description=_GENERATED)
        return make_command(
            head, options, principal.subjects, checks, thing_id, path, action, value, now_ms()
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
            if live:
                options = live_options(*given[1:], self._rules)
            else:
                options = http_options(Setter.TWIN_MODIFY, *given[1:], *self._rules)
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
    namespaces = parameters(scope, "namespace")
    if namespaces:
        return check_thing_id(f"{namespaces[0]}:{uuid4()}")
    return f"{DEFAULT_NAMESPACE}:{uuid4()}"
