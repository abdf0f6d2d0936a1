"""The straightforward app: what a competent developer writes first.

FastAPI, a pydantic body model, a basic-auth dependency, redis-py's asyncio pool. A PUT does
MULTI(SET, XADD), a PATCH the same after WATCH and GET. If a subscriber's ack is asked for, the
event goes out by pub/sub to whichever process holds the WebSocket, and the ack comes back by
pub/sub to the waiting request.

Run by uvicorn (uvloop, httptools, access log off) with ``BENCH_REDIS_URL``, ``BENCH_USER`` and
``BENCH_PASSWORD``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from fastapi import (
    Body,
    Depends,
    FastAPI,
    Header,
    HTTPException,
    Response,
    WebSocket,
    WebSocketDisconnect,
)
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from pydantic import BaseModel, Field
from redis.asyncio import Redis
from redis.exceptions import WatchError

USER = os.environ.get("BENCH_USER", "bench")
PASSWORD = os.environ.get("BENCH_PASSWORD", "")
# The pool refuses what is above its limit, 100 by default.
REDIS = Redis.from_url(
    os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1"), max_connections=1_000
)
WAITING: dict[str, asyncio.Future[dict[str, Any]]] = {}


class Thing(BaseModel):
    """The body of a PUT."""

    policyId: str | None = None  # noqa: N815  # the name on the wire
    definition: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    features: dict[str, Any] = Field(default_factory=dict)


async def resolve_acks() -> None:
    """Hand each ack heard on the channel ``acks`` to the request that waits for it."""
    async with REDIS.pubsub() as pubsub:
        await pubsub.subscribe("acks")
        async for message in pubsub.listen():
            if message["type"] != "message":
                continue
            ack = json.loads(message["data"])
            future = WAITING.get(ack["headers"]["correlation-id"])
            if future is not None and not future.done():
                future.set_result(ack)


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Listen for acks as long as the process lives."""
    task = asyncio.create_task(resolve_acks())
    yield
    task.cancel()
    await REDIS.aclose()


app = FastAPI(lifespan=lifespan)
security = HTTPBasic()


def known(name: str, password: str) -> bool:
    """Is this the one user?"""
    return secrets.compare_digest(name.encode(), USER.encode()) and secrets.compare_digest(
        password.encode(), PASSWORD.encode()
    )


async def current_user(credentials: Annotated[HTTPBasicCredentials, Depends(security)]) -> str:
    """The authenticated user, or 401."""
    if not known(credentials.username, credentials.password):
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})
    return credentials.username


@app.get("/health/ready")
async def ready() -> dict[str, str]:
    """200 as soon as the store answers."""
    await REDIS.ping()
    return {"status": "UP"}


def event_text(
    action: str, thing_id: str, value: Any, correlation_id: str, requested_acks: list[str]
) -> str:
    """An event of a thing in the Ditto Protocol."""
    namespace, _, name = thing_id.partition(":")
    return json.dumps(
        {
            "topic": f"{namespace}/{name}/things/twin/events/{action}",
            "headers": {"correlation-id": correlation_id, "requested-acks": requested_acks},
            "path": "/",
            "value": value,
            "timestamp": datetime.now(UTC).isoformat(),
        }
    )


def seconds(timeout: str) -> float:
    """A timeout header such as ``10s`` or ``1500ms`` in s."""
    if timeout.endswith("ms"):
        return float(timeout.removesuffix("ms")) / 1000
    return float(timeout.removesuffix("s"))


