"""Pending: all open aggregators of one node, and when each of them expires.

Deadlines lie in buckets of :data:`TICK` seconds, so that opening and finishing cost the same
however many are open, and a finished one leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from acks.aggregator import Aggregator, Outcome
from acks.errors import GatewayError
from acks.signals import Acknowledgement, Response

W = TypeVar("W")

TICK = 0.01
"""Width of a deadline bucket in seconds: an expiry is late by at most this much."""


class Pending(Generic[W]):
    """Open requests by key, each with the ``waiter`` its owner wants back with the outcome.

    Methods return ``(waiter, outcome)`` when a request is finished by the call; it is closed then.
    """

    __slots__ = ("_buckets", "_order", "_requests")

    def __init__(self) -> None:
        self._requests: dict[Hashable, tuple[Aggregator, W, int]] = {}
        self._buckets: dict[int, dict[Hashable, None]] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._requests

    def open(self, key: Hashable, aggregator: Aggregator, deadline: float, waiter: W) -> bool:
        """Register a request until ``deadline`` (s, clock of ``now``); False if the key is open."""
        if key in self._requests:
            return False
        tick = int(deadline / TICK) + 1
        self._requests[key] = (aggregator, waiter, tick)
        bucket = self._buckets.get(tick)
        if bucket is None:
            self._buckets[tick] = bucket = {}
            heappush(self._order, tick)
        bucket[key] = None
        return True

    def receive(self, key: Hashable, ack: Acknowledgement) -> tuple[W, Outcome] | None:
        """Give an ack to the request ``key``; late and unknown ones are ignored."""
        request = self._requests.get(key)
        return None if request is None else self._settle(key, request[0].receive(ack))

    def respond(self, key: Hashable, response: Response) -> tuple[W, Outcome] | None:
        """Give the processing's own response to the request ``key``."""
        request = self._requests.get(key)
        return None if request is None else self._settle(key, request[0].respond(response))

    def fail(self, key: Hashable, problem: GatewayError) -> tuple[W, Outcome] | None:
        """End the request ``key`` with an error of our own processing."""
        request = self._requests.get(key)
        return None if request is None else self._settle(key, request[0].fail(problem))

    def refuse(self, key: Hashable, reason: str) -> None:
        """Tell the request ``key`` that a live response to it does not count."""
        request = self._requests.get(key)
        if request is not None:
            request[0].refuse(reason)

    def is_outstanding(self, key: Hashable, label: str) -> bool:
        """Whether the request ``key`` still waits for ``label``."""
        request = self._requests.get(key)
        return request is not None and request[0].is_outstanding(label)

    def mark(self, key: Hashable, token: int) -> None:
        """Give the open request ``key`` a number, by which it differs from later ones with its key.

        Raises KeyError if it is not open.
        """
        self._requests[key][0].token = token

    def is_marked(self, key: Hashable, token: int) -> bool:
        """Whether the request ``key`` is open, and the one with this number."""
        request = self._requests.get(key)
        return request is not None and getattr(request[0], "token", None) == token

    def discard(self, key: Hashable) -> None:
        """Forget a request whose caller has gone away."""
        self._close(key)

    def open_keys(self) -> list[Hashable]:
        """Keys of all open requests."""
        return list(self._requests)

    def next_deadline(self) -> float | None:
        """When :meth:`expire` has something to do next (s), or None while nothing is open."""
        while self._order:
            tick = self._order[0]
            if self._buckets.get(tick):
                return tick * TICK
            heappop(self._order)
            self._buckets.pop(tick, None)
        return None

    def expire(self, now: float, limit: int = 500) -> list[tuple[W, Outcome]]:
        """Finish at most ``limit`` requests whose time is up: a slice that never holds the loop."""
        finished: list[tuple[W, Outcome]] = []
        while len(finished) < limit:
            deadline = self.next_deadline()
            if deadline is None or deadline > now:
                break
            bucket = self._buckets[self._order[0]]
            key = next(iter(bucket))
            settled = self._settle(key, self._requests[key][0].expire())
            if settled is not None:
                finished.append(settled)
        return finished

    def _settle(self, key: Hashable, outcome: Outcome | None) -> tuple[W, Outcome] | None:
        if outcome is None:
            return None
        waiter = self._requests[key][1]
        self._close(key)
        return waiter, outcome

    def _close(self, key: Hashable) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            bucket = self._buckets.get(request[2])
            if bucket is not None:
                bucket.pop(key, None)
