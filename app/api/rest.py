"""The ordinary routes: health, metrics, the API document. FastAPI, errors of the catalogue."""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import orjson
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from acks.errors import GatewayError, error
from app.api.auth import Authenticator, Principal
from app.api.devops import IndexState, Rebuild, add_devops
from app.api.docs import add_docs
from app.api.http import RequestHead, correlation_id_of

MAX_HEAD_CHARS = 64 * 1024
"""Characters of headers and query; none of them travel on from here."""


class Check(BaseModel):
    """One thing that readiness depends on."""

    status: str = Field(description="UP or DOWN")
    detail: str | None = Field(default=None, description="Why it is DOWN")


class Health(BaseModel):
    """Health of this process."""

    status: str = Field(description="UP or DOWN", examples=["UP"])
    checks: dict[str, Check] = Field(default_factory=dict)


class About(BaseModel):
    """What answers here."""

    name: str = "ackgate"
    version: str
    links: dict[str, str]


class Rest:
    """Builds the FastAPI application around the process's own parts."""

    def __init__(
        self,
        authenticator: Authenticator,
        health: Callable[[], dict[str, str | None]],
        metrics: Callable[[], Awaitable[bytes]],
        index_status: IndexState,
        rebuild_index: Rebuild,
    ) -> None:
        self._authenticator = authenticator
        self._index = index_status, rebuild_index
        self._health = health
        self._metrics = metrics

    def build(self) -> FastAPI:
        """The application; all of it but health needs authentication."""
        app = FastAPI(
            title="ackgate",
            version=version("ackgate"),
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
        )
        app.add_exception_handler(GatewayError, _gateway_error)
        app.add_exception_handler(HTTPException, _http_error)
        app.add_exception_handler(RequestValidationError, _validation_error)
        not_ready: dict[int | str, dict[str, Any]] = {503: {"model": Health}}
        for path, endpoint, answers in (
            ("/health", self.health, not_ready),
            ("/health/live", self.live, None),
            ("/health/ready", self.ready, not_ready),
        ):
            app.get(
                path,
                response_model=Health,
                response_model_exclude_none=True,
                responses=answers,
                tags=["Operations"],
            )(endpoint)
        app.get("/metrics", tags=["Operations"], response_class=Response)(self.metrics())
        app.get("/", response_model=About, tags=["Operations"])(self.about())
        app.get("/openapi.json", include_in_schema=False)(self.openapi(app))
        add_devops(app, self._user(), *self._index)
        add_docs(app, self._user())
        return app

    def _checks(self) -> Health:
        checks = {
            name: Check(status="UP" if detail is None else "DOWN", detail=detail)
            for name, detail in self._health().items()
        }
        up = all(check.status == "UP" for check in checks.values())
        return Health(status="UP" if up else "DOWN", checks=checks)

    async def health(self, response: Response) -> Health:
        """Health with its checks; 503 while one of them is down (spec websocket-... 8)."""
        health = self._checks()
        if health.status != "UP":
            response.status_code = 503
        return health

    async def live(self) -> Health:
        """200 as long as the process answers at all."""
        return Health(status="UP")

    async def ready(self, response: Response) -> Health:
        """200 if requests can be served, else 503: store down, starting or draining."""
        return await self.health(response)

    def _user(self) -> Callable[[Request], Awaitable[Principal]]:
        async def user(request: Request) -> Principal:
            head = RequestHead(request.scope, MAX_HEAD_CHARS)
            return await self._authenticator.check(head.authorization)

        return user

    def metrics(self) -> Callable[..., Awaitable[Response]]:
        """The endpoint of ``/metrics``."""
        user = self._user()

        async def metrics(principal: Annotated[Principal, Depends(user)]) -> Response:
            """Metrics of all workers in the text format of Prometheus; operators only."""
            if not principal.operator:
                raise error("gateway:authorization.missing")
            return Response(
                await self._metrics(), media_type="text/plain; version=0.0.4; charset=utf-8"
            )

        return metrics

    def about(self) -> Callable[..., Awaitable[About]]:
        """The endpoint of ``/``."""
        user = self._user()

        async def about(principal: Annotated[Principal, Depends(user)]) -> About:
            """Name, version and where to go from here."""
            links = {
                "things": "/api/2/things/{thingId}",
                "websocket": "/ws/2",
                "health": "/health",
                "metrics": "/metrics",
                "openapi": "/openapi.json",
                "docs": "/docs",
            }
            return About(version=version("ackgate"), links=links)

        return about

    def openapi(self, app: FastAPI) -> Callable[..., Awaitable[Response]]:
        """The endpoint of ``/openapi.json``."""
        user = self._user()

        @cache
        def built() -> bytes:
            from app.api.openapi_file import document as build

            return orjson.dumps(build(app))

        async def document(principal: Annotated[Principal, Depends(user)]) -> Response:
            return Response(built(), media_type="application/json")

        return document


def _answer(request: Request, problem: GatewayError) -> JSONResponse:
    headers = {"correlation-id": correlation_id_of(request.scope), **problem.headers}
    return JSONResponse(problem.to_json(), problem.status, headers)


async def _gateway_error(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, GatewayError)
    return _answer(request, problem)


async def _http_error(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    path = request.url.path
    if problem.status_code == 405:
        allowed = (problem.headers or {}).get("Allow", "see the API document")
        return _answer(
            request,
            error("gateway:method.notallowed", method=request.method, path=path, allowed=allowed),
        )
    for beginning in ("/api/", "/ws/"):
        rest = path.removeprefix(beginning) if path.startswith(beginning) else ""
        version_part = rest.partition("/")[0]
        if rest and version_part != "2":
            return _answer(request, error("api.version.notsupported", version=version_part))
    return _answer(request, error("gateway:resource.notfound", path=path))


async def _validation_error(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in problem.errors()]
    return _answer(request, error("json.format.invalid", reason="; ".join(faults)))
