"""Publishing by AMQP 1.0: a link per address, confirmed by dispositions (spec websocket-... 4.5).

A broker may answer a wrong address by ending the whole session, so every link has one of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import proton

from connections.amqp10.message import encoded
from connections.driver import Publication, Published
from connections.publishing import not_sent

MOST_OUTLETS = 64
"""Addresses with an open link; the one that was idle longest goes for a new one."""
_DONE = Published(200)
_JMS = ("queue://", "topic://")

OnAddress = Callable[[str, bool, str], None]
"""(address, can it be published to, details)."""


def node_name(address: str) -> str:
    """The broker's name for an address: without the prefixes of JMS."""
    for prefix in _JMS:
        if address.startswith(prefix):
            return address.removeprefix(prefix)
    return address


@dataclass(slots=True, eq=False)
class _Waiting:
    """A publication that the broker has not answered yet."""

    raw: bytes
    answer: asyncio.Future[Published]


class Outlet:
    """The sending link to one address. What is sent keeps the order of :meth:`add`."""

    def __init__(self, wire: Any, address: str, name: str, on_address: OnAddress) -> None:
        self.name = name
        self._address = address
        self._on_address = on_address
        self._unsent: deque[_Waiting] = deque()
        self._sent: dict[str, _Waiting] = {}
        self._tags = itertools.count(1)
        self._session = wire.session()
        self._session.open()
        self._link = self._session.sender(name)
        self._link.target.address = node_name(address)
        self._link.source.address = name
        self._link.snd_settle_mode = proton.Link.SND_UNSETTLED
        self._link.open()

    @property
    def busy(self) -> int:
        """Publications without an answer."""
        return len(self._unsent) + len(self._sent)

    def add(self, waiting: _Waiting) -> None:
        """Send it as soon as the broker gives credit."""
        self._unsent.append(waiting)
        self.send()

    def send(self) -> None:
        """Use the credit there is."""
        while self._unsent and self._link.credit > 0:
            waiting = self._unsent.popleft()
            if waiting.answer.done():  # given up meanwhile
                continue
            tag = str(next(self._tags))
            self._sent[tag] = waiting
            self._link.delivery(tag)
            self._link.send(waiting.raw)
            self._link.advance()

    def answered(self, delivery: Any) -> None:
        """The broker's disposition of one of them."""
        state = delivery.remote_state
        if state in (None, 0, proton.Delivery.RECEIVED) and not delivery.settled:
            return
        waiting = self._sent.pop(delivery.tag, None)
        published = _published(delivery)
        delivery.settle()
        if published is _DONE:
            self._on_address(self._address, True, "")
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_result(published)

    def give_up(self, waiting: _Waiting) -> None:
        """Forget it if it was not sent; else its answer is still to come, and read by nobody."""
        with contextlib.suppress(ValueError):
            self._unsent.remove(waiting)

    def owns(self, session: Any) -> bool:
        """Whether its link is in this session."""
        return bool(self._session == session)

    def end(self, why: str) -> None:
        """The link has ended, or never began: nothing more is answered."""
        for waiting in (*self._sent.values(), *self._unsent):
            if not waiting.answer.done():
                waiting.answer.set_result(not_sent(why))
        self._sent.clear()
        self._unsent.clear()
        self._on_address(self._address, False, why)

    def close(self) -> None:
        """Give the link back."""
        self._link.close()
        self._session.close()


def _published(delivery: Any) -> Published:
    state = delivery.remote_state
    if state == proton.Delivery.ACCEPTED:
        return _DONE
    if state == proton.Delivery.REJECTED:
        condition = delivery.remote.condition
        said = (condition.description or condition.name) if condition else "no reason given"
        return not_sent(f"The external broker rejected the message: {said}")
    if state == proton.Delivery.RELEASED:
        return not_sent("The external broker released the message: nobody takes it there.")
    if state == proton.Delivery.MODIFIED:
        return not_sent("The external broker could not deliver the message.")
    return not_sent("Message sending terminated without the expected acknowledgement.")


class Outlets:
    """All sending links of a client; at most ``most`` publications have no answer."""

    def __init__(self, most: int, on_address: OnAddress, flush: Callable[[], None]) -> None:
        self._most = most
        self._on_address = on_address
        self._flush = flush
        self._outlets: OrderedDict[str, Outlet] = OrderedDict()
        self._names = itertools.count(1)
        self._addresses: dict[str, str] = {}  # by the name of the link
        self.wire: Any = None
        """The library's connection while it is open."""

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """See the seam."""
        if self.wire is None:
            return not_sent("The connection is closed.")
        if sum(outlet.busy for outlet in self._outlets.values()) >= self._most:
            return not_sent("Too many messages wait for the external broker.")
        try:
            waiting = _Waiting(encoded(publication), asyncio.get_running_loop().create_future())
        except ValueError as problem:
            return not_sent(str(problem), 400)
        outlet = self._outlet(publication.address)
        if outlet is None:
            return not_sent("Too many addresses are published to at once.")
        outlet.add(waiting)
        self._flush()
        try:
            async with asyncio.timeout(deadline_s):
                return await waiting.answer
        except TimeoutError:
            return not_sent(f"The external broker did not answer within {deadline_s:g} s.")
        finally:
            outlet.give_up(waiting)

    def of(self, name: str) -> Outlet | None:
        """The outlet whose link has this name."""
        return self._outlets.get(self._addresses.get(name, ""))

    def of_session(self, session: Any) -> str | None:
        """The name of the link in this session."""
        for outlet in self._outlets.values():
            if outlet.owns(session):
                return outlet.name
        return None

    def ended(self, name: str, why: str) -> bool:
        """The broker has ended a link; a new one is made for what comes next."""
        address = self._addresses.pop(name, None)
        if address is None:
            return False
        outlet = self._outlets.pop(address)
        outlet.end(why)
        outlet.close()
        self._flush()
        return True

    def end(self, why: str) -> None:
        """Nothing more is sent or answered."""
        self.wire = None
        outlets, self._outlets = self._outlets, OrderedDict()
        self._addresses.clear()
        for outlet in outlets.values():
            outlet.end(why)

    def _outlet(self, address: str) -> Outlet | None:
        outlet = self._outlets.get(address)
        if outlet is None:
            if len(self._outlets) >= MOST_OUTLETS and not self._drop_idle():
                return None
            name = f"target-{next(self._names)}"
            outlet = Outlet(self.wire, address, name, self._on_address)
            self._outlets[address] = outlet
            self._addresses[name] = address
        self._outlets.move_to_end(address)
        return outlet

    def _drop_idle(self) -> bool:
        for address, outlet in self._outlets.items():
            if not outlet.busy:
                del self._outlets[address], self._addresses[outlet.name]
                outlet.close()
                return True
        return False
