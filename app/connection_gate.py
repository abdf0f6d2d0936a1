"""The gateway as a connection sees it: what its sources have consumed, and its targets acknowledge.

The messages are those of a WebSocket session, carried out by the same code
(app/api/protocol_commands.py). What differs: several may wait for their turn, an outcome is told
even if no response is wanted, since the message is settled by it, and acks go to whichever target
was given the signal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import structlog
from typing_extensions import override

from acks.aggregator import Outcome
from acks.document import invalid_json
from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from acks.frame_head import FrameHead, frame_options
from acks.headers import AckOptions
from acks.labels import LIVE_RESPONSE
from acks.live import LiveResponse
from acks.protocol import read_topic
from acks.responses import Asked, answer_envelope
from acks.signals import Acknowledgement
from acks.topic import Topic
from app.api.protocol_commands import Desk, ProtocolCommands
from app.api.ws_turns import Kind, Turns
from app.crew import RELAYED, Crew, origin_of
from app.gateway import Gateway
from connections.ports import Answer, OnAnswer, Sender

log = structlog.get_logger(__name__)

WAITING = 10_000
"""Messages of one client that may wait for their turn; more are refused, and come again."""
UNDER_WAY = 10_000
"""Messages of one client that may be under way: the driver's bound is smaller."""
_NO_MESSAGE = ("protocoladapter:", "json.", "things:id.")
"""How codes of errors begin that say that there is no message, as a failed mapping does."""
_HEADER = "ditto-connection-id"
_NOTHING = Answer(None, ())


class Queue(Turns):
    """The order of a client's messages: what has to wait for its turn waits here.

    What has waited is carried out only if ``runs()`` says that the client is still ours.
    """

    def __init__(self, runs: Callable[[], bool] = lambda: True) -> None:
        super().__init__(self, UNDER_WAY)
        self._runs = runs
        self._holds = 0
        self._waiting: deque[tuple[Kind | None, str, Callable[[], None]]] = deque()

    def hold(self) -> None:
        """Carry out nothing more until :meth:`release`."""
        self._holds += 1

    def release(self) -> None:
        """Undo one :meth:`hold`."""
        self._holds -= 1
        if not self._holds and self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        while self._waiting and not self._holds:
            kind, thing_id, run = self._waiting.popleft()
            super().in_turn(kind, thing_id, partial(self._late, run))

    def _late(self, run: Callable[[], None]) -> None:
        if not self._closed and self._runs():
            run()

    @override
    def in_turn(self, kind: Kind | None, thing_id: str, run: Callable[[], None]) -> None:
        if not self._holds and not self._waiting:
            waits = self._must_wait(kind, thing_id)
            super().in_turn(kind, thing_id, partial(self._late, run) if waits else run)
        elif len(self._waiting) < WAITING:
            self._waiting.append((kind, thing_id, run))
        else:
            reason = "Too many messages of the connection are waiting."
            raise error("gateway:service.unavailable", reason=reason)


class ConnectionGate:
    """The Gate (connections/ports.py) of one client of a connection.

    ``crew`` are the connection's targets if they are here; else ``elsewhere()`` is the node that
    has them, None if that is not known. ``runs()`` says whether this process surely still runs
    the client: without that nothing is carried out.
    """

    def __init__(
        self,
        desk: Desk,
        connection_id: str,
        crew: Crew | None,
        *,
        elsewhere: Callable[[], str | None],
        runs: Callable[[], bool],
    ) -> None:
        self.desk = desk
        self.connection_id = connection_id
        self.crew = crew
        self.queue = Queue(runs)
        self.elsewhere = elsewhere
        self._runs = runs

    async def close(self) -> None:
        """Nobody waits for answers any more."""
        await self.queue.close()

    def submit(self, envelope: Envelope, sender: Sender, on_answer: OnAnswer) -> bool:
        """Handle a Ditto Protocol message; see :class:`connections.ports.Gate`."""
        errand = _Errand(self, sender, on_answer)
        topic: Topic | None = None
        try:
            if not self._runs():
                reason = "The connection is run by another process now."
                raise error("gateway:service.unavailable", reason=reason)
            topic = read_topic(envelope)
            errand.handle(envelope, topic, _text(envelope))
        except GatewayError as problem:
            # What is no message at all is settled at once (spec 4.4, 1), unless it is our fault.
            if problem.code.startswith(_NO_MESSAGE):
                errand.waits = False
            elif problem.status >= 500:
                errand.waits = True
            errand.refuse(envelope, topic, problem)
        except Exception:
            log.exception("connection.message_failed", connection=self.connection_id)
            errand.waits = True
            errand.refuse(envelope, topic, error("gateway:internalerror"))
        return errand.waits

    def acknowledge(self, target: int, ack: Acknowledgement) -> bool:
        """Take the ack that a target issues; see :class:`connections.ports.Gate`."""
        session = None if self.crew is None else self.crew.sessions.get(target)
        gateway = self.desk.gateway
        if session is None or not (ack.label == LIVE_RESPONSE or gateway.owns_labels()):
            return gateway.forward(None)
        routed = session.forward(self.signed(ack))
        if routed is not None and ack.weak:
            node, told = routed
            routed = node, told._replace(headers={**told.headers, "ditto-weak-ack": True})
        return gateway.forward(routed)

    def signed(self, ack: Acknowledgement) -> Acknowledgement:
        """The ack with the header that says which connection it comes from (spec 4.2, 4.5)."""
        return ack._replace(headers={**ack.headers, _HEADER: self.connection_id})


