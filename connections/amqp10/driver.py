"""The driver of AMQP 1.0, by the protocol engine of Apache Qpid Proton (extra ``amqp10``).

Addresses are the broker's names of nodes; those of JMS (``queue://NAME``, ``topic://NAME``) are
understood. The path of the uri is the host name that is told to the broker (its virtual host).
The credit of the links bounds what is given out; dispositions settle it: accepted, rejected, or
modified with delivery-failed (spec websocket-... 4.4). Confirmations: outlets.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any, ClassVar

import proton
from typing_extensions import override

from acks.settlement import Settlement
from connections.amqp10.engine import Engine, condition_error, connected
from connections.amqp10.inlets import Inlet, dispose, inlets_of, knows_modified
from connections.amqp10.message import decoded, headers_of, identity, payload_of, redeliveries
from connections.amqp10.outlets import Outlets, node_name
from connections.driver import (
    Delivery,
    Driver,
    Limits,
    OnDelivery,
    OnLost,
    OnStatus,
    OpenError,
    Publication,
    Published,
)
from connections.model import Connection
from connections.pauses import FIRST_RETRY_S, LAST_RETRY_S, doubling
from connections.publishing import not_sent
from connections.tls import tls_context


class Amqp10Driver(Driver):
    """One client of an AMQP 1.0 broker."""

    settles_redelivery: ClassVar[bool] = True

    def __init__(
        self, connection: Connection, client: int, generation: int, limits: Limits
    ) -> None:
        self._connection = connection
        self._client = client
        self._generation = generation
        self._limits = limits
        self._engine: Engine | None = None
        self._inlets: dict[str, Inlet] = {}
        self._outlets = Outlets(limits.publishing, self._target_is, self._flush)
        self._targets: dict[str, bool] = {}
        self._probe: Any = None
        self._unsettled: dict[int, tuple[Inlet, Any]] = {}
        self._tokens = itertools.count(1)
        self._opened = asyncio.Event()
        self._decided = asyncio.Event()
        self._ended = asyncio.Event()
        self._sessions = 0
        self._running = self._closing = False
        self._stale = 0
        self._why = ""  # a source cannot be consumed
        self._on_delivery: OnDelivery
        self._on_lost: OnLost
        self._on_status: OnStatus

    @property
    @override
    def stale(self) -> int:
        return self._stale

    @property
    @override
    def withheld(self) -> int:
        return 0  # all are given out at once, and settled at once

    # ------------------------------------------------------------------ open and close

    @override
    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        """See the seam. Addresses that cannot be consumed are told by ``on_status``.

        Raises OpenError; ``misconfigured`` if there is nothing but such addresses.
        """
        self._on_delivery, self._on_lost, self._on_status = on_delivery, on_lost, on_status
        try:
            await self._open()
        except BaseException:
            self._closing = True
            self._drop("The connection was not opened.")
            raise

    async def _open(self) -> None:
        tls = tls_context(self._connection)
        engine = await connected(self._connection, self._client, tls, self._on_event)
        self._engine = engine
        await self._until(self._opened, engine)
        self._outlets.wire = engine.wire
        for inlet in inlets_of(self._connection, self._limits.in_flight):
            self._inlets[inlet.name] = inlet
            self._attach(inlet)
        if not self._inlets:
            # Brokers check virtual hosts and rights no earlier than here.
            self._probe = engine.wire.session()
            self._probe.open()
            engine.flush()
        await self._until(self._decided, engine)
        useful = any(inlet.well for inlet in self._inlets.values()) or self._connection.targets
        if self._inlets and not useful:
            raise OpenError("misconfigured", f"None of the sources can be consumed: {self._why}")
        self._running = True
        engine.gone.add_done_callback(lambda gone: self._gone(gone.result()))

    @staticmethod
    async def _until(event: asyncio.Event, engine: Engine) -> None:
        """Wait for the broker; raises OpenError if the connection ends instead."""
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((waiting, engine.gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if engine.gone.done():
            raise engine.gone.result()

    @override
    async def close(self, grace_s: float) -> None:
        """End the sessions, so that the broker has taken all dispositions, then the connection."""
        engine = self._engine
        if engine is None or self._closing:
            return
        self._closing = True
        for inlet in self._inlets.values():
            if inlet.timer is not None:
                inlet.timer.cancel()
        self._unsettled.clear()
        with contextlib.suppress(TimeoutError, OpenError):
            async with asyncio.timeout(grace_s):
                self._sessions = 0
                for inlet in self._inlets.values():
                    if inlet.well:
                        self._sessions += 1
                        inlet.session.close()
                if self._sessions:
                    engine.flush()
                    await self._until(self._ended, engine)
                engine.wire.close()
                engine.flush()
                await asyncio.shield(engine.gone)
        self._drop("The connection is closed.")

    def _drop(self, why: str) -> None:
        self._unsettled.clear()
        for inlet in self._inlets.values():
            if inlet.timer is not None:
                inlet.timer.cancel()
        self._outlets.end(why)
        if self._engine is not None:
            self._engine.abort()

    def _gone(self, why: OpenError) -> None:
        """The connection is no more, for whatever reason."""
        if self._closing or not self._running:
            return
        self._closing = True
        self._drop(str(why))
        self._on_lost(str(why))

    # ---------------------------------------------------------------------- the seam

    @override
    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        found = None
        if delivery.generation == self._generation:
            found = self._unsettled.pop(delivery.token, None)
        if found is None:
            self._stale += 1
            return
        inlet, transfer = found
        dispose(transfer, settlement, modifies=inlet.modifies)
        inlet.link.flow(1)
        self._flush()

    @override
    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        if self._closing:
            return not_sent("The connection is closed.")
        return await self._outlets.publish(publication, deadline_s)

    def _flush(self) -> None:
        if self._engine is not None:
            self._engine.flush()

    def _target_is(self, address: str, well: bool, text: str) -> None:
        """Tell about addresses that the document has; well until something else is known."""
        known = self._targets.get(address, True)
        if known == well or self._closing:
            return
        if any(target.address == address for target in self._connection.targets):
            self._targets[address] = well
            self._on_status("target", address, well, text)

    # ------------------------------------------------------------------------ events

    def _on_event(self, event: Any) -> None:
        kind = event.type
        if kind is proton.Event.DELIVERY:
            link = event.link
            if link.is_receiver:
                self._transfer(link, event.delivery)
            elif (outlet := self._outlets.of(link.name)) is not None:
                outlet.answered(event.delivery)
        elif kind is proton.Event.LINK_FLOW:
            if event.link.is_sender and (outlet := self._outlets.of(event.link.name)) is not None:
                outlet.send()
                self._flush()
        elif kind is proton.Event.CONNECTION_REMOTE_OPEN:
            self._opened.set()
        elif kind is proton.Event.SESSION_REMOTE_OPEN:
            if event.session == self._probe:
                event.session.close()
                self._decided.set()
        elif kind is proton.Event.LINK_REMOTE_OPEN:
            self._attached(event.link)
        elif kind in (proton.Event.LINK_REMOTE_CLOSE, proton.Event.LINK_REMOTE_DETACH):
            self._detached(event.link.name, event.link.remote_condition)
        elif kind is proton.Event.SESSION_REMOTE_CLOSE:
            self._session_ended(event.session)

    def _attach(self, inlet: Inlet) -> None:
        assert self._engine is not None
        inlet.timer = None
        inlet.parts = None
        inlet.session = self._engine.wire.session()
        inlet.session.open()
        inlet.link = inlet.session.receiver(inlet.name)
        inlet.link.source.address = node_name(inlet.address)
        inlet.link.target.address = inlet.name
        inlet.link.rcv_settle_mode = proton.Link.RCV_FIRST
        inlet.link.max_message_size = self._limits.message_bytes
        inlet.link.open()
        inlet.link.flow(inlet.credit)
        self._flush()

    def _attached(self, link: Any) -> None:
        """A source without an address says that an end with the reason follows."""
        inlet = self._inlets.get(link.name)
        if inlet is None or link.remote_source.address is None:
            return
        inlet.tries = 0
        inlet.modifies = knows_modified(link.remote_source)
        self._source_is(inlet, True, "")

    def _session_ended(self, session: Any) -> None:
        ours = (inlet.name for inlet in self._inlets.values() if inlet.session == session)
        name = next(ours, None)
        if self._closing:
            self._sessions -= name is not None
            if self._sessions <= 0:
                self._ended.set()
        elif name is not None or (name := self._outlets.of_session(session)) is not None:
            self._detached(name, session.remote_condition)

    def _detached(self, name: str, condition: Any) -> None:
        if self._closing:
            return
        text = str(condition_error(condition, "The broker ended the link"))
        if self._outlets.ended(name, text):
            return
        inlet = self._inlets.get(name)
        if inlet is None or inlet.timer is not None:
            return
        inlet.link.close()
        inlet.session.close()
        for token in [token for token, (of, _) in self._unsettled.items() if of is inlet]:
            del self._unsettled[token]
        inlet.tries += 1
        wait = doubling(FIRST_RETRY_S, LAST_RETRY_S, inlet.tries)
        inlet.timer = asyncio.get_running_loop().call_later(wait, self._attach, inlet)
        self._flush()
        self._source_is(inlet, False, text)

    def _source_is(self, inlet: Inlet, well: bool, text: str) -> None:
        if inlet.well != well and not (inlet.well is None and well):
            self._on_status("source", inlet.address, well, text)
        inlet.well, self._why = well, text or self._why
        if all(each.well is not None for each in self._inlets.values()):
            self._decided.set()

    # ---------------------------------------------------------------------- messages

    def _transfer(self, link: Any, transfer: Any) -> None:
        """A message, or a part of one; what is too large is read to its end and rejected."""
        inlet = self._inlets.get(link.name)
        if inlet is None or inlet.link != link or self._closing:
            return
        if transfer.aborted:
            inlet.parts = None
            self._skip(inlet, transfer)
            return
        if not transfer.readable:
            return
        part = link.recv(transfer.pending) or b""
        if inlet.parts is None:
            inlet.parts = bytearray()
        if len(inlet.parts) <= self._limits.message_bytes:
            inlet.parts += part
        if transfer.partial:
            return
        raw, inlet.parts = bytes(inlet.parts), None
        link.advance()
        try:
            if len(raw) > self._limits.message_bytes:
                raise ValueError(f"A message has more than {self._limits.message_bytes} bytes.")
            delivery = self._delivery(inlet, decoded(raw), settles=not transfer.settled)
        except ValueError as problem:
            # Left alone it would keep its credit for ever.
            dispose(transfer, Settlement.DISCARD)
            self._skip(inlet, None)
            self._on_status("source", inlet.address, True, f"Rejected: {problem}")
            return
        if delivery.settles:
            self._unsettled[delivery.token] = (inlet, transfer)
        else:
            self._skip(inlet, transfer)
        self._on_delivery(delivery)

    def _skip(self, inlet: Inlet, transfer: Any) -> None:
        if transfer is not None:
            transfer.settle()
        inlet.link.flow(1)
        self._flush()

    def _delivery(self, inlet: Inlet, message: Any, *, settles: bool) -> Delivery:
        headers = headers_of(message)
        return Delivery(
            source=inlet.source,
            address=inlet.address,
            payload=payload_of(message),
            headers=headers,
            content_type=headers.get("content-type"),
            identity=identity(inlet.address, message),
            token=next(self._tokens),
            generation=self._generation,
            redeliveries=redeliveries(message),
            settles=settles,
        )
