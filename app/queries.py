"""What a query shows of a twin: authorisation, preconditions, selected fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import structlog

from acks.document import Twin
from acks.errors import GatewayError, error
from acks.fields import Selector, select
from acks.policy import READ, Policy
from acks.preconditions import check_tags
from acks.resources import ABSENT, lookup, missing, not_found
from acks.signals import JsonObject, Query, Response
from app.store.prepare import as_body, check_twin_condition, current_etag, etag

log = structlog.get_logger(__name__)

Found = tuple[Twin, bytes, Policy] | GatewayError
OnResponse = Callable[[Response | GatewayError], None]


def submit_query(
    read: Callable[[str, Callable[[Found], None]], None], query: Query, on_response: OnResponse
) -> None:
    """Answer a query without a task; ``read`` is :meth:`TwinStore.read`.

    ``on_response`` gets the response or the error, once, at the latest at the query's timeout.
    """
    loop = asyncio.get_running_loop()
    open_ = True

    def finish(result: Response | GatewayError) -> None:
        nonlocal open_
        if open_:
            open_ = False
            timer.cancel()
            on_response(result)

    def found(result: Found) -> None:
        if isinstance(result, GatewayError):
            finish(result)
            return
        try:
            response = answer_query(query, *result, None)
        except GatewayError as problem:
            finish(problem)
        except Exception:
            log.exception("query.failed", correlation_id=query.correlation_id)
            finish(error("gateway:internalerror"))
        else:
            finish(response)

    late = error("command.timeout", timeout_ms=query.timeout_ms)
    timer = loop.call_later(query.timeout_ms / 1000, finish, late)
    read(query.thing_id, found)


def answer_query(
    query: Query, twin: Twin, text: bytes, policy: Policy, policy_document: JsonObject | None
) -> Response:
    """The response to a query on a twin whose document is ``text`` (JSON).

    ``policy_document`` is the policy's, if the field ``_policy`` is wanted and may be read.
    Raises GatewayError: ``notfound`` also for what the requester may not read.
    """
    thing_id, path, subjects = query.thing_id, query.path, query.subjects
    whole = policy.may(subjects, READ, "thing", path)
    if not whole and not policy.may(subjects, READ, "thing", path, partial=True):
        raise not_found(thing_id, path)
    headers: dict[str, Any] = {"correlation-id": query.correlation_id, "response-required": False}
    if whole and not path and query.fields is None and query.checks is None:
        headers["etag"] = etag((), twin.revision, b"")
        headers["entity-revision"] = twin.revision
        return Response(200, orjson.Fragment(text), headers)
    twin = twin._replace(document=orjson.loads(text))
    assert twin.document is not None
    value = lookup(twin.document, path)
    tag = current_etag(twin, path, value, policy, subjects)
    if query.checks is not None:
        check_twin_condition(twin, policy, query.checks, subjects)
    if not whole:
        value = policy.view(subjects, "thing", path, value)
        if value is ABSENT:
            raise not_found(thing_id, path)  # the same, whether it is hidden or not there
        if not path:
            value = {"thingId": thing_id, **value}
    if value is ABSENT:
        raise missing(thing_id, twin.document, path)
    if query.checks is not None and not _wants_policy(query.fields):
        check_tags(query.checks, tag, kind="query")
    if query.fields is not None and isinstance(value, dict):
        if not path:
            value = {**value, **_special(twin, thing_id, policy_document)}
        value = select(query.fields, value)
    headers["etag"] = tag
    headers["entity-revision"] = twin.revision
    return Response(200, as_body(value), headers)


def _wants_policy(fields: Selector | None) -> bool:
    return fields is not None and "_policy" in fields.tree


def _special(twin: Twin, thing_id: str, policy_document: JsonObject | None) -> JsonObject:
    special: JsonObject = {
        "_namespace": thing_id.partition(":")[0],
        "_revision": twin.revision,
        "_created": twin.created,
        "_modified": twin.modified,
    }
    if policy_document is not None:
        special["_policy"] = policy_document
    return special
