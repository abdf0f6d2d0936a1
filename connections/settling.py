"""Brokers are told what became of their messages: once, to the client that had it, not for ever.

A message that is given back waits for a growing while first. After ``maxRedeliveries`` of them it
goes to the ``deadLetterAddress``, or is discarded (specificConfig of the connection).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from acks.settlement import Settlement
from connections.driver import Delivery, Driver, Publication, Published
from connections.ledger import Ledger, Row
from connections.model import Connection
from connections.pauses import doubling
from connections.publishing import Publisher

log = structlog.get_logger(__name__)

MAX_REDELIVERIES = 10
"""How often a message is given back unless ``maxRedeliveries`` says otherwise."""
MAX_KNOWN = 10_000
"""Failed messages of which is known how often; the oldest are forgotten."""
_BROKER_HEADERS = ("mqtt.", "kafka.", "amqp.")


class Message:
    """A consumed message until it is settled."""

    __slots__ = ("delivery", "opening", "row")

    def __init__(self, delivery: Delivery, opening: Opening, row: Row) -> None:
        self.delivery = delivery
        self.opening = opening
        self.row = row


@dataclass(slots=True, eq=False)
class Opening:
    """A driver from its opening until it is lost or closed, and what it has not settled.

    ``later`` are those among ``held`` that are given back after a while.
    """

    driver: Driver
    generation: int
    alive: bool = True
    held: set[Message] = field(default_factory=set)
    later: dict[Message, asyncio.TimerHandle] = field(default_factory=dict)

    def end(self) -> None:
        """Nothing is settled by it any more; its messages come again to another one."""
        self.alive = False
        self.forget()

    def forget(self) -> None:
        """Leave unsettled all that waits to be given back, or everything if it has ended."""
        for timer in self.later.values():
            timer.cancel()
        if self.alive:
            self.held.difference_update(self.later)
        else:
            self.held.clear()
        self.later.clear()


class Tries:
    """How often messages have failed: with each source, as another one may succeed with them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[int, int]] = {}

    def failed(self, delivery: Delivery, excused: bool) -> tuple[int, int]:
        """Count a failure; returns how many count against the message, and how many there were.

        ``excused``: the message is not to blame. The broker's own count includes those.
        """
        key = (delivery.source, delivery.identity)
        counted, all_of_them = self._known.pop(key, (0, 0))
        counted += not excused
        all_of_them += 1
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = (counted, all_of_them)
        if delivery.redeliveries is not None and not excused:
            counted = max(counted, delivery.redeliveries + 1 - (all_of_them - counted))
        return counted, all_of_them

    def done(self, delivery: Delivery) -> None:
        """It will not come again."""
        self._known.pop((delivery.source, delivery.identity), None)


