"""Questions about things over HTTP: GET of one, of a part of it, of several by their ids."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from acks.aggregator import Answer
from acks.document import check_thing_id
from acks.errors import GatewayError, error
from acks.fields import Selector, parse_fields
from acks.headers import Setter, http_options
from acks.preconditions import parse_preconditions
from acks.signals import Query
from app.api.auth import Principal
from app.api.http import RequestHead, Rules, Scope, query_items
from app.api.live import CHANNEL_HEADERS, query_channels
from app.gateway import Gateway

MAX_IDS = 500
"""Things that one request may ask for; they are answered in one go."""
_HISTORY = ("at-historical-revision", "at-historical-timestamp")


class Queries:
    """GET of things and their parts."""

    def __init__(self, gateway: Gateway, rules: Rules) -> None:
        self._gateway = gateway
        self._rules = rules

    def query(
        self,
        scope: Scope,
        head: RequestHead,
        principal: Principal,
        thing_id: str,
        path: tuple[str, ...],
    ) -> Query:
        """The query that a GET asks for. Raises GatewayError."""
        known = head.known
        if known.get("response-required") == "false":
            raise error("command.headers.invalid")
        for name in _HISTORY:
            if name in known:
                raise error(
                    "header.invalid", value=known[name], header=name, type=name,
                    description=f"This gateway does not serve the header '{name}' yet.",
                    extras={"invalidHeaderKey": name},
                )  # fmt: skip
        # A query always wants an answer, so a zero timeout is refused (spec acks-and-http 2.5).
        options = http_options(Setter.TWIN_MODIFY, None, "true", known.get("timeout"), *self._rules)
        return Query(
            thing_id,
            path,
            head.correlation_id,
            options.timeout_ms,
            principal.subjects,
            _fields(scope),
            parse_preconditions(known),
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

        async def twin() -> Answer:
            response = await self._gateway.query(query)
            return Answer(response.status, response.payload, response.headers)

        if CHANNEL_HEADERS.isdisjoint(head.known):
            return await twin()
        fields = _fields_text(scope) or ""
        return await query_channels(self._gateway, head, query, self._rules, fields, twin)

    async def many(self, scope: Scope, head: RequestHead, principal: Principal) -> Answer:
        """Answer ``GET /things?ids=a,b``: those that are there and may be read, in their order."""
        given = [value for name, value in query_items(scope) if name == "ids"]
        if not given:
            raise error(
                "things:id.invalid", thing_id="",
                description="Name the Things to read, e.g. ?ids=org.example:a,org.example:b",
            )  # fmt: skip
        ids = list(dict.fromkeys(check_thing_id(one) for one in ",".join(given).split(",")))
        if len(ids) > MAX_IDS:
            raise error("request.toolarge", message=f"More than {MAX_IDS} Things at once.", limit=0)
        if "condition" in head.known:
            raise error(
                "header.invalid", value=head.known["condition"], header="condition",
                type="condition", description="A condition is for one Thing at a time.",
                extras={"invalidHeaderKey": "condition"},
            )  # fmt: skip
        first = self.query(scope, head, principal, ids[0], ())._replace(checks=None)
        found = await asyncio.gather(*(self._value(first._replace(thing_id=one)) for one in ids))
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        return Answer(200, [value for value in found if value is not None], headers)

    async def _value(self, query: Query) -> Any:
        try:
            return (await self._gateway.query(query)).payload
        except GatewayError as problem:
            if problem.status == 404:
                return None
            raise


def _fields(scope: Scope) -> Selector | None:
    given = _fields_text(scope)
    return None if given is None else _selector(given)


def _fields_text(scope: Scope) -> str | None:
    if b"fields=" not in scope["query_string"]:
        return None
    given = [value for name, value in query_items(scope) if name == "fields"]
    return ",".join(given) if given else None


_selector = lru_cache(maxsize=1024)(parse_fields)