class _Errand(ProtocolCommands):
    """One message of a source; ``waits`` is whether its settlement has to wait for its answer."""

    __slots__ = ("_gate", "_on_answer", "waits")

    def __init__(self, gate: ConnectionGate, sender: Sender, on_answer: OnAnswer) -> None:
        super().__init__(
            gate.desk,
            gate.queue,
            subjects=sender.subjects,
            declared=sender.declared,
            origin=origin_of(gate.connection_id),
            defaults={},
        )
        self.waits = False
        self._gate = gate
        self._on_answer: OnAnswer | None = on_answer

    def refuse(self, envelope: Any, topic: Topic | None, problem: GatewayError) -> None:
        """Answer that the message cannot be taken."""
        answer = self._refusal(envelope, topic, problem)
        self._tell(Answer(answer, (problem.status,), error=problem))

    def _tell(self, answer: Answer) -> None:
        told, self._on_answer = self._on_answer, None
        if told is not None:
            told(answer)

    # --- acks and responses of the source

    @override
    def _acknowledge(self, ack: Acknowledgement) -> None:
        if not ack.correlation_id:
            raise error("acknowledgement:correlation-id.missing")
        crew, ack = self._gate.crew, self._gate.signed(ack)
        if crew is None:
            self._relay(ack, {"l": ack.label})
        elif not crew.owns:
            # Somebody else has declared them, or this is not known yet (acks-and-http 10).
            raise error("acknowledgement:label.not.declared", label=ack.label)
        elif not self._gateway.owns_labels():
            # The request may still wait for it when the store is back.
            reason = "Whether the label is still the connection's is not known."
            raise error("gateway:service.unavailable", reason=reason)
        else:
            self._gateway.forward(crew.forward(ack))
        self._tell(_NOTHING)

    @override
    def _respond(self, response: LiveResponse) -> None:
        crew = self._gate.crew
        if crew is not None:
            self._gateway.forward(crew.answer(response))
        else:
            facts = {"k": response.criterion, "a": response.action, "w": response.path}
            ack = Acknowledgement(
                LIVE_RESPONSE,
                response.thing_id,
                response.correlation_id,
                response.status,
                response.payload,
                response.headers,
            )
            self._relay(ack, facts)
        self._tell(_NOTHING)

    def _relay(self, ack: Acknowledgement, facts: dict[str, Any]) -> None:
        node = self._gate.elsewhere()
        if node is None:
            self._gateway.forward(None)
            return
        payload = {"c": self._gate.connection_id, "p": ack.payload, **facts}
        self._gateway.forward((node, ack._replace(label=RELAYED, payload=payload)))

    # --- commands

    @override
    def _options(self, head: FrameHead, live: bool, *, query: bool = False) -> AckOptions:
        options = super()._options(head, live, query=query)
        # What only reads a twin cannot ask for acks (acks-and-http 2.4).
        self.waits = bool(options.requested_acks) and (live or not query)
        return options

    @override
    def _complete(
        self, live: bool, requested: str | None, wanted: str | None, timeout: str | None
    ) -> AckOptions:
        rules = self._desk.rules
        try:
            return frame_options(live, requested, wanted, timeout, *rules, settled=True)
        except GatewayError:
            # Other mistakes in a message are none of its settlement, these are (spec 4.4, 5).
            self.waits = True
            raise

    @override
    def _answer(self, asked: Asked, outcome: Outcome) -> None:
        if self._on_answer is None:
            return
        envelope = None
        if asked.wanted:
            envelope = _plain(answer_envelope(asked, outcome), nested=bool(outcome.acks))
        if outcome.error is not None:
            self._tell(Answer(envelope, (outcome.status,), error=outcome.error))
        elif outcome.response is not None:
            self._tell(Answer(envelope, (outcome.status,)))
        else:
            acks = outcome.acks
            live = len(acks) == 1 and acks[0].label == LIVE_RESPONSE
            self._tell(Answer(envelope, tuple(ack.status for ack in acks), live=live))

    @override
    def _answer_policy(
        self, asked: Asked, answer: Envelope | None, problem: GatewayError | None
    ) -> None:
        statuses = () if problem is None else (problem.status,)
        self._tell(Answer(answer, statuses, error=problem))

    @override
    def _sent(self) -> None:
        self._tell(_NOTHING)


def relayed(gateway: Gateway, record: Acknowledgement) -> None:
    """Take an ack or a response that a source of a connection has got on another node."""
    try:
        facts: dict[str, Any] = record.payload
        crew = gateway.sessions.crew(origin_of(facts["c"]))
        ack = record._replace(label=facts.get("l", LIVE_RESPONSE), payload=facts["p"])
        routed = None
        if crew is not None and "k" in facts:
            response = LiveResponse(
                ack.thing_id,
                facts["k"],
                facts["a"],
                facts["w"],
                ack.correlation_id,
                ack.status,
                ack.payload,
                ack.headers,
            )
            routed = crew.answer(response)
        elif crew is not None and crew.owns and gateway.owns_labels():
            routed = crew.forward(ack)
    except (KeyError, TypeError) as problem:
        log.error("connection.record_unreadable", error=repr(problem))
        return
    gateway.forward(routed)


def _text(envelope: Envelope) -> bytes:
    """The JSON of a message's value. Raises ``json.invalid`` for what no JSON can hold here."""
    try:
        return orjson.dumps(envelope.get("value"))
    except TypeError as problem:
        raise invalid_json(str(envelope.get("value")), f"{problem}.") from None


def _plain(envelope: Envelope, *, nested: bool) -> Envelope:
    """An answer whose value is JSON as Python has it, and not text that is already rendered.

    ``nested``: there may be such text within it.
    """
    value = envelope.get("value")
    if nested or isinstance(value, (orjson.Fragment, list)):
        envelope["value"] = orjson.loads(orjson.dumps(value))
    return envelope
