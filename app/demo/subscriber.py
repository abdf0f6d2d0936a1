"""The demo's WebSocket subscriber: it declares a label, gets events and acknowledges them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from app.demo.processes import DemoFailed

ANSWER_WITHIN = 10.0  # seconds
Tell = Callable[[str], None]


@asynccontextmanager
async def subscriber(
    gateway: str, label: str, user: str, password: str, tell: Tell
) -> AsyncIterator[None]:
    """A subscriber at ``gateway`` (its http URL) that answers every event with 200 for ``label``.

    ``tell`` gets a sentence for everything that happens. Raises DemoFailed if the gateway refuses.
    """
    url = f"{gateway.replace('http', 'ws', 1)}/ws/2?declared-acks={quote(label, safe=':')}"
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    try:
        connection = await connect(
            url,
            additional_headers={"Authorization": f"Basic {login}"},
            proxy=None,
            open_timeout=ANSWER_WITHIN,
            close_timeout=ANSWER_WITHIN,
        )
    except (OSError, TimeoutError, WebSocketException) as problem:
        raise DemoFailed(f"the subscriber cannot connect to {url}: {problem}") from problem
    try:
        await _subscribe(connection, label, tell)
        reader = asyncio.create_task(_read(connection, label, tell), name="demo-subscriber")
        try:
            yield
            if reader.done():
                raise DemoFailed(f"the subscriber's connection ended: {reader.exception()!r}")
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
    finally:
        await connection.close()


async def _subscribe(connection: ClientConnection, label: str, tell: Tell) -> None:
    await connection.send("START-SEND-EVENTS")
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            answer = await connection.recv()
    except (TimeoutError, ConnectionClosed) as problem:
        raise DemoFailed(
            f"no answer to the subscriber's START-SEND-EVENTS: {problem!r}"
        ) from problem
    if answer != "START-SEND-EVENTS:ACK":
        raise DemoFailed(f"the subscriber was refused: {answer!r}")
    tell(f"connected to gateway 2, declares the label {label}")


async def _read(connection: ClientConnection, label: str, tell: Tell) -> None:
    async for frame in connection:
        envelope = orjson.loads(frame)
        if "/events/" not in envelope["topic"]:
            tell(f"got {frame!r}")
            continue
        asked = envelope["headers"].get("requested-acks", [])
        event = envelope["topic"].rpartition("/")[2]
        tell(
            f"event '{event}', revision {envelope['revision']}; "
            f"its requested-acks for me: {', '.join(asked) or 'none'}"
        )
        if label in asked:
            await connection.send(orjson.dumps(_ack(envelope, label)).decode())
            tell(f"confirms {label} with status 200")


def _ack(event: dict[str, Any], label: str) -> dict[str, Any]:
    namespace, name, *_ = event["topic"].split("/")
    return {
        "topic": f"{namespace}/{name}/things/twin/acks/{label}",
        "headers": {"correlation-id": event["headers"]["correlation-id"]},
        "path": "/",
        "value": {"shown": True},
        "status": 200,
    }
