"""A subscriber for the command line: shows what it gets, and acknowledges it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

ANSWER_WITHIN = 10.0
"""Seconds in which the gateway has to answer."""
Tell = Callable[[str], None]


class SubscriberFailed(Exception):
    """The gateway cannot be reached, or refuses; says which and why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to listen to, and what to answer.

    ``url`` is the gateway's, http or https; ``status`` None: acknowledge nothing. ``payload`` is a
    JSON value, None for none. ``messages``: also get and answer messages. ``group``: share the
    labels with the other members of this group.
    """

    url: str
    user: str
    password: str
    labels: tuple[str, ...]
    status: int | None = 200
    payload: Any = None
    messages: bool = False
    group: str = ""


async def subscribe(wanted: Wanted, tell: Tell) -> None:
    """Listen until cancelled or the gateway closes; ``tell`` gets a line per happening.

    Raises SubscriberFailed.
    """
    target = urlsplit(wanted.url)
    if target.scheme not in ("http", "https") or not target.netloc:
        raise SubscriberFailed(f"'{wanted.url}' is no http or https address of a gateway")
    scheme = "wss" if target.scheme == "https" else "ws"
    query = urlencode({"declared-acks": ",".join(wanted.labels)}, safe=":,")
    if wanted.group:
        query += "&" + urlencode({"ack-group": wanted.group}, safe=":")
    login = base64.b64encode(f"{wanted.user}:{wanted.password}".encode()).decode()
    try:
        connection = await connect(
            f"{scheme}://{target.netloc}/ws/2?{query}",
            additional_headers={"Authorization": f"Basic {login}"},
            open_timeout=ANSWER_WITHIN,
            close_timeout=1.0,
        )
    except InvalidStatus as refused:
        body = (refused.response.body or b"").decode("utf-8", "replace")
        raise SubscriberFailed(f"{wanted.url} refuses: {body or refused}") from refused
    except (OSError, TimeoutError, WebSocketException) as problem:
        raise SubscriberFailed(f"no connection to {wanted.url}: {problem}") from problem
    async with connection:
        try:
            await _start(connection, wanted, tell)
            async for frame in connection:
                await _take(connection, wanted, orjson.loads(frame), tell)
        except ConnectionClosed:
            pass
    if connection.close_code not in (1000, 1005):
        reason = connection.close_reason or "no reason given"
        raise SubscriberFailed(f"the gateway closed ({connection.close_code}): {reason}")


async def _start(connection: ClientConnection, wanted: Wanted, tell: Tell) -> None:
    commands = ["START-SEND-EVENTS"] + ["START-SEND-MESSAGES"] * wanted.messages
    for command in commands:
        await connection.send(command)
        try:
            answer = await asyncio.wait_for(connection.recv(), ANSWER_WITHIN)
        except TimeoutError:
            raise SubscriberFailed(f"no answer to {command}") from None
        if answer != f"{command}:ACK":
            raise SubscriberFailed(f"refused: {_reason(answer)}")
    labels = ", ".join(wanted.labels) or "none"
    shared = f", shared in the group {wanted.group}" if wanted.group else ""
    tell(f"listening at {wanted.url}; labels declared: {labels}{shared}")


def _reason(frame: str | bytes) -> str:
    try:
        problem = orjson.loads(frame)["value"]
        return f"{problem['message']} ({problem['error']})"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return str(frame)


async def _take(
    connection: ClientConnection, wanted: Wanted, envelope: dict[str, Any], tell: Tell
) -> None:
    topic, headers = envelope["topic"].split("/"), envelope["headers"]
    if topic[-1] == "errors":
        tell(f"error    {_reason(orjson.dumps(envelope))}")
        return
    what = orjson.dumps(envelope["value"]).decode() if "value" in envelope else ""
    again = "again, " if headers.get("ackgate-redelivered") else ""
    revision = f"revision {envelope['revision']}, " if "revision" in envelope else ""
    tell(
        f"{topic[4][:-1]:<7}  {topic[0]}:{topic[1]} {'/'.join(topic[5:])} {envelope['path']} "
        f"{again}{revision}{what[:200]}"
    )
    if wanted.status is None:
        return
    for label in headers.get("requested-acks", ()):
        await connection.send(_answer(wanted, topic, headers, label))
        tell(f"ack      {label} {wanted.status}")
    if topic[4] == "messages" and headers.get("response-required"):
        await connection.send(_response(wanted, envelope))
        tell(f"answer   {wanted.status}")


def _answer(wanted: Wanted, topic: list[str], headers: dict[str, Any], label: str) -> str:
    ack = {
        "topic": f"{topic[0]}/{topic[1]}/things/{topic[3]}/acks/{label}",
        "headers": {"correlation-id": headers["correlation-id"]},
        "path": "/",
        "status": wanted.status,
    }
    return _with_payload(ack, wanted)


def _response(wanted: Wanted, message: dict[str, Any]) -> str:
    response = {
        "topic": message["topic"],
        "headers": {
            "correlation-id": message["headers"]["correlation-id"],
            "content-type": "application/json",
        },
        "path": message["path"],
        "status": wanted.status,
    }
    return _with_payload(response, wanted)


def _with_payload(envelope: dict[str, Any], wanted: Wanted) -> str:
    if wanted.payload is not None:
        envelope["value"] = wanted.payload
    return orjson.dumps(envelope).decode()