@app.put("/api/2/things/{thing_id}")
async def put_thing(
    thing_id: str,
    thing: Thing,
    _user: Annotated[str, Depends(current_user)],
    requested_acks: Annotated[str, Header()] = "twin-persisted",
    timeout: Annotated[str, Header()] = "10s",
    correlation_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Store the thing and its event; wait for a subscriber's ack if one is asked for."""
    correlation_id = correlation_id or str(uuid.uuid4())
    custom = [label for label in requested_acks.split(",") if label != "twin-persisted"]
    event = event_text(
        "modified", thing_id, thing.model_dump(exclude_none=True), correlation_id, custom
    )
    async with REDIS.pipeline(transaction=True) as pipe:
        # A pipeline only collects here: there is nothing to await before execute.
        _ = pipe.set(f"thing:{thing_id}", thing.model_dump_json(exclude_none=True))
        _ = pipe.xadd("events", {"event": event})
        await pipe.execute()
    if not custom:
        return Response(status_code=204, headers={"correlation-id": correlation_id})
    future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    WAITING[correlation_id] = future
    try:
        await REDIS.publish("events", event)
        ack = await asyncio.wait_for(future, seconds(timeout))
    except TimeoutError:
        raise HTTPException(424, "no acknowledgement in time") from None
    finally:
        del WAITING[correlation_id]
    acks = {"twin-persisted": {"status": 204}, custom[0]: {"status": ack["status"]}}
    return Response(
        json.dumps(acks),
        200 if ack["status"] < 400 else 424,
        {"correlation-id": correlation_id},
        "application/json",
    )


def merged(target: Any, patch: Any) -> Any:
    """A merge patch applied to a value: RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@app.patch("/api/2/things/{thing_id}")
async def merge_thing(
    thing_id: str,
    patch: Annotated[dict[str, Any], Body(media_type="application/merge-patch+json")],
    _user: Annotated[str, Depends(current_user)],
    correlation_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Merge into the stored thing, unless it changes meanwhile: then once more."""
    correlation_id = correlation_id or str(uuid.uuid4())
    key = f"thing:{thing_id}"
    event = event_text("merged", thing_id, patch, correlation_id, [])
    async with REDIS.pipeline(transaction=True) as pipe:
        while True:
            await pipe.watch(key)
            document = cast(bytes | None, await pipe.get(key))  # sent at once after WATCH
            if document is None:
                raise HTTPException(404)
            thing = Thing.model_validate(merged(json.loads(document), patch))
            pipe.multi()  # type: ignore[no-untyped-call]  # redis-py has no type for it
            _ = pipe.set(key, thing.model_dump_json(exclude_none=True))
            _ = pipe.xadd("events", {"event": event})
            try:
                await pipe.execute()
                break
            except WatchError:
                continue
    return Response(status_code=204, headers={"correlation-id": correlation_id})


@app.get("/api/2/things/{thing_id}")
async def get_thing(thing_id: str, _user: Annotated[str, Depends(current_user)]) -> Response:
    """The stored thing."""
    document = cast(bytes | None, await REDIS.get(f"thing:{thing_id}"))
    if document is None:
        raise HTTPException(404)
    return Response(document, media_type="application/json")


async def forward_events(socket: WebSocket) -> None:
    """Send every event heard on the channel ``events`` to the socket."""
    async with REDIS.pubsub() as pubsub:
        await pubsub.subscribe("events")
        await socket.send_text("START-SEND-EVENTS:ACK")
        async for message in pubsub.listen():
            if message["type"] == "message":
                await socket.send_text(message["data"].decode())


def socket_user(header: str) -> bool:
    """Check a WebSocket's ``Authorization`` header."""
    try:
        name, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return False
    return known(name, password)


@app.websocket("/ws/2")
async def events(socket: WebSocket) -> None:
    """Events out, acks in."""
    if not socket_user(socket.headers.get("authorization", "")):
        await socket.close(1008)
        return
    await socket.accept()
    forwarding: asyncio.Task[None] | None = None
    try:
        while True:
            text = await socket.receive_text()
            if text == "START-SEND-EVENTS":
                forwarding = forwarding or asyncio.create_task(forward_events(socket))
            else:
                await REDIS.publish("acks", text)
    except WebSocketDisconnect:
        pass
    finally:
        if forwarding is not None:
            forwarding.cancel()
