"""Consumed messages: handed to the gateway, settled by what becomes of them (design, flow 3).

All of it happens in callbacks on the event loop; a message has no task.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial

import structlog

from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.settlement import Reply, Settlement, decide
from connections.driver import Delivery
from connections.intake import Intake, Problem
from connections.ledger import Ledger, Row
from connections.model import Connection
from connections.placeholders.lookups import Scope
from connections.ports import Answer, Gate, Sender
from connections.publishing import Publisher
from connections.replies import Replies
from connections.settling import Message, Opening, Settling

log = structlog.get_logger(__name__)

UNDER_WAY = 4
"""Commands under way in all, in terms of the messages in flight: some are of lost drivers, and
some of messages that were settled at once."""
_UNAVAILABLE = 503
_BROKEN = Answer(None, (500,))


class _Handled(Message):
    """A message whose commands are under way."""

    __slots__ = ("due", "expected", "expired", "handing", "open", "replies", "scope", "settled")

    def __init__(self, delivery: Delivery, opening: Opening, row: Row, scope: Scope) -> None:
        super().__init__(delivery, opening, row)
        self.scope = scope
        self.replies: list[Reply] = []
        self.expected = 0  # commands that asked for acks
        self.open = 0  # commands without an answer
        self.handing = True  # how many are expected is not known yet
        self.settled = False
        self.expired = False
        self.due = 0.0


class _Command:
    """One command of a message, until it is answered."""

    __slots__ = ("answer", "envelope", "message", "replies_to", "waits")

    def __init__(self, message: _Handled, envelope: Envelope, replies_to: Replies) -> None:
        self.message = message
        self.envelope = envelope
        self.replies_to = replies_to
        self.waits = False
        self.answer: Answer | None = None


class Inbound:
    """Takes what the drivers of one client consume.

    ``collect_s`` bounds how long the answers to a message are waited for, ``in_flight`` is how
    many messages a driver gives out unsettled.
    """

    def __init__(
        self,
        connection: Connection,
        gate: Gate,
        ledger: Ledger,
        settling: Settling,
        publisher: Publisher,
        collect_s: float,
        in_flight: int,
    ) -> None:
        self._connection = connection
        self._gate = gate
        self._ledger = ledger
        self._settling = settling
        self._publisher = publisher
        self._collect_s = collect_s
        self._most = in_flight * UNDER_WAY
        self._sources: dict[int, tuple[Intake, Replies]] = {}
        self._open = 0  # commands without an answer
        self._waiting: deque[tuple[Opening, Delivery]] = deque()
        self._advancing = False
        self._collecting: dict[_Handled, None] = {}  # in the order of their deadlines
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether the gateway still owes answers."""
        return self._open > 0

    def waiting(self, opening: Opening) -> int:
        """Messages of a driver that are to be handled when fewer are under way."""
        return sum(one is opening for one, _ in self._waiting)

    def read(self) -> None:
        """Read the texts of the sources. Raises PlaceholderError, GatewayError."""
        self._sources = {
            source.index: (
                Intake(self._connection, source, self._ledger),
                Replies(self._connection, source, self._ledger, self._publisher),
            )
            for source in self._connection.sources
        }

    def take(self, opening: Opening, delivery: Delivery) -> None:
        """Handle a message, now or when fewer are under way. Never raises.

        While draining, and of a driver that is lost, it is left unsettled: it comes again.
        """
        if self._settling.draining or not opening.alive or delivery.source not in self._sources:
            return
        if self._open < self._most and not self._waiting:
            self._handle(opening, delivery)
        elif delivery.settles or len(self._waiting) < self._most:
            self._waiting.append((opening, delivery))
        else:
            now = time.time()
            row = self._sources[delivery.source][0].row(delivery.address)
            row.count("consumed", now)
            row.count("dropped", now, ok=False)
            text = "Too many messages are under way, and the broker does not hold this one back."
            self._ledger.log(now, "source", "dropped", False, text, address=delivery.address)

    def ended(self, opening: Opening) -> None:
        """Its driver is lost: what waits of it comes again."""
        self._waiting = deque(one for one in self._waiting if one[0] is not opening)

    def drained(self) -> None:
        """Leave unsettled what waits."""
        self._waiting.clear()

    def close(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        self._collecting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- a message

    def _handle(self, opening: Opening, delivery: Delivery) -> None:
        intake, replies = self._sources[delivery.source]
        now = time.time()
        row = intake.row(delivery.address)
        row.count("consumed", now)
        message = _Handled(delivery, opening, row, intake.scope(delivery, now))
        opening.held.add(message)
        try:
            taken = intake.take(delivery, message.scope, row, now)
            for problem in taken.problems:
                self._refused(message, problem, replies)
            for envelope, sender in taken.commands:
                self._submit(_Command(message, envelope, replies), sender)
        except Exception:
            # Rule 6 of 4.4: what fails inside comes again, though not for ever.
            if self._ledger.alarming(now):
                log.exception("connection.message_failed", connection=self._connection.id)
            message.expected += 1
            message.replies.append(_reply(_BROKEN))
        message.handing = False
        self._decide(message)
        if message.open:
            self._collect(message)
        if self._ledger.verbose(now):
            text = f"Message of {len(delivery.payload):,} bytes was consumed."
            self._ledger.log(now, "source", "consumed", True, text, address=delivery.address)

    def _submit(self, command: _Command, sender: Sender) -> None:
        message = command.message
        message.open += 1
        self._open += 1
        answered = partial(self._answered, command)
        try:
            waits = self._gate.submit(command.envelope, sender, answered)
        except Exception:
            if self._ledger.alarming(time.time()):
                log.exception("connection.submit_failed", connection=self._connection.id)
            waits = True
            if command.answer is None:
                answered(_BROKEN)
        command.waits = waits
        if waits:
            message.expected += 1
            if command.answer is not None:
                message.replies.append(_reply(command.answer))
        elif command.answer is not None and (problem := command.answer.error) is not None:
            # What is no message at all is settled at once, as a failed mapping is (4.4, rule 1).
            message.row.count("mapped", time.time(), ok=False)
            self._note_refusal(message, problem)

    def _answered(self, command: _Command, answer: Answer) -> None:
        message = command.message
        if command.answer is not None:
            self._ledger.stale += 1
            return
        command.answer = answer
        if message.expired:
            self._ledger.stale += 1
        else:
            message.open -= 1
            self._open -= 1
            if not message.open:
                self._collecting.pop(message, None)
        try:
            command.replies_to.answer(answer, command.envelope, message.scope)
        except Exception:
            if self._ledger.alarming(time.time()):
                log.exception("connection.reply_failed", connection=self._connection.id)
        if command.waits and not message.handing:
            message.replies.append(_reply(answer))
            self._decide(message)
        if self._waiting:
            self._advance()

    def _decide(self, message: _Handled, late: bool = False) -> None:
        if message.settled:
            return
        settlement = decide(message.replies, message.expected, late=late)
        if settlement is None:
            return
        message.settled = True
        # That the gateway itself cannot serve is no fault of the message.
        excused = settlement is Settlement.REDELIVER and any(
            reply.error is not None and reply.error.status == _UNAVAILABLE
            for reply in message.replies
        )
        self._settling.settle(message, settlement, excused=excused)
        if settlement is not Settlement.ACCEPT:
            self._tell(message, settlement, late)

    def _tell(self, message: _Handled, settlement: Settlement, late: bool) -> None:
        found = [text for reply in message.replies for text in _in_words(reply)]
        why = "not all answers came in time" if late else ", ".join(found[:20])
        text = f"The message was not acknowledged ({why}): {settlement.value}."
        address = message.delivery.address
        self._ledger.log(time.time(), "source", "acknowledged", False, text, address=address)

    def _refused(self, message: _Handled, problem: Problem, replies: Replies) -> None:
        found = problem.error
        if problem.counts:
            message.expected += 1
            message.replies.append(Reply(error=found))
        self._note_refusal(message, found)
        replies.refuse(found, problem.envelope, message.scope)

    def _note_refusal(self, message: _Handled, problem: GatewayError) -> None:
        text = f"{problem.message} {problem.description or ''}"
        address = message.delivery.address
        self._ledger.log(time.time(), "source", "mapped", False, text, address=address)

    # --- waiting

    def _advance(self) -> None:
        if self._advancing:
            return  # an answer that came at once: the loop below goes on
        self._advancing = True
        try:
            while self._waiting and self._open < self._most:
                opening, delivery = self._waiting.popleft()
                if opening.alive and not self._settling.draining:
                    self._handle(opening, delivery)
        finally:
            self._advancing = False

    def _collect(self, message: _Handled) -> None:
        loop = asyncio.get_running_loop()
        message.due = loop.time() + self._collect_s
        self._collecting[message] = None
        if self._timer is None:
            self._timer = loop.call_at(message.due, self._expire)

    def _expire(self) -> None:
        """Settle those whose time is over (4.4, rule 4), and look again when the next one is."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._collecting:
            message = next(iter(self._collecting))
            if message.due > now:
                self._timer = loop.call_at(message.due, self._expire)
                break
            del self._collecting[message]
            message.expired = True
            self._open -= message.open
            message.open = 0
            self._decide(message, late=True)
        self._advance()


def _in_words(reply: Reply) -> list[str]:
    problem = reply.error
    if problem is not None:
        return [f"{problem.status} {problem.code}: {problem.message}"]
    return [str(status) for status in reply.statuses]


def _reply(answer: Answer) -> Reply:
    return Reply(answer.statuses, answer.live, answer.error)
