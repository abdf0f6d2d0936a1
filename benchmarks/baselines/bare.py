"""The bare app: the least code that stores a request durably, the upper bound for the gateway.

A bare ASGI callable for uvicorn that sends one script call (SET and XADD) per change through the
product's own coalescing client, and one GET per query. No authentication, no header rules, no
checks at all. A PATCH is not even merged: the document that was put last is stored again, with the
patch as its event, which is what a merge writes.
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
return redis.call('XADD', KEYS[2], '*', 'id', ARGV[2], 'v', ARGV[3] or ARGV[1])
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


DOCUMENTS: dict[str, bytes] = {}
"""What was put last, by thing id."""


async def answer(send_it: Callable[[Callable[[Reply | Exception], None]], None]) -> Reply:
    """The reply to what ``send_it`` sends to the store. Raises what the store client reports."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def replied(reply: Reply | Exception) -> None:
        if future.done():
            return
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    send_it(replied)
    return await future


async def store(thing_id: str, document: bytes, *event: bytes) -> None:
    """One script call: the document, and its event if that is another."""
    keys = (f"{{b}}:{thing_id}", "{b}:journal")
    await answer(lambda replied: REDIS.run(STORE, keys, (document, thing_id, *event), replied))


async def stored(thing_id: str) -> bytes | None:
    """The document in the store; None if there is none."""
    found = await answer(lambda replied: REDIS.send(("GET", f"{{b}}:{thing_id}"), replied))
    assert found is None or isinstance(found, bytes)
    return found


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI callable: PUT and PATCH store, GET of a thing reads, all else is answered 200."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    thing_id = scope["path"].rpartition("/")[2]
    status, content = 204, b""
    match scope["method"]:
        case "PUT":
            DOCUMENTS[thing_id] = body
            await store(thing_id, body)
        case "PATCH":
            await store(thing_id, DOCUMENTS[thing_id], body)
        case _:
            status, content = 200, await stored(thing_id) or b""
    headers = [] if status == 204 else [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
