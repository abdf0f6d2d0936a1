"""Server-sent events over HTTP: changes of things, and messages (spec websocket-... 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from acks.bookmark import Positions, read_bookmark
from acks.commands import check_ids, check_query
from acks.document import MAX_DEPTH, check_thing_id
from acks.errors import GatewayError, error
from acks.fields import parse_extra_fields, parse_fields
from acks.headers import refuse_headers
from acks.interest import read_namespaces
from acks.journal import EVENT, MESSAGE
from acks.partial_thing import Path, View, event_data
from acks.payloads import Form, read_content_type
from acks.resources import ABSENT
from acks.rql import EVENT_PREFIXES, Logic, Predicate, parse_checked
from app.api.auth import Principal
from app.api.event_stream import EventStream, Tell, Told
from app.api.http import Receive, RequestHead, Scope, Send, query_items, split_path
from app.api.reception import parameters
from app.api.sse import Wire
from app.gateway import Gateway
from app.replay import Replay
from app.session import Delivery, Subscription

LAST_EVENT = "last-event-id"
_HISTORY = (
    "from-historical-revision", "to-historical-revision",
    "from-historical-timestamp", "to-historical-timestamp",
)  # fmt: skip


class Request(NamedTuple):
    """A request for a stream, and who sent it."""

    scope: Scope
    receive: Receive
    send: Send
    head: RequestHead
    principal: Principal


@dataclass(slots=True)
class _OfThings(Subscription):
    """What a stream wants: as ever, and of certain things only, unless ``ids`` is empty."""

    ids: frozenset[str] = frozenset()

    def covers(self, thing_id: str) -> bool:
        """Whether the thing is one of those that are wanted."""
        return (not self.ids or thing_id in self.ids) and Subscription.covers(self, thing_id)


class Events:
    """Streams of events; ``streams`` counts the open ones."""

    def __init__(self, gateway: Gateway, replay: Replay) -> None:
        self.streams = 0
        self._gateway = gateway
        self._replay = replay

    async def of_things(
        self,
        request: Request,
        path: str,
    ) -> int:
        """Stream the changes of things, of one, or of a part of one, as the ``path`` says.

        Raises GatewayError before anything is sent.
        """
        segments = split_path(path)[3:]
        if segments in ([], [""]):
            given = ",".join(parameters(request.scope, "ids"))
            ids = frozenset(check_ids(given.split(","), {}) if given else ())
            place: Path = ()
        else:
            ids, place = frozenset({check_thing_id(segments[0])}), _pointer(path, segments[1:])
        fields = parameters(request.scope, "fields")
        view = View(place, parse_fields(",".join(fields)) if fields else None)
        return await self._stream(request, ids, EVENT, _of_change(view))

    async def of_messages(
        self, request: Request, thing_id: str, is_wanted: Callable[[str], bool]
    ) -> int:
        """Stream the messages of a thing of which ``is_wanted(path)``; raises as for things."""

        def tell(delivery: Delivery) -> Told | None:
            return _of_message(delivery) if is_wanted(delivery.meta.path) else None

        return await self._stream(request, frozenset({thing_id}), MESSAGE, tell)

    async def _stream(self, request: Request, ids: frozenset[str], kind: str, tell: Tell) -> int:
        scope, receive, send, head, principal = request
        check_query(head.known)
        text = "This gateway does not serve the parameter '{name}' yet."
        refuse_headers(dict(query_items(scope)), _HISTORY, text)
        subscription = _subscription(scope, ids)
        after = self._bookmark(scope, head)
        session = await self._gateway.entrance.open(principal.subjects, ())
        try:
            stream = EventStream(self._gateway, self._replay, session, subscription, kind, tell)
            first = await stream.open(after)
            scope["streamed"] = True
            self.streams += 1
            try:
                await stream.run(Wire(scope, receive, send), head.correlation_id, first)
            finally:
                self.streams -= 1
        finally:
            await self._gateway.entrance.close(session)
        return 200

    def _bookmark(self, scope: Scope, head: RequestHead) -> Positions | None:
        """Where the client has got to; None for one that begins.

        A browser sends the header by itself when it connects again, and cannot set it before: the
        query is for its first time, and the header is newer.
        """
        given = head.carried.get(LAST_EVENT) or "".join(parameters(scope, LAST_EVENT)[:1])
        return read_bookmark(given, self._replay.shards, LAST_EVENT) if given else None


def _subscription(scope: Scope, ids: frozenset[str]) -> _OfThings:
    """What the parameters ask for.

    Raises ``thing-search:search.namespaces.invalid`` as a search with this parameter,
    ``rql.expression.invalid`` and what selectors raise.
    """
    namespaces = ",".join(parameters(scope, "namespaces"))
    extra = ",".join(parameters(scope, "extraFields"))
    return _OfThings(
        read_namespaces(namespaces, _no_namespace),
        _filter(parameters(scope, "filter")),
        parse_extra_fields(extra) if extra else None,
        ids=ids,
    )


def _no_namespace(reason: str) -> GatewayError:
    message = "The namespaces are not valid."
    return error("thing-search:search.namespaces.invalid", message=message, reason=reason)


def _filter(texts: list[str]) -> Predicate | None:
    """The filters as one: all of them have to fit."""
    filters = tuple(parse_checked(text, EVENT_PREFIXES) for text in texts if text)
    if len(filters) > 1:
        return Logic("and", filters)
    return filters[0] if filters else None


def _pointer(path: str, segments: list[str]) -> Path:
    """The part of a thing that is watched: any JSON pointer (spec websocket-... 3).

    Raises ``json.pointer.invalid``.
    """
    given = segments[:-1] if segments and segments[-1] == "" else segments
    parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in given)
    if len(parts) > MAX_DEPTH or not all(parts):
        raise error("json.pointer.invalid", pointer=path)
    return parts


def _of_change(view: View) -> Tell:
    """Tells of changes as far as they are in ``view``."""

    def tell(delivery: Delivery) -> Told | None:
        _, _, meta, headers, value, extra, parsed = delivery
        data = event_data(view, meta, headers, value, parsed, extra)
        return None if data is ABSENT else Told("", orjson.dumps(data))

    return tell


def _of_message(delivery: Delivery) -> Told:
    """A message: its subject as the event's type, its payload as data."""
    payload = delivery.parsed()
    content_type = delivery.headers.get("content-type")
    if payload is ABSENT:
        data = b""
    elif type(payload) is str and read_content_type(content_type).form is not Form.JSON:
        data = payload.encode("utf-8", "replace")
    else:
        data = orjson.dumps(delivery.value)
    return Told(delivery.meta.action, data)
