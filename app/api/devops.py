"""Operators' routes that are not part of Eclipse Ditto's API: how the search index is."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from acks.errors import error
from acks.signals import JsonObject
from app.api.auth import Principal
from app.store.sql.database import IndexBusy, IndexOff, IndexUnavailable

User = Callable[[Request], Awaitable[Principal]]
IndexState = Callable[[], Awaitable[JsonObject]]
"""How the index is, as :class:`IndexStatus` (app/search/overview.py)."""
Rebuild = Callable[[], Awaitable[None]]
"""Has the index built anew. Raises IndexOff, IndexUnavailable, IndexBusy."""


class Rebuilding(BaseModel):
    """How far rebuilds are: shards that are not done, keys of the store looked at, and all."""

    shards: int
    seen: int
    total: int


class IndexStatus(BaseModel):
    """How the search index is; what cannot be known is missing."""

    state: str = Field(description="complete, incomplete, unavailable or off")
    reason: str | None = Field(default=None, description="Why it is unavailable")
    database: str | None = Field(default=None, description="sqlite or postgresql")
    things: int | None = Field(default=None, description="Things in the index")
    indexers: int | None = Field(default=None, description="Processes that index")
    lagMs: int | None = Field(  # noqa: N815 - a name of the wire
        default=None, description="Age of the oldest change that is not in the index, ms"
    )
    rebuild: Rebuilding | None = None
    shards: list[dict[str, Any]] | None = Field(default=None, description="The same by shard")


def add_devops(app: FastAPI, user: User, index_status: IndexState, rebuild_index: Rebuild) -> None:
    """Add the routes, for operators only."""

    async def operator(principal: Annotated[Principal, Depends(user)]) -> None:
        if not principal.operator:
            raise error("gateway:authorization.missing")

    async def status() -> JSONResponse:
        """How the search index is, shard by shard."""
        return JSONResponse(await index_status())

    async def rebuild() -> JSONResponse:
        """Have the search index built anew from the things; it goes on serving meanwhile."""
        try:
            await rebuild_index()
        except (IndexOff, IndexUnavailable, IndexBusy) as problem:
            raise error("gateway:service.unavailable", reason=str(problem)) from problem
        return JSONResponse(await index_status(), 202)

    for method, path, endpoint, code in (
        ("GET", "/devops/search", status, 200),
        ("POST", "/devops/search/rebuild", rebuild, 202),
    ):
        app.add_api_route(
            path,
            endpoint,
            methods=[method],
            status_code=code,
            response_model=IndexStatus,
            dependencies=[Depends(operator)],
            tags=["Operations"],
        )
