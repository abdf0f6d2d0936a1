"""How well labels are acknowledged: ``GET /api/2/acks/report``, for operators.

The figures are those of the Spark job ack-report (connections/spark/jobs/ack_report.py), which puts
them into the store; without it there are none.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from acks.errors import error
from acks.journal import report_window_key, report_windows_key
from app.api.auth import Principal
from app.api.http import RequestHead, Scope, Send, send_answer
from app.api.reception import allow, parameters
from app.store.instant import instant
from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

MOST = 1_440
"""Most windows of one answer, the newest of those asked for; it says if there are more."""


class Report:
    """The resource of the ack report; ``label``, ``from`` and ``to`` select from it."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    async def answer(
        self, scope: Scope, head: RequestHead, principal: Principal, path: str, send: Send
    ) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        if not principal.operator:
            raise error("gateway:authorization.missing")
        allow(scope["method"], path, "GET")
        wanted = {label for text in parameters(scope, "label") for label in text.split(",")}
        start, end = _moment(scope, "from", "-inf"), _moment(scope, "to", "+inf")
        try:
            windows, more = await self._windows(start, end)
        except (StoreUnavailable, StoreError) as problem:
            raise error("gateway:service.unavailable", reason=str(problem)) from problem
        shown = (_shown(name, rows, wanted) for name, rows in windows)
        body = {"windows": [window for window in shown if window["labels"]], "more": more}
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        await send_answer(send, 200, body, headers)
        return 200

    async def _windows(self, start: str, end: str) -> tuple[list[tuple[str, Reply]], bool]:
        """The newest windows that begin in ``[start, end)``, in order; and whether there are more.

        Raises StoreUnavailable, StoreError.
        """
        before = end if end == "+inf" else f"({end}"
        index = report_windows_key(self._prefix)
        found = await self._redis.call(
            "ZREVRANGEBYSCORE", index, before, start, "LIMIT", 0, MOST + 1
        )
        assert isinstance(found, list)
        names = [name.decode() for name in found if isinstance(name, bytes)]
        kept = names[MOST - 1 :: -1] if len(names) > MOST else names[::-1]
        keys = [report_window_key(self._prefix, name) for name in kept]
        rows = await asyncio.gather(*(self._redis.call("HGETALL", key) for key in keys))
        # A window whose rows are gone has run out between the two questions.
        return [one for one in zip(kept, rows, strict=True) if one[1]], len(names) > MOST


def _shown(name: str, rows: Reply, wanted: set[str]) -> dict[str, Any]:
    """One window; ``rows`` is label, JSON, label, JSON ... as the store has it."""
    start, _, end = name.partition("-")
    assert isinstance(rows, list)
    levels = {}
    for label, text in zip(rows[::2], rows[1::2], strict=True):
        assert isinstance(label, bytes)
        assert isinstance(text, bytes)
        if not wanted or label.decode() in wanted:
            levels[label.decode()] = orjson.loads(text)
    return {
        "start": instant(int(start)),
        "end": instant(int(end)),
        "labels": dict(sorted(levels.items())),
    }


def _moment(scope: Scope, name: str, default: str) -> str:
    """An ISO-8601 instant of the query as ms since the epoch, in text.

    Raises ``json.format.invalid``: a query parameter has no error of its own in the catalogue.
    """
    given = parameters(scope, name)
    if not given:
        return default
    try:
        moment = datetime.fromisoformat(given[-1])
    except ValueError:
        raise error(
            "json.format.invalid",
            reason=f"The query parameter '{name}' is not an instant like 2026-01-31T12:00:00Z.",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return str(round(moment.timestamp() * 1000))
