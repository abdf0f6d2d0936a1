"""The ASGI application: hot paths straight to their endpoints, everything else to FastAPI."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import structlog

from acks.errors import GatewayError, error
from app.api.http import Receive, Scope, Send, correlation_id_of, raw_path, send_error
from app.api.messages import is_message_path
from app.api.things import Things
from app.api.ws import WebSocket
from app.observe.metrics import RequestMetrics

log = structlog.get_logger("access")

_API = "/api/2/"
CLIENT_GONE = 499
"""Counted as the status of requests whose client went away before the answer."""
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Endpoint = Callable[[Scope, Receive, Send], Awaitable[int]]
"""Serves a request and returns its status; raises GatewayError before it has sent anything."""


class Front:
    """Dispatches by path, renders errors of the catalogue, counts and (sampled) logs requests.

    ``endpoints`` serve what is below ``/api/2/``, by the first part of the path there.
    """

    def __init__(
        self,
        things: Things,
        messages: Endpoint,
        endpoints: Mapping[str, Endpoint],
        websocket: WebSocket,
        rest: Asgi,
        metrics: RequestMetrics,
        *,
        log_sample: float,
        max_body: int,
    ) -> None:
        self.things = things
        self.max_body = max_body
        self._messages = messages
        self._endpoints: dict[str, Endpoint] = {"things": things, **endpoints}
        self._websocket = websocket
        self._rest = rest
        self._metrics = metrics
        self._sample = log_sample

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, send)
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        path = raw_path(scope)  # endpoints cut it up as it was sent
        endpoint = None
        if path.startswith(_API):
            endpoint = self._endpoints.get(path[len(_API) :].partition("/")[0])
            if "box/" in path and endpoint is self.things and is_message_path(path):
                endpoint = self._messages
        try:
            if endpoint is not None:
                status = await endpoint(scope, receive, send)
            else:
                status = await self._ordinary(scope, receive, send)
        except GatewayError as problem:
            status = await self._refuse(scope, send, problem)
        except ConnectionResetError:
            status = CLIENT_GONE
        except Exception:
            log.exception("request.failed", correlation_id=_id(scope), path=path)
            status = await self._refuse(scope, send, error("gateway:internalerror"))
        hot = endpoint is not None and endpoint in (self.things, self._messages)
        hot = hot and "streamed" not in scope  # it lasts as long as its client likes
        self.answered(scope, status, time.perf_counter() - started, hot)

    def answered(self, scope: Scope, status: int, seconds: float, hot: bool = True) -> None:
        """Count a request, and log it if it is one of the sampled ones."""
        self._metrics.observe(hot, status, seconds)
        if self._sample and (status >= 500 or random.random() < self._sample):  # noqa: S311 - a sample
            log.info(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                ms=round(seconds * 1000, 2),
                correlation_id=_id(scope),
            )

    async def _refuse(self, scope: Scope, send: Send, problem: GatewayError) -> int:
        """Answer with an error; returns its status. Endpoints send nothing before they raise."""
        if problem.status >= 500:
            log.warning(
                "request.refused",
                error=problem.code,
                description=problem.description,
                correlation_id=_id(scope),
            )
        await send_error(send, problem, _id(scope))
        return problem.status

    async def _ordinary(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve a request by FastAPI, which renders its own errors; returns the status."""
        status = CLIENT_GONE

        def watched(message: MutableMapping[str, Any]) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        await self._rest(scope, receive, watched)
        return status


def _id(scope: Scope) -> str:
    known: str | None = scope.get("correlation_id")
    return known or correlation_id_of(scope)
