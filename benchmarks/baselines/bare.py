"""The bare app: the least code that stores a PUT durably, the upper bound for the gateway.

A bare ASGI callable for uvicorn that sends one script call (SET and XADD) per request through the
product's own coalescing client. No authentication, no header rules, no checks at all.
Needs ``BENCH_REDIS_URL``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from app.store.redis_client import Redis, RedisAddress, Reply

SCRIPT = """
redis.call('SET', KEYS[1], ARGV[1])
return redis.call('XADD', KEYS[2], '*', 'id', ARGV[2], 'v', ARGV[1])
"""

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

REDIS = Redis(RedisAddress.parse(os.environ.get("BENCH_REDIS_URL", "redis://")), name="bare")
STORE = REDIS.register(SCRIPT)


async def lifespan(receive: Receive, send: Send) -> None:
    """Connect at the start, close at the end."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await REDIS.start()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            await REDIS.close()
            return


async def store(thing_id: str, body: bytes) -> Reply:
    """One script call; returns the entry's id. Raises what the store client reports."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def replied(reply: Reply | Exception) -> None:
        if future.done():
            return
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    REDIS.run(STORE, (f"{{b}}:{thing_id}", "{b}:journal"), (body, thing_id), replied)
    return await future


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI callable: every PUT is stored, every other request answered 200."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    status = 200
    if scope["method"] == "PUT":
        await store(scope["path"].rpartition("/")[2], body)
        status = 204
    headers = [] if status == 204 else [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