class Settling:
    """Settles for one client. ``on_broken`` is told when a driver fails at it.

    ``first_s`` and ``last_s`` bound how long a message waits before it is given back.
    """

    def __init__(
        self,
        connection: Connection,
        ledger: Ledger,
        publisher: Publisher,
        first_s: float,
        last_s: float,
        on_broken: Callable[[str], None],
    ) -> None:
        self._id = connection.id
        self._most = _most(connection.specific.get("maxRedeliveries"))
        self._dead_letter = connection.specific.get("deadLetterAddress") or None
        self._ledger = ledger
        self._publisher = publisher
        self._first_s, self._last_s = first_s, last_s
        self._on_broken = on_broken
        # Otherwise an MQTT driver acknowledges what fails, as its protocol has no other way to have
        # it again than a new connection (spec 4.4), for which a clean session forgets it.
        self._returns = connection.kind not in ("mqtt", "mqtt-5") or (
            _is_set(connection, "reconnectForRedelivery")
            and not _is_set(connection, "cleanSession")
        )
        self._tries = Tries()
        self.draining = False  # what fails is left unsettled, and comes again to the next client

    def settle(self, message: Message, settlement: Settlement, *, excused: bool = False) -> None:
        """Tell the broker, now or later. Counted and ignored if it is not held any more.

        ``excused``: the gateway could not serve; it does not count against the message.
        """
        if message not in message.opening.held:
            self._ledger.stale += 1
        elif settlement is not Settlement.REDELIVER or not message.delivery.settles:
            self._tell(message, settlement)
        else:
            self._give_back(message, excused)

    def _give_back(self, message: Message, excused: bool) -> None:
        opening, delivery = message.opening, message.delivery
        counted, all_of_them = self._tries.failed(delivery, excused)
        returns = self._returns and opening.driver.settles_redelivery
        if self.draining:
            opening.held.discard(message)  # whoever is next has it again, on every broker
        elif not returns and self._dead_letter is None:
            self._tell(message, Settlement.REDELIVER)  # the driver does what its broker can
        elif counted > self._most or not returns:
            self._give_up(message, counted)
        else:
            delay = doubling(self._first_s, self._last_s, all_of_them)
            self._later(message, delay, self._tell, Settlement.REDELIVER)

    def _later(
        self, message: Message, delay_s: float, what: Callable[[Message, Any], None], how: object
    ) -> None:
        loop = asyncio.get_running_loop()
        message.opening.later[message] = loop.call_later(delay_s, what, message, how)

    def _tell(self, message: Message, settlement: Settlement) -> None:
        opening, delivery = message.opening, message.delivery
        opening.later.pop(message, None)
        opening.held.discard(message)
        accepted = settlement is Settlement.ACCEPT
        message.row.count("acknowledged", time.time(), accepted)
        if not delivery.settles:
            return
        if settlement is not Settlement.REDELIVER:
            self._tries.done(delivery)
        try:
            opening.driver.settle(delivery, settlement)
        except Exception:
            log.exception("connection.settle_failed", connection=self._id)
            self._on_broken("A message could not be settled.")

    # --- after too many times

    def _give_up(self, message: Message, tries: int) -> None:
        delivery = message.delivery
        message.opening.later.pop(message, None)
        text = f"The message failed {tries} times"
        if self._dead_letter is None:
            self._log(message, f"{text} and is discarded.")
            self._tell(message, Settlement.DISCARD)
            return
        letter = _dead_letter(delivery, self._dead_letter, tries)

        def published(result: Published) -> None:
            if message not in message.opening.held:
                self._ledger.stale += 1
            elif 200 <= result.status < 300:
                self._log(message, f"{text}; it is at the dead letter address now.")
                self._tell(message, Settlement.ACCEPT)
            elif self.draining:
                message.opening.held.discard(message)
            else:
                self._log(message, f"{text}; the dead letter address refused: {result.status}.")
                self._later(message, self._last_s, self._give_up, tries)

        self._publisher.send(letter, published)

    def _log(self, message: Message, text: str) -> None:
        address = message.delivery.address
        now = time.time()
        if self._ledger.alarming(now):
            log.warning("connection.gave_up", connection=self._id, address=address, reason=text)
        self._ledger.log(now, "source", "acknowledged", False, text, address=address)


def _is_set(connection: Connection, name: str) -> bool:
    return connection.specific.get(name, "").strip().lower() == "true"


def _most(text: str | None) -> int:
    """``maxRedeliveries`` as a number; the default for what is none."""
    if text is not None and text.isascii() and text.isdigit():
        return min(int(text[:9]), 1_000_000)
    return MAX_REDELIVERIES


def _dead_letter(delivery: Delivery, address: str, tries: int) -> Publication:
    """The message as it came, with what happened to it in its headers."""
    headers = {
        name: value
        for name, value in delivery.headers.items()
        if not name.startswith(_BROKER_HEADERS)
    }
    headers["ackgate-dead-letter-source"] = delivery.address
    headers["ackgate-dead-letter-tries"] = str(tries)
    return Publication(address, delivery.payload, delivery.content_type, headers, qos=1)
