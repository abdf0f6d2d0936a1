"""WebSocket ``/ws/2``: the upgrade, and one connection from its beginning to its end.

Source: spec websocket-... section 1; acks-and-http 5.3 to 5.5. Text commands are in
``ws_control.py``, messages of Ditto Protocol in ``ws_commands.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import structlog

from acks.control import BEGINNINGS, named_correlation_id, read_control
from acks.declared import check_group
from acks.envelopes import error_envelope
from acks.errors import GatewayError, error
from acks.frame_head import session_defaults
from acks.headers import parse_declared_acks
from acks.labels import check_labels, is_resolved
from app.api.auth import Authenticator
from app.api.http import Receive, Scope, Send, correlation_id_of, error_answer, new_correlation_id
from app.api.protocol_commands import Desk
from app.api.reception import Reception
from app.api.ws_auth import Expiry
from app.api.ws_commands import Commands
from app.api.ws_control import carry_out
from app.api.ws_protocol import WebSocketProtocol
from app.gateway import Gateway
from app.session import Session

log = structlog.get_logger(__name__)

CLOSE_DEADLINE = 5.0
"""How long a client may take to read what is left once its session is closed, s."""


class WebSocket:
    """The ``/ws/2`` endpoint: one call per connection."""

    def __init__(self, desk: Desk, reception: Reception, authenticator: Authenticator) -> None:
        self._desk = desk
        self._reception = reception
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection from its upgrade request to its end."""
        await receive()  # websocket.connect
        try:
            head, principal = await self._reception.open(scope)
            _check_version(scope["path"])
            labels = check_labels(parse_declared_acks(head.known.get("declared-acks", "")))
            group = check_group(head.known.get("ack-group"), labels)
            defaults = session_defaults(head.known)
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
        gateway = self._desk.gateway
        try:
            session = await gateway.entrance.open(principal.subjects, labels, group)
        except GatewayError as problem:
            await send(_frame(error_envelope(problem, head.correlation_id)))
            code = 1000 if problem.status == 409 else 1013
            await send({"type": "websocket.close", "code": code, "reason": problem.message[:120]})
            return
        wire: WebSocketProtocol = scope["extensions"]["ackgate"]
        commands = Commands(self._desk, session, principal, defaults, wire)
        expiry = Expiry(session, principal, self._authenticator)
        try:
            await _Connection(gateway, session, wire, commands, expiry).serve(receive, send)
        finally:
            expiry.cancel()
            await commands.close()
            await gateway.entrance.close(session)


class _Connection:
    """An open connection: its reader and its writer."""

    def __init__(
        self,
        gateway: Gateway,
        session: Session,
        wire: WebSocketProtocol,
        commands: Commands,
        expiry: Expiry,
    ) -> None:
        self._gateway = gateway
        self._session = session
        self._wire = wire
        self._commands = commands
        self._expiry = expiry

    async def serve(self, receive: Receive, send: Send) -> None:
        """Run reader and writer until one of them ends; no task outlives this call."""
        session, wire = self._session, self._wire
        wire.attach(self._take)
        session.send_soon = wire.send_soon
        self._expiry.arm()
        writer = asyncio.create_task(self._write(send), name=f"ws-writer-{session.id}")
        reader = asyncio.create_task(self._read(receive), name=f"ws-reader-{session.id}")
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

    def _take(self, text: str) -> bool:
        """Handle a frame at once; False for text commands, which may have to wait."""
        if text.startswith(BEGINNINGS):
            return False
        self._commands.take(text)
        return True

    async def _read(self, receive: Receive) -> None:
        """Handle what takes the ordinary way, and have the connection go on after each of it."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            try:
                if text is not None:  # binary frames are ignored (spec 1.3)
                    await self._handle(text)
            finally:
                self._wire.release()

    async def _handle(self, text: str) -> None:
        try:
            control = read_control(text)
            if control is not None:
                await carry_out(self._gateway, self._session, self._expiry, control)
                return
        except GatewayError as problem:
            self._complain(text, problem)
        except Exception:
            log.exception("ws.frame_failed", session=self._session.id)
            self._complain(text, error("gateway:internalerror"))
        else:
            self._commands.take(text)

    def _complain(self, text: str, problem: GatewayError) -> None:
        correlation_id = named_correlation_id(text) or new_correlation_id()
        self._session.put(orjson.dumps(error_envelope(problem, correlation_id)))

    async def _write(self, send: Send) -> None:
        session, wire = self._session, self._wire
        while True:
            frames = await session.frames()
            if frames and not await wire.send_texts(frames):
                return
            if session.closing is not None:
                wire.detach()
                code, reason = session.closing
                await send({"type": "websocket.close", "code": code, "reason": reason})
                return


def _check_version(path: str) -> None:
    """Raises ``gateway:resource.notfound``, ``api.version.notsupported``."""
    if not path.startswith("/ws/"):
        raise error("gateway:resource.notfound", path=path)
    version = path.removeprefix("/ws/").rstrip("/")
    if version != "2":
        raise error("api.version.notsupported", version=version)


def _frame(envelope: dict[str, Any]) -> dict[str, Any]:
    return {"type": "websocket.send", "text": orjson.dumps(envelope).decode()}


async def _refuse(scope: Scope, send: Send, problem: GatewayError) -> None:
    """Answer an upgrade request with an error over HTTP: there is no 101 (spec 1.1)."""
    answer = error_answer(problem, correlation_id_of(scope))
    headers = [(b"content-type", b"application/json")]
    for name in ("correlation-id", "www-authenticate", "retry-after"):
        if name in answer.headers:
            value = str(answer.headers[name])
            headers.append((name.encode(), value.encode("latin-1", "replace")))
    await send(
        {"type": "websocket.http.response.start", "status": problem.status, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": orjson.dumps(problem.to_json())})
    # Without this uvicorn logs every refusal as a failure of ours.
    scope["extensions"]["ackgate"].handshake_complete = True
