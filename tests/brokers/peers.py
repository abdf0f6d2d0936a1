"""Who a driver talks to in tests: a broker and its other clients, whatever its kind."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, get_args

import pytest

from acks.settlement import Settlement
from connections.driver import Delivery, Driver, DriverFactory, Limits, OpenError
from connections.model import Connection, Source, Target, Uri
from tests.servers import wait_for

ACCEPT, REDELIVER, DISCARD = Settlement.ACCEPT, Settlement.REDELIVER, Settlement.DISCARD
DEADLINE = 30.0  # of everything that is waited for, in seconds
SUBJECT = "integration:contract"

Kind = Literal["amqp-091", "amqp-10", "mqtt", "mqtt-5", "kafka", "http-push"]
Capability = Literal[
    "headers",  # messages have headers
    "content-type",  # ... and a content type
    "redeliver",  # a message can be given back while the connection stays open
    "confirm",  # the broker says that it has a publication
    "invalid address",  # some addresses cannot be published to: Peer.invalid
    "credentials",  # Peer.refused is turned away
    "tls",  # Peer.tls
    "restart",  # Peer.restart, and what was unsettled is still there
    "bounded",  # the driver can bound what it gives out
    "dead letters",  # the broker keeps what is discarded: Peer.with_letters
]
EVERYTHING: frozenset[Capability] = frozenset(get_args(Capability))


@dataclass(frozen=True, slots=True)
class Received:
    """A message as the other side sees it."""

    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """A listener with TLS, whose certificate ``ca`` (PEM) has signed and ``stranger`` has not."""

    uri: Uri
    ca: str
    stranger: str


class Peer(ABC):
    """A broker, and whoever else talks to it. It is connected within ``async with``."""

    kind: Kind
    factory: DriverFactory
    can: frozenset[Capability] = EVERYTHING
    qos: int | None = None  # of sources and targets
    uri: Uri
    refused: Uri  # with credentials that the broker refuses
    invalid: str = ""  # an address that nothing can be published to
    tls: Tls | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:  # noqa: B027 - some have nothing to do
        """Connect, if that is needed before anything is asked."""

    async def close(self) -> None:  # noqa: B027 - some have nothing to do
        """Say goodbye to the broker."""

    def connection(
        self,
        sources: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        uri: Uri | None = None,
        ca: str | None = None,
        **specific: str,
    ) -> Connection:
        """A connection with a source per address and a target per address.

        The same arguments give the same connection, so that one client can follow another.
        """
        uri = uri or self.uri
        return connection_of(
            self.kind,
            uri,
            sources,
            targets,
            qos=self.qos,
            ca=ca,
            specific={**self.defaults(uri), **specific},
        )

    def defaults(self, uri: Uri) -> Mapping[str, str]:
        """What ``specificConfig`` says where a test says nothing else."""
        return {}

    @abstractmethod
    async def address(self, name: str) -> str:
        """A new address that can be consumed and published to, made as far as it has to be."""

    @abstractmethod
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        """Publish, and return when the broker has it."""

    @abstractmethod
    async def receive(self, address: str) -> Received:
        """The next message that was published to an address; AssertionError at DEADLINE."""

    @abstractmethod
    async def unsettled(self, address: str) -> int:
        """How many messages the broker would give to the next client. No driver is open.

        Counting may take them.
        """

    async def with_letters(self, name: str) -> tuple[str, str]:
        """As :meth:`address`, and where the broker keeps what is discarded from there."""
        raise NotImplementedError

    async def restart(self) -> None:
        """Stop the broker and start it on the same data and ports."""
        raise NotImplementedError

    def needs(self, *capabilities: Capability) -> None:
        """Skip the test that this broker cannot pass."""
        for capability in capabilities:
            if capability not in self.can:
                pytest.skip(f"this broker has no {capability}")


def connection_of(
    kind: Kind,
    uri: Uri,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    qos: int | None = None,
    ca: str | None = None,
    specific: Mapping[str, str] | None = None,
) -> Connection:
    """A connection as :meth:`Peer.connection` returns it."""
    return Connection(
        id="contract",
        kind=kind,
        open=True,
        uri=uri,
        sources=tuple(
            Source(index=at, addresses=(address,), subjects=(SUBJECT,), qos=qos)
            for at, address in enumerate(sources)
        ),
        targets=tuple(
            Target(index=at, address=address, topics=(), subjects=(SUBJECT,), qos=qos)
            for at, address in enumerate(targets)
        ),
        ca=ca,
        specific=dict(specific or {}),
    )


class Client:
    """An open driver, and all that it has told."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.deliveries: list[Delivery] = []
        self.lost: list[str] = []
        self.statuses: list[tuple[str, str, bool, str]] = []
        self._taken = 0

    async def open(self) -> None:
        """Open the driver; its errors, and TimeoutError."""
        async with asyncio.timeout(DEADLINE):
            await self.driver.open(
                self.deliveries.append,
                self.lost.append,
                lambda *status: self.statuses.append(status),
            )

    @property
    def more(self) -> bool:
        """Whether there is a delivery that was not taken yet."""
        return len(self.deliveries) > self._taken

    async def next(self) -> Delivery:
        """The next delivery that was not taken yet."""
        await wait_for(lambda: self.more, DEADLINE, "a delivery")
        self._taken += 1
        return self.deliveries[self._taken - 1]

    async def take(self, count: int) -> list[Delivery]:
        """The next ``count`` deliveries."""
        return [await self.next() for _ in range(count)]

    def settle(self, delivery: Delivery, settlement: Settlement = ACCEPT) -> None:
        """As the driver's."""
        self.driver.settle(delivery, settlement)


@asynccontextmanager
async def client(
    peer: Peer, connection: Connection, *, generation: int = 1, limits: Limits | None = None
) -> AsyncIterator[Client]:
    """An open driver; it is closed afterwards."""
    one = Client(peer.factory(connection, 0, generation, limits or Limits()))
    try:
        await one.open()
        yield one
    finally:
        async with asyncio.timeout(DEADLINE):
            await one.driver.close(5)


async def send_all(peer: Peer, address: str, payloads: Sequence[bytes]) -> None:
    """Publish one after the other."""
    for payload in payloads:
        await peer.send(address, payload)


async def all_settled(peer: Peer, address: str) -> None:
    """The broker keeps nothing for the next client."""
    assert await peer.unsettled(address) == 0


async def refusal(factory: DriverFactory, connection: Connection) -> OpenError:
    """The error of a connection that cannot be opened; it is not told as a loss, too."""
    one = Client(factory(connection, 0, 1, Limits()))
    with pytest.raises(OpenError) as refused:
        await one.open()
    await one.driver.close(5)
    assert one.lost == []
    return refused.value
