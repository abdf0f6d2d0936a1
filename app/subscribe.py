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
        reason = _reason(bytes(refused.response.body or b""), str(refused))
        raise SubscriberFailed(f"{wanted.url} refuses: {reason}") from refused
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
            async with asyncio.timeout(ANSWER_WITHIN):
                # What was asked for before may come already.
                while (answer := await connection.recv()) != f"{command}:ACK":
                    envelope = _signal(answer)
                    if envelope is None:
                        reason = _reason(answer, str(answer))
                        raise SubscriberFailed(f"{wanted.url} refuses: {reason}")
                    await _take(connection, wanted, envelope, tell)
        except TimeoutError:
            raise SubscriberFailed(f"no answer to {command}") from None
    labels = ", ".join(wanted.labels) or "none"
    shared = f", shared in the group {wanted.group}" if wanted.group else ""
    tell(f"listening at {wanted.url}; labels declared: {labels}{shared}")


def _signal(frame: str | bytes) -> dict[str, Any] | None:
    """The envelope in a frame, None for an error, and for what is no envelope."""
    try:
        envelope: dict[str, Any] = orjson.loads(frame)
        return None if envelope["topic"].endswith("/errors") else envelope
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _reason(text: str | bytes, otherwise: str) -> str:
    """An error of the gateway, bare or in an envelope, as a sentence: status, what, what to do."""
    try:
        problem = orjson.loads(text)
        problem = problem.get("value", problem)
        texts = (problem["message"], problem.get("description"))
        return f"{problem['status']}: {' '.join(filter(None, texts))}"
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return otherwise


async def _take(
    connection: ClientConnection, wanted: Wanted, envelope: dict[str, Any], tell: Tell
) -> None:
    topic, headers = envelope["topic"].split("/"), envelope["headers"]
    if topic[-1] == "errors":
        text = orjson.dumps(envelope).decode()
        tell(f"error    {_reason(text, text)}")
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
