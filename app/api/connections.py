"""Connections over HTTP, for operators (spec websocket-... 4.6)."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from uuid import uuid4

import structlog

from acks.aggregator import Answer
from acks.errors import GatewayError, error
from acks.fields import Selector, parse_fields, select
from acks.headers import parse_boolean, refuse_headers
from acks.preconditions import Preconditions, parse_preconditions, tags_match
from acks.signals import JsonObject
from app.api.connection_reports import logs_json, metrics_json, status_json
from app.api.http import (
    Receive,
    RequestHead,
    Scope,
    Send,
    base_url,
    parse_json,
    read_body,
    send_answer,
    split_path,
)
from app.api.reception import Reception, allow, check_media_type, parameters
from app.store.connections import COMMANDS, ConnectionStore, StoredConnection, is_connection_id
from app.store.redis_client import StoreError, StoreUnavailable
from connections.documents.hosts import check_host, destinations, literal_addresses
from connections.documents.masking import masked, restored
from connections.documents.reading import MAX_BYTES
from connections.documents.validation import check_connection
from connections.driver import OpenError
from connections.model import DRY_RUN, Connection, Uri

log = structlog.get_logger(__name__)

COLLECTION = "/api/2/connections"
PROBE_S = 10.0
"""Seconds for a connection that is only tried (spec 4.1: testing-timeout)."""
PROBES_AT_ONCE = 4
RESOLVE_S = 5.0
MAX_COMMAND = 1_024
_PREFIX = "connectivity.commands:"
_OPEN, _CLOSE, _LOG = "openConnection", "closeConnection", "enableConnectionLogs"
_JSON_TYPES = ("application/json", "application/octet-stream", "")
_TEXT_TYPES = ("text/plain", "")
_VIEWS = {"status": status_json, "metrics": metrics_json, "logs": logs_json}
_NOT_SERVED = ("condition", "at-historical-revision", "at-historical-timestamp")


class Connections:
    """``/api/2/connections``: POST, GET; GET, PUT, DELETE of one; its commands and its state.

    ``blocked`` are hosts, by name or address, that no connection may lead to.
    """

    def __init__(
        self, store: ConnectionStore, reception: Reception, blocked: frozenset[str] = frozenset()
    ) -> None:
        self._store = store
        self._reception = reception
        self._blocked = blocked
        self._probes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        path = self._reception.path(scope)
        if not principal.operator:
            raise error("gateway:authorization.missing")
        refuse_headers(head.known, _NOT_SERVED, "Connections do not serve the header '{name}'.")
        segments = split_path(path)[3:]
        connection_id = segments[0] if segments else ""
        try:
            if segments in ([], [""]):
                answer = await self._collection(scope, receive, head)
            elif not is_connection_id(connection_id):
                raise error("connectivity:id.invalid", connection_id=connection_id[:200])
            elif len(segments) == 1:
                answer = await self._single(scope, receive, head, connection_id)
            elif len(segments) == 2:
                answer = await self._part(scope, receive, connection_id, segments[1])
            else:
                raise error("gateway:resource.notfound", path=path)
        except (StoreUnavailable, StoreError) as problem:
            raise _unavailable(connection_id, problem) from problem
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        await send_answer(
            send, answer.status, answer.body, {**headers, **answer.headers}, answer.content_type
        )
        return answer.status

    # --- all of them

    async def _collection(self, scope: Scope, receive: Receive, head: RequestHead) -> Answer:
        allow(scope["method"], scope["path"], "GET", "POST")
        if scope["method"] == "GET":
            return await self._list(scope)
        value = await self._body(receive, head)
        if isinstance(value, dict) and "id" in value:
            raise error("connectivity:id.notsettable")
        connection_id = str(uuid4())
        dry_run = parse_boolean("dry-run", head.known.get("dry-run", "false"))
        document, connection = await self._checked(
            value, connection_id + DRY_RUN if dry_run else connection_id, None
        )
        if dry_run:
            return await self._try(connection)
        revision = await self._store.create(document)
        log.info("connection.created", connection=connection_id, kind=connection.kind)
        if connection.open:
            await self._store.command(connection_id, _LOG)
        location = f"{base_url(scope, head)}{COLLECTION}/{connection_id}"
        return Answer(201, masked(document), {"location": location, "etag": _tag(revision)})

    async def _list(self, scope: Scope) -> Answer:
        ids_only = parse_boolean("ids-only", next(iter(parameters(scope, "ids-only")), "false"))
        fields = _fields(scope)
        found = await self._store.list()
        if ids_only:
            return Answer(200, [one.id for one in found], {})
        return Answer(200, [_shown(one.document, fields) for one in found], {})

    async def _try(self, connection: Connection) -> Answer:
        """Connect and disconnect again; raises ``connectivity:connection.failed``."""
        if self._probes >= PROBES_AT_ONCE:
            raise error("too.many.requests")
        # What runs connections is loaded by those who have some.
        from connections.drivers import factory
        from connections.supervisor import probe

        self._probes += 1
        try:
            outcome = await probe(connection, factory(connection.kind), PROBE_S)
        except OpenError as problem:
            outcome = problem
        finally:
            self._probes -= 1
        if isinstance(outcome, OpenError):
            raise error(
                "connectivity:connection.failed",
                connection_id=connection.id,
                reason=f"{outcome} ({outcome.cause})",
            )
        return Answer(200, outcome.encode(), {}, "text/plain; charset=utf-8")

    # --- one of them

    async def _single(
        self, scope: Scope, receive: Receive, head: RequestHead, connection_id: str
    ) -> Answer:
        method = scope["method"]
        allow(method, scope["path"], "GET", "PUT", "DELETE")
        checks = parse_preconditions(head.known) or Preconditions()
        value = await self._body(receive, head) if method == "PUT" else None
        stored = await self._stored(connection_id)
        tag = _tag(stored.revision)
        if method == "GET" and _is_known(checks, tag):
            return Answer(304, None, {"etag": tag})
        _check_tag(checks, tag, method)
        if method == "GET":
            return Answer(200, _shown(stored.document, _fields(scope)), {"etag": tag})
        if method == "DELETE":
            await self._store.delete(connection_id)
            log.info("connection.deleted", connection=connection_id)
            return Answer(204, None, {})
        if isinstance(value, dict) and value.get("id", connection_id) != connection_id:
            raise error(
                "connectivity:id.notsettable",
                message="The connection ID in the body is not the one in the URL.",
            )
        document, _ = await self._checked(value, connection_id, stored.document)
        revision = await self._store.replace(connection_id, document, stored.revision)
        if revision is None:
            raise error("connectivity:connection.notfound", connection_id=connection_id)
        log.info("connection.replaced", connection=connection_id, revision=revision)
        return Answer(204, None, {"etag": _tag(revision)})

    async def _part(self, scope: Scope, receive: Receive, connection_id: str, part: str) -> Answer:
        if part == "command":
            allow(scope["method"], scope["path"], "POST")
            return await self._command(scope, receive, connection_id)
        view = _VIEWS.get(part)
        if view is None:
            raise error("gateway:resource.notfound", path=scope["path"])
        allow(scope["method"], scope["path"], "GET")
        stored = await self._stored(connection_id)
        return Answer(200, view(stored, await self._store.reports(connection_id)), {})

    async def _command(self, scope: Scope, receive: Receive, connection_id: str) -> Answer:
        given = [value for name, value in scope["headers"] if name == b"content-type"]
        check_media_type(given[-1].decode("latin-1") if given else None, _TEXT_TYPES)
        text = (await read_body(receive, MAX_COMMAND)).decode("utf-8", "replace").strip()
        name = text.removeprefix(_PREFIX)
        known = (_OPEN, _CLOSE, *COMMANDS)
        if not text.startswith(_PREFIX) or name not in known:
            allowed = ", ".join(f"{_PREFIX}{one}" for one in known)
            raise error("connectivity:command.invalid", command=text[:200], allowed=allowed)
        if name in (_OPEN, _CLOSE):
            done = await self._store.set_open(connection_id, name == _OPEN)
            if done is not None and name == _OPEN:
                await self._store.command(connection_id, _LOG)
        else:
            done = await self._store.command(connection_id, name)
        if done is None:
            raise error("connectivity:connection.notfound", connection_id=connection_id)
        log.info("connection.command", connection=connection_id, command=name)
        return Answer(200, None, {})

    # --- what they share

    async def _stored(self, connection_id: str) -> StoredConnection:
        stored = await self._store.get(connection_id)
        if stored is None:
            raise error("connectivity:connection.notfound", connection_id=connection_id)
        return stored

    async def _body(self, receive: Receive, head: RequestHead) -> object:
        check_media_type(head.known.get("content-type"), _JSON_TYPES)
        return parse_json(await read_body(receive, MAX_BYTES))

    async def _checked(
        self, value: object, connection_id: str, stored: JsonObject | None
    ) -> tuple[JsonObject, Connection]:
        """A document as it is to be stored, with the secrets that it does not repeat."""
        if isinstance(value, dict):
            value = restored(value, stored)
        document, connection = check_connection(value, connection_id)
        if self._blocked:
            for uri in destinations(connection):
                await self._check_host(uri)
        return document, connection

    async def _check_host(self, uri: Uri) -> None:
        addresses = literal_addresses(uri)
        if not addresses:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(RESOLVE_S):
                    found = await loop.getaddrinfo(uri.host, uri.port, type=socket.SOCK_STREAM)
            except (TimeoutError, OSError):
                found = []  # what has no address now cannot be reached now
            addresses = [ip_address(one[4][0]) for one in found]
        check_host(uri, addresses, self._blocked)


def _shown(document: JsonObject, fields: Selector | None) -> JsonObject:
    shown = masked(document)
    return shown if fields is None else select(fields, shown)


def _fields(scope: Scope) -> Selector | None:
    given = parameters(scope, "fields")
    return parse_fields(",".join(given)) if given else None


def _tag(revision: int) -> str:
    return f'"rev:{revision}"'


def _is_known(checks: Preconditions, tag: str) -> bool:
    return checks.if_none_match is not None and tags_match(checks.if_none_match, tag)


def _check_tag(checks: Preconditions, tag: str, method: str) -> None:
    """Raises ``connectivity:precondition.failed``."""
    given = checks.if_match
    header = "if-match"
    if given is None or tags_match(given, tag):
        if method == "GET" or not _is_known(checks, tag):
            return
        given, header = checks.if_none_match, "if-none-match"
    problem = error(
        "connectivity:precondition.failed",
        header=header,
        given=", ".join(given or ()),
        current=tag,
    )
    problem.headers["etag"] = tag
    raise problem


def _unavailable(connection_id: str, problem: Exception) -> GatewayError:
    if not isinstance(problem, StoreUnavailable):
        log.error("store.command_failed", connection=connection_id, error=str(problem))
    if not connection_id:
        return error("gateway:service.unavailable", reason="The store cannot be reached.")
    return error("connectivity:connection.unavailable", connection_id=connection_id)
