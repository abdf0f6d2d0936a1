"""The driver seam: what a broker's library is reduced to (design, section 1).

A driver carries bytes and settles; it decides nothing. One driver instance is one client of one
connection: after :meth:`Driver.close`, or once it has told that it is lost, it is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from acks.settlement import Settlement
from connections.model import Connection

Cause = Literal["temporary", "misconfigured", "credentials"]


class OpenError(Exception):
    """A driver cannot be opened; the text says why, without secrets.

    ``temporary`` is tried again soon; what is ``misconfigured`` or refused for its ``credentials``
    is tried again, too, but shown as such.
    """

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message a driver has consumed, to be settled once.

    ``headers`` are the message's own, and those the broker's table names (``mqtt.topic``,
    ``mqtt.qos``, ``mqtt.retain``, ``kafka.topic``, ``kafka.key``, ``kafka.timestamp``,
    ``amqp.…``); names in lower case. ``token`` is the driver's own. ``identity`` names the message
    across redeliveries as well as the broker can (never empty); ``redeliveries`` is how often the
    broker says it was delivered before, None if it does not say. ``settles`` is False for messages
    that the broker regards as done (MQTT and Kafka with QoS 0).
    """

    source: int  # index of the source
    address: str  # as configured in the source
    payload: bytes
    headers: Mapping[str, str]
    content_type: str | None
    identity: str
    token: Any
    generation: int
    redeliveries: int | None = None
    settles: bool = True


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to be sent. ``address`` has no placeholders any more.

    ``headers`` have those of the broker's table too (``mqtt.topic``, ``mqtt.qos``, ``mqtt.retain``
    overrule the target's). ``key`` orders messages where the broker can (Kafka; the thing's id).
    """

    address: str
    payload: bytes
    content_type: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    qos: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publication, as the issued ack says it (spec websocket-... 4.5).

    ``payload`` is JSON (None: none). ``lost``: the connection is to be taken down for it.
    ``body`` is the raw answer of HTTP, with its ``content_type``.
    """

    status: int
    payload: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False
    body: bytes | None = None
    content_type: str | None = None


OnDelivery = Callable[[Delivery], None]
"""Takes a message; called on the event loop, must not raise; the message is settled later."""
OnLost = Callable[[str], None]
"""Told once that the broker is gone, with the reason; called on the event loop."""
OnStatus = Callable[[str, str, bool, str], None]
"""(type: source or target, address, is it well, details) when one of several addresses changes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one client: messages given out and not yet settled, waiting publications."""

    in_flight: int = 100
    publishing: int = 100
    message_bytes: int = 1024 * 1024


class Driver(Protocol):
    """One client of one connection. Methods are called on the event loop."""

    settles_redelivery: ClassVar[bool]
    """Whether a message can be given back to the broker at all."""

    async def open(self, on_delivery: OnDelivery, on_lost: OnLost, on_status: OnStatus) -> None:
        """Connect, and consume what the sources name.

        ``on_delivery`` may be called before this returns. The caller bounds the time by
        cancelling; nothing is left behind then. Raises OpenError.
        """

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Tell the broker what became of a message, in whatever order; returns at once.

        A delivery of another generation, or one that is settled already, is counted and ignored.
        """

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """Send a message and wait for the broker's confirmation, at most ``deadline_s``.

        Never raises but on cancellation. Messages of one target keep the order of the calls.
        """

    async def close(self, grace_s: float) -> None:
        """Stop consuming, send what settlements are on their way, disconnect. Idempotent.

        What is not settled comes again to the next client of the broker.
        """

    @property
    def stale(self) -> int:
        """Settlements that were ignored: of another generation, or twice."""

    @property
    def withheld(self) -> int:
        """Messages that the broker regards as unsettled, besides those that are given out.

        They wait to be given out, or are settled but the broker cannot be told yet.
        """


DriverFactory = Callable[[Connection, int, int, Limits], Driver]
"""(connection, number of this client from 0, generation, limits) -> a driver, not yet open."""
