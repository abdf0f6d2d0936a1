"""Ditto Protocol messages of one WebSocket session: frames in, answers out.

What the messages ask for is carried out in ``protocol_commands.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import structlog

from acks.aggregator import Outcome
from acks.document import check_depth, invalid_json
from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.frame_head import FrameHead, frame_options
from acks.headers import AckOptions
from acks.live import LiveResponse
from acks.protocol import read_topic
from acks.responses import Asked, answer_envelope, refusal
from acks.search_protocol import SearchCommand
from acks.signals import Acknowledgement
from acks.topic import Topic
from app.api.auth import Principal
from app.api.protocol_commands import Desk, ProtocolCommands
from app.api.ws_protocol import WebSocketProtocol
from app.api.ws_turns import Turns
from app.search.subscriptions import Subscriptions
from app.session import Session

log = structlog.get_logger(__name__)


class Commands(ProtocolCommands):
    """Takes the frames of a session in their order, and answers them."""

    def __init__(
        self,
        desk: Desk,
        session: Session,
        principal: Principal,
        defaults: Mapping[str, str],
        wire: WebSocketProtocol,
    ) -> None:
        super().__init__(
            desk,
            Turns(wire),
            subjects=principal.subjects,
            declared=session.declared,
            origin=session.id,
            defaults=defaults,
        )
        self._session = session
        self._wire = wire
        self._searches: Subscriptions | None = None

    async def close(self) -> None:
        """The session has ended: nobody waits for its answers any more."""
        if self._searches is not None:
            await self._searches.close()
        await self._turns.close()

    def take(self, text: str) -> None:
        """Handle a frame; what is wrong with it is answered."""
        if self._session.closing is not None:
            return
        envelope: Any = None
        topic: Topic | None = None
        try:
            envelope = _parse(text)
            topic = read_topic(envelope)
            self.handle(envelope, topic, text)
        except GatewayError as problem:
            self._refuse(envelope, topic, problem)
        except Exception:
            log.exception("ws.frame_failed", session=self._session.id)
            self._refuse(envelope, topic, error("gateway:internalerror"))

    def _acknowledge(self, ack: Acknowledgement) -> None:
        self._gateway.acknowledge(self._session, ack)

    def _respond(self, response: LiveResponse) -> None:
        self._gateway.answer(self._session, response)

    def _take_search(
        self, topic: str, command: SearchCommand, head: FrameHead, timeout_ms: int
    ) -> None:
        if self._searches is None:
            self._searches = Subscriptions(self._desk.search, self._session, self._wire.room)
        self._searches.take(command, head, timeout_ms)

    def _complete(
        self, live: bool, requested: str | None, wanted: str | None, timeout: str | None
    ) -> AckOptions:
        return frame_options(live, requested, wanted, timeout, *self._desk.rules)

    # --- answers

    def _answer(self, asked: Asked, outcome: Outcome) -> None:
        if asked.wanted:
            self._put(asked, answer_envelope(asked, outcome))

    def _answer_policy(
        self, asked: Asked, answer: Envelope | None, problem: GatewayError | None
    ) -> None:
        if answer is not None:
            self._put(asked, answer)

    def _sent(self) -> None:
        pass

    def _put(self, asked: Asked, envelope: Envelope) -> None:
        try:
            frame = orjson.dumps(envelope)
        except TypeError:
            # An ack may come from elsewhere (Spark) with a payload that cannot be rendered.
            log.exception("ws.answer_not_rendered", correlation_id=asked.correlation_id)
            frame = orjson.dumps(refusal(asked, error("gateway:internalerror")))
        if len(frame) > self._session.limit:
            limit = self._session.limit
            message = f"The answer has more than {limit:,} bytes."
            reason = "Ask for fewer Things, or for fewer of their fields."
            problem = error("request.toolarge", message=message, description=reason, limit=limit)
            frame = orjson.dumps(refusal(asked, problem))
        self._session.put(frame)

    def _refuse(self, envelope: Any, topic: Topic | None, problem: GatewayError) -> None:
        self._session.put(orjson.dumps(self._refusal(envelope, topic, problem)))


def _parse(text: str) -> Any:
    """A frame's JSON. Raises ``json.invalid``, ``json.format.invalid``."""
    if not text:
        raise error("json.format.invalid", reason="The message is empty.")
    try:
        envelope = orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        raise invalid_json(text, f"Not valid JSON: {problem}.") from None
    check_depth(envelope, text.count("{") + text.count("["))
    return envelope
