"""WebSocket ``/ws/2``: subscribers that declare labels, receive events and send acks.

Source: spec websocket-... section 1; acks-and-http 5.3 to 5.5.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote_plus

import orjson
import structlog

from acks.document import check_depth
from acks.envelopes import error_envelope
from acks.errors import GatewayError, error
from acks.headers import parse_declared_acks
from acks.journal import COMMAND, EVENT, MESSAGE
from acks.labels import check_labels, is_resolved
from acks.protocol import (
    is_response,
    read_ack,
    read_headers,
    read_response,
    read_topic,
)
from app.api.auth import Authenticator
from app.api.http import Receive, RequestHead, Scope, Send, correlation_id_of, new_correlation_id
from app.api.ws_protocol import WebSocketProtocol
from app.gateway import Gateway
from app.session import Session, Subscription

log = structlog.get_logger(__name__)

_START = "START-SEND-"
_STOP = "STOP-SEND-"
_KINDS = ("EVENTS", "MESSAGES", "LIVE-COMMANDS", "LIVE-EVENTS", "POLICY-ANNOUNCEMENTS")
_SERVED = {"EVENTS": EVENT, "MESSAGES": MESSAGE, "LIVE-COMMANDS": COMMAND}
CLOSE_DEADLINE = 5.0
"""How long a client may take to read what is left once its session is closed, s."""


class WebSocket:
    """The ``/ws/2`` endpoint: one call per connection."""

    def __init__(self, gateway: Gateway, authenticator: Authenticator, *, max_headers: int) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._max_headers = max_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection from its upgrade request to its end."""
        await receive()  # websocket.connect
        try:
            head = RequestHead(scope, self._max_headers)
            principal = await self._authenticator.check(head.authorization)
            if not scope["path"].startswith("/ws/"):
                raise error("gateway:resource.notfound", path=scope["path"])
            version = scope["path"].removeprefix("/ws/").rstrip("/")
            if version != "2":
                raise error("api.version.notsupported", version=version)
            labels = check_labels(parse_declared_acks(head.known.get("declared-acks", "")))
        except GatewayError as problem:
            await _refuse(scope, send, problem)
            return
        await send({"type": "websocket.accept"})
        unresolved = next((label for label in labels if not is_resolved(label)), None)
        if unresolved is not None:
            # The session stays open without declarations (spec acks-and-http 1.6).
            invalid = error(
                "acknowledgement:label.invalid",
                label=unresolved,
                description="The label was not fully resolved while trying to declare it.",
            )
            await send(_frame(error_envelope(invalid, head.correlation_id)))
            labels = ()
        try:
            session = await self._gateway.open_session(principal.subjects, labels)
        except GatewayError as problem:
            await send(_frame(error_envelope(problem, head.correlation_id)))
            code = 1000 if problem.status == 409 else 1013
            await send({"type": "websocket.close", "code": code, "reason": problem.message[:120]})
            return
        try:
            await self._serve(session, scope["extensions"]["ackgate"], receive, send)
        finally:
            await self._gateway.close_session(session)

    async def _serve(
        self, session: Session, wire: WebSocketProtocol, receive: Receive, send: Send
    ) -> None:
        """Run reader and writer until one of them ends; no task outlives this call."""
        wire.sink = lambda text: self._take(session, text)
        writer = asyncio.create_task(_write(session, wire, send), name=f"ws-writer-{session.id}")
        reader = asyncio.create_task(self._read(session, receive), name=f"ws-reader-{session.id}")
        ending = asyncio.create_task(session.ended(), name=f"ws-ending-{session.id}")
        tasks = (reader, writer, ending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            session.close(1000, "")
            await asyncio.wait((writer,), timeout=CLOSE_DEADLINE)
            if not writer.done():
                # The client does not read: it will not see a close frame either.
                wire.transport.abort()
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError):
                    log.error("ws.session_failed", session=session.id, error=repr(result))

    async def _read(self, session: Session, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                continue  # binary frames are ignored (spec 1.3)
            try:
                if not await self._control(session, text):
                    self._protocol(session, text)
            except GatewayError as problem:
                _complain(session, text, problem)

    def _take(self, session: Session, text: str) -> bool:
        """Handle a frame at once if it needs no waiting; False for text commands."""
        if text.startswith((_START, _STOP)):
            return False
        try:
            self._protocol(session, text)
        except GatewayError as problem:
            _complain(session, text, problem)
        except Exception:
            log.exception("ws.frame_failed", session=session.id)
            _complain(session, text, error("gateway:internalerror"))
        return True

    async def _control(self, session: Session, text: str) -> bool:
        """Carry out a text command; False if it is none (matched by its beginning, spec 1.2)."""
        if not text.startswith((_START, _STOP)):
            return False
        start = text.startswith(_START)
        rest = text[len(_START if start else _STOP) :]
        kind = next((kind for kind in _KINDS if rest.startswith(kind)), None)
        if kind is None:
            return False
        served = _SERVED.get(kind)
        if served is None and start:
            # An ACK would promise signals that never come.
            raise error(
                "protocoladapter:unknown.topicpath",
                topic=f"{_START}{kind}",
                reason="This gateway delivers twin events, messages and live commands.",
            )
        if served is not None:
            if start:
                await self._gateway.subscribe(session, _subscription(rest), served)
            else:
                await self._gateway.unsubscribe(session, served)
        command = _START if start else _STOP
        session.put(f"{command}{kind}:ACK".encode())
        return True

    def _protocol(self, session: Session, text: str) -> None:
        try:
            envelope = orjson.loads(text)
        except orjson.JSONDecodeError as problem:
            shown = text if len(text) <= 64 else text[:64] + "..."
            raise error("json.invalid", text=shown, reason=f"Not valid JSON: {problem}.") from None
        check_depth(envelope, text.count("{") + text.count("["))
        topic = read_topic(envelope)
        if is_response(envelope, topic):
            self._gateway.answer(session, read_response(envelope, topic))
            return
        if topic.group != "things" or topic.criterion != "acks":
            raise error(
                "protocoladapter:unknown.topicpath",
                topic=envelope["topic"],
                reason="This gateway takes acknowledgements and responses over WebSocket; send "
                "commands and messages by HTTP.",
            )
        self._gateway.acknowledge(session, read_ack(envelope, topic, session.declared))


def _subscription(rest: str) -> Subscription:
    """Read the parameters of START-SEND-EVENTS and its likes."""
    parameters: dict[str, str] = {}
    for pair in rest.partition("?")[2].split("&"):
        name, equals, value = pair.partition("=")
        if equals:
            parameters[unquote_plus(name)] = unquote_plus(value)
    if "filter" in parameters:
        raise error(
            "rql.expression.invalid",
            text=parameters["filter"],
            reason="This gateway does not evaluate filters yet.",
            description="Leave the filter out, and choose among what comes.",
        )
    if parameters.get("extraFields"):
        raise error(
            "things:field.selection.invalid",
            text=parameters["extraFields"],
            reason="This gateway does not enrich signals yet.",
        )
    namespaces = parameters.get("namespaces", "").split(",")
    return Subscription(frozenset(name.strip() for name in namespaces if name.strip()))


async def _write(session: Session, wire: WebSocketProtocol, send: Send) -> None:
    while True:
        frames = await session.frames()
        if frames and not await wire.send_texts(frames):
            return
        if session.closing is not None:
            code, reason = session.closing
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return


def _complain(session: Session, text: str, problem: GatewayError) -> None:
    session.put(orjson.dumps(error_envelope(problem, _correlation_id(text))))


def _correlation_id(text: str) -> str:
    """The correlation-id that an erroneous frame names, for its error frame; else a new one."""
    try:
        found = read_headers(orjson.loads(text)).get("correlation-id")
    except (orjson.JSONDecodeError, GatewayError, AttributeError):
        found = None
    return found if isinstance(found, str) else new_correlation_id()


def _frame(envelope: dict[str, Any]) -> dict[str, Any]:
    return {"type": "websocket.send", "text": orjson.dumps(envelope).decode()}


async def _refuse(scope: Scope, send: Send, problem: GatewayError) -> None:
    """Answer an upgrade request with an error over HTTP: there is no 101 (spec 1.1)."""
    headers = [
        (b"content-type", b"application/json"),
        (b"correlation-id", correlation_id_of(scope).encode("latin-1", "replace")),
    ]
    if problem.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="ackgate", charset="UTF-8"'))
    await send(
        {"type": "websocket.http.response.start", "status": problem.status, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": orjson.dumps(problem.to_json())})
    # Without this uvicorn logs every refusal as a failure of ours.
    scope["extensions"]["ackgate"].handshake_complete = True
