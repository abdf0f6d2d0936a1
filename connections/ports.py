"""What the process gives to connections: the gateway, as far as they need it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from acks.envelopes import Envelope
from acks.errors import GatewayError
from acks.signals import Acknowledgement


@dataclass(frozen=True, slots=True)
class Sender:
    """In whose name a consumed message is handled."""

    connection: str
    subjects: tuple[str, ...]  # the source's authorization context, placeholders resolved
    declared: frozenset[str]  # the labels that this source may acknowledge


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a message, for its settlement and its reply target.

    ``envelope`` is the answer as a Ditto Protocol message, None if none was wanted. ``statuses``
    are those of the single responses or acks (aggregated ones unpacked); ``live`` says that it is
    a live response, which fails on 408 only. ``error`` stands instead of a response.
    """

    envelope: Envelope | None
    statuses: tuple[int, ...]
    live: bool = False
    error: GatewayError | None = None


OnAnswer = Callable[[Answer], None]


class Gate(Protocol):
    """The gateway, as a source and a target see it."""

    def submit(self, envelope: Envelope, sender: Sender, on_answer: OnAnswer) -> bool:
        """Handle a Ditto Protocol message; the same rules as for one of a WebSocket.

        ``on_answer`` is told once, possibly before this returns, at the latest at the message's
        timeout; it must not raise. Returns whether the message asked for acks or a response, so
        that its settlement has to wait for the answer. Never raises.
        """

    def acknowledge(self, target: int, ack: Acknowledgement) -> bool:
        """Take the ack that a target (its index) issues; False if nobody waits for it."""
