"""The search over HTTP: pages, counts, and a stream of all that is found (spec websocket-... 6.4).

What a GET has in its query a POST has in a form, for filters that are longer than an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl

from acks.commands import check_query
from acks.errors import GatewayError, error
from acks.headers import Setter, http_options
from app.api.auth import Principal
from app.api.http import Receive, RequestHead, Rules, Scope, Send, query_items, send_answer
from app.api.reception import Reception, allow, check_media_type
from app.api.search_stream import SearchStream
from app.api.sse import Wire, wants_stream
from app.search.service import Search, SearchRequest, search_request

THINGS = "/api/2/search/things"
COUNT = f"{THINGS}/count"
FORM = "application/x-www-form-urlencoded"
MAX_HEAD_CHARS = 64 * 1024
"""Characters of headers and query: filters and cursors are long, and do not travel on."""
MAX_FIELDS = 1_000
"""Fields of a form."""
MAX_STREAMS = 100
"""Open streams of a process: each keeps asking the index."""
LAST_EVENT = "last-event-id"


class _Given(NamedTuple):
    """The values of each parameter of a search."""

    filters: list[str]
    options: list[str]
    fields: list[str]
    namespaces: list[str]
    conditions: list[str]


class SearchThings:
    """``/api/2/search/things`` and what is below; ``streams`` counts the open streams.

    ``draining()`` says whether the process is about to end: then streams end, too.
    """

    def __init__(
        self,
        search: Search,
        reception: Reception,
        rules: Rules,
        draining: Callable[[], bool],
    ) -> None:
        self.streams = 0
        self._draining = draining
        self._search = search
        self._reception = reception
        # Without a timeout a search may take as long as any: the default is about acks.
        self._rules = rules._replace(default_timeout_ms=search.longest_ms)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        path = self._reception.path(scope).rstrip("/")
        method: str = scope["method"]
        if path not in (THINGS, COUNT):
            raise error("gateway:resource.notfound", path=path)
        allow(method, scope["path"], "GET", "POST")
        check_query(head.known)
        timeout_ms = self._timeout_ms(head)
        if method == "GET":
            given = _given(query_items(scope))
            if path == THINGS and wants_stream(head):
                request = _either(given, head, principal, timeout_ms)
                return await self._stream(scope, receive, send, head, request)
        else:
            check_media_type(head.known.get("content-type"), (FORM,))
            given = _given(_form(await self._reception.body(receive)))
        wanted = _request(given, head, principal, timeout_ms)
        body: object
        if path == COUNT:
            body = await self._search.count(wanted)
        else:
            body = await self._page(wanted)
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        await send_answer(send, 200, body, headers)
        return 200

    async def _page(self, request: SearchRequest) -> dict[str, object]:
        page = await self._search.page(request)
        body: dict[str, object] = {"items": page.items}
        if page.cursor is not None:
            body["cursor"] = page.cursor
        if page.next_offset is not None:
            body["nextPageOffset"] = page.next_offset
        return body

    def _timeout_ms(self, head: RequestHead) -> int:
        # A query always wants an answer, so a zero timeout is refused (spec acks-and-http 2.5).
        timeout = head.known.get("timeout")
        return http_options(Setter.TWIN_MODIFY, None, "true", timeout, *self._rules).timeout_ms

    async def _stream(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        head: RequestHead,
        request: SearchRequest | GatewayError,
    ) -> int:
        """Stream all that is found; errors of the search are events, too (spec 3)."""
        if self.streams >= MAX_STREAMS:
            raise error("too.many.requests")
        if self._draining():
            reason = "It is shutting down."
            raise error("gateway:service.unavailable", reason=reason)
        after = _last_event(scope, head)
        scope["streamed"] = True
        self.streams += 1
        try:
            stream = SearchStream(self._search, request, after, self._draining)
            await stream.run(Wire(scope, receive, send), head.correlation_id)
        finally:
            self.streams -= 1
        return 200


def _given(items: list[tuple[str, str]]) -> _Given:
    by_name: dict[str, list[str]] = {}
    for name, value in items:
        by_name.setdefault(name, []).append(value)
    names = ("filter", "option", "fields", "namespaces", "condition")
    return _Given(*(by_name.get(name, []) for name in names))


def _request(
    given: _Given, head: RequestHead, principal: Principal, timeout_ms: int
) -> SearchRequest:
    """Raises as :func:`search_request`."""
    conditions = given.conditions or [head.known.get("condition", "")]
    return search_request(
        principal.subjects,
        timeout_ms,
        filters=given.filters,
        options=",".join(option for option in given.options if option),
        fields=",".join(given.fields) or None,
        namespaces=",".join(given.namespaces).split(","),
        condition=conditions[-1] or None,
        correlation_id=head.correlation_id,
    )


def _either(
    given: _Given, head: RequestHead, principal: Principal, timeout_ms: int
) -> SearchRequest | GatewayError:
    """The search, or what is wrong with it."""
    try:
        return _request(given, head, principal, timeout_ms)
    except GatewayError as problem:
        return problem


def _form(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form; raises ``json.format.invalid`` if they cannot be read."""
    try:
        text = body.decode()
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        reason = f"The form is not UTF-8, or has more than {MAX_FIELDS:,} fields."
        raise error("json.format.invalid", reason=reason) from None


def _last_event(scope: Scope, head: RequestHead) -> str:
    """The id of the last thing the client has seen, "" for a client that begins."""
    given = head.carried.get(LAST_EVENT)
    if given is None:
        return next((value for name, value in query_items(scope) if name == LAST_EVENT), "")
    return given.encode("latin-1").decode("utf-8", "replace")
