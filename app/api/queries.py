"""Questions about things over HTTP: GET of one, of a part of it, of several by their ids."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlencode

from acks.aggregator import Answer
from acks.commands import check_ids, check_query, make_query
from acks.errors import GatewayError
from acks.fields import Selector, parse_fields
from acks.headers import Setter, http_options
from acks.signals import Query
from app.api.auth import Principal
from app.api.http import RequestHead, Rules, Scope
from app.api.live import CHANNEL_HEADERS, query_channels
from app.api.reception import parameters
from app.gateway import Gateway
from app.search.service import Search, search_request

VISIBLE = 200
"""Things of an answer to a request that names none: as many as a page of the search may have."""


class Queries:
    """GET of things and their parts; without ids ``search`` says which there are."""

    def __init__(self, gateway: Gateway, rules: Rules, search: Search) -> None:
        self._gateway = gateway
        self._rules = rules
        self._search = search

    def query(
        self,
        scope: Scope,
        head: RequestHead,
        principal: Principal,
        thing_id: str,
        path: tuple[str, ...],
    ) -> Query:
        """The query that a GET asks for. Raises GatewayError."""
        check_query(head.known)
        # A query always wants an answer, so a zero timeout is refused (spec acks-and-http 2.5).
        timeout = head.known.get("timeout")
        options = http_options(Setter.TWIN_MODIFY, None, "true", timeout, *self._rules)
        return make_query(
            head, options.timeout_ms, principal.subjects, thing_id, path, _fields(scope)
        )

    async def one(
        self,
        scope: Scope,
        head: RequestHead,
        principal: Principal,
        thing_id: str,
        path: tuple[str, ...],
    ) -> Answer:
        """Answer ``GET /things/{thingId}`` and below; raises GatewayError."""
        query = self.query(scope, head, principal, thing_id, path)

        if CHANNEL_HEADERS.isdisjoint(head.known):
            response = await self._gateway.query(query)
            return Answer(response.status, response.payload, response.headers)
        fields = _fields_text(scope) or ""
        twin = partial(self._gateway.query, query)
        return await query_channels(self._gateway, head, query, self._rules, fields, twin)

    async def many(self, scope: Scope, head: RequestHead, principal: Principal) -> Answer:
        """Answer ``GET /things?ids=a,b``: those that are there and may be read, in their order.

        Without ``ids``: the first :data:`VISIBLE` of all that may be read, by their ids, as far as
        the search index knows them; a link says how to read on.
        """
        given = parameters(scope, "ids")
        if not given:
            return await self._visible(scope, head, principal)
        ids = check_ids(",".join(given).split(","), head.known)
        first = self.query(scope, head, principal, ids[0], ())._replace(checks=None)
        found = await things_of(self._gateway, [first._replace(thing_id=one) for one in ids])
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        return Answer(200, found, headers)

    async def _visible(self, scope: Scope, head: RequestHead, principal: Principal) -> Answer:
        query = self.query(scope, head, principal, "", ())
        fields = _fields_text(scope)
        wanted = search_request(
            principal.subjects,
            query.timeout_ms,
            options=f"size({VISIBLE})",
            fields=fields,
            correlation_id=head.correlation_id,
        )
        page = await self._search.page(wanted)
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        if page.cursor is not None:
            rest = {"option": f"size({VISIBLE}),cursor({page.cursor})"}
            rest |= {} if fields is None else {"fields": fields}
            headers["link"] = f'</api/2/search/things?{urlencode(rest)}>; rel="next"'
        return Answer(200, list(page.items), headers)


async def things_of(gateway: Gateway, queries: list[Query]) -> list[Any]:
    """The answers to several queries, in their order, without those that find nothing.

    Raises as :meth:`Gateway.query`, except for 404.
    """

    async def value(query: Query) -> Any:
        try:
            return (await gateway.query(query)).payload
        except GatewayError as problem:
            if problem.status == 404:
                return None
            raise

    found = await asyncio.gather(*map(value, queries))
    return [thing for thing in found if thing is not None]


def _fields(scope: Scope) -> Selector | None:
    given = _fields_text(scope)
    return None if given is None else _selector(given)


def _fields_text(scope: Scope) -> str | None:
    given = parameters(scope, "fields")
    return ",".join(given) if given else None


_selector = lru_cache(maxsize=1024)(parse_fields)
