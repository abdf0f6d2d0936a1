"""A broker of AMQP 1.0 made of the library's own server side, for what RabbitMQ 3 does not do.

What it does depends on the address. Sources: ``plain`` gives one message until it is settled,
``settled`` one that is settled already. Targets have the name of the outcome.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proton import Condition, Delivery, Message
from proton.handlers import Handshaker
from proton.reactor import Container

from tests.servers import free_port, wait_for_sync

OUTCOMES = {
    "accepted": Delivery.ACCEPTED,
    "rejected": Delivery.REJECTED,
    "released": Delivery.RELEASED,
    "modified": Delivery.MODIFIED,
}


class Broker:
    """``told`` has what became of the messages that it gave: state, and whether it failed."""

    def __init__(self) -> None:
        self.port = free_port()
        self.told: list[tuple[object, bool]] = []
        self.handlers = [Handshaker()]
        self.listening = threading.Event()
        self._acceptor: Any = None
        self._wires: list[Any] = []
        self._link: Any = None
        self.ending = self.stopping = False
        """For the test to set: end the link of the source; end everything."""

    def on_reactor_init(self, event: Any) -> None:
        self._acceptor = event.reactor.acceptor("127.0.0.1", self.port)
        event.reactor.schedule(0.01, self)
        self.listening.set()

    def on_timer_task(self, event: Any) -> None:
        if self.ending:
            self.ending = False
            self._link.condition = Condition("amqp:resource-deleted", "it was taken away")
            self._link.close()
        if self.stopping:
            self._acceptor.close()
            for wire in self._wires:
                wire.close()
        else:
            event.reactor.schedule(0.01, self)

    def on_connection_init(self, event: Any) -> None:
        self._wires.append(event.connection)

    def on_link_remote_open(self, event: Any) -> None:
        if event.link.is_receiver:
            event.link.flow(10)

    def on_link_flow(self, event: Any) -> None:
        link = event.link
        if not link.is_sender or not link.credit or link.unsettled or self.told:
            return
        address = link.remote_source.address
        delivery = link.delivery(f"tag-{address}")
        link.send(Message(body=b"x", inferred=True).encode())
        link.advance()
        if address == "settled":
            delivery.settle()
            self.told.append(("settled", False))
        self._link = link

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if link.is_receiver:
            if delivery.readable and not delivery.partial:
                link.recv(delivery.pending)
                link.advance()
                delivery.update(OUTCOMES[link.remote_target.address])
                delivery.settle()
                link.flow(1)
        elif delivery.updated:
            self.told.append((delivery.remote_state, delivery.remote.failed))
            delivery.settle()


@contextmanager
def amqp10_broker() -> Iterator[Broker]:
    """A running broker, in a thread of its own."""
    broker = Broker()
    container = Container(broker)
    thread = threading.Thread(target=container.run)
    thread.start()
    try:
        assert broker.listening.wait(10)
        yield broker
    finally:
        broker.stopping = True
        wait_for_sync(lambda: not thread.is_alive(), 10, "the end of the broker")
