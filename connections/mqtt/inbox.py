"""What an MQTT broker has given us and is not told about yet.

The broker keeps a message of QoS 1 or 2 until it is acked (PUBACK, PUBREC), by the message's
number, and sends it again only to a client that connects anew. Acks go out in the order of the
messages (MQTT 3.1.1 4.6, MQTT 5 4.6), up to the floor of a watermark: a message that is to come
again holds back the acks of all that came after it. When they come again, too, those that are done
or still under way are not given out a second time. Pure: no clock, no network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from acks.settlement import Settlement
from acks.watermark import Watermark
from connections.driver import Delivery, Limits, OnDelivery
from connections.model import Source

_MOST_NUMBERS = 65_535  # of unacked messages, by the protocol
_SHARED = "$share/"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it came. ``mid`` is the broker's number for it, 0 with QoS 0."""

    mid: int
    topic: str
    payload: bytes
    qos: int
    headers: Mapping[str, str]
    content_type: str | None


@dataclass(slots=True, eq=False)
class _Entry:
    """A message that the broker keeps. ``open`` are the places of its unsettled deliveries."""

    position: int
    incoming: Incoming
    identity: str
    round: int  # of the connection to the broker in which it was sent last
    routes: Sequence[tuple[int, str]]
    open: set[int] = field(default_factory=set)
    again: bool = False  # one of its deliveries is to come again
    due: bool = False  # the floor has passed it, but its ack could not be sent yet


class Routes:
    """Topic -> the sources that want it, as (index, address)."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._exact: dict[str, list[tuple[int, str]]] = {}
        self._patterns: list[tuple[list[str], tuple[int, str]]] = []
        self.qos: dict[str, int] = {}  # of each address that is to be subscribed
        for source in sources:
            for address in source.addresses:
                wanted = 1 if source.qos is None else source.qos
                self.qos[address] = max(wanted, self.qos.get(address, 0))
                self._add(address, (source.index, address))

    def _add(self, address: str, route: tuple[int, str]) -> None:
        topic = address.split("/", 2)[-1] if address.startswith(_SHARED) else address
        if "+" in topic or "#" in topic:
            self._patterns.append((topic.split("/"), route))
        else:
            self._exact.setdefault(topic, []).append(route)

    def of(self, topic: str) -> list[tuple[int, str]]:
        """One route per source, in the order of the sources."""
        found = list(self._exact.get(topic, ()))
        if self._patterns:
            levels = topic.split("/")
            found += [route for pattern, route in self._patterns if _matches(pattern, levels)]
        return sorted({route[0]: route for route in reversed(found)}.values())


def _matches(pattern: list[str], levels: list[str]) -> bool:
    if levels[0].startswith("$") and pattern[0] in ("+", "#"):
        return False  # MQTT 4.7.2
    for at, part in enumerate(pattern):
        if part == "#":
            return True
        if at >= len(levels) or part not in ("+", levels[at]):
            return False
    return len(pattern) == len(levels)


class Inbox:
    """The unacked messages of one client, of one generation.

    ``ack`` is told (number, QoS) when a message is done for the broker. ``redelivers``: whether a
    message can be left unacked to come again; without it, redelivery is an ack, too (spec 4.4).
    """

    def __init__(
        self,
        routes: Routes,
        limits: Limits,
        generation: int,
        *,
        redelivers: bool,
        ack: Callable[[int, int], None],
        on_delivery: OnDelivery,
    ) -> None:
        self._routes = routes
        self._limits = limits
        self._generation = generation
        self._redelivers = redelivers
        self._ack = ack
        self._on_delivery = on_delivery
        self._entries: dict[int, _Entry] = {}  # by number
        self._at: dict[int, _Entry] = {}  # by position, above the floor
        self._watermark = Watermark(_MOST_NUMBERS + 1)
        self._next = 0
        self.round = 0  # connections to the broker so far, less one
        self._given = 0
        self._giving = False
        self._waiting: deque[_Entry] = deque()
        self.closed = False
        self.stale = 0

    @property
    def held(self) -> bool:
        """Whether a message waits for the broker to send it again."""
        return self._watermark.first_held is not None

    @property
    def withheld(self) -> int:
        """As :attr:`connections.driver.Driver.withheld`."""
        return 0 if self.closed else len(self._entries) - self._given

    def begin_round(self) -> None:
        """The client connects anew: numbers mean nothing to the broker until it repeats them."""
        self.round += 1

    def take(self, incoming: Incoming) -> None:
        """A message has come; it is given out now or when others are settled."""
        self._take(incoming, self._routes.of(incoming.topic))

    def discard(self, incoming: Incoming) -> list[str]:
        """A message has come that is nobody's to handle; the addresses it was for."""
        self._take(incoming, [])
        return [address for _, address in self._routes.of(incoming.topic)]

    def _take(self, incoming: Incoming, routes: Sequence[tuple[int, str]]) -> None:
        if incoming.qos == 0:
            for index, address in routes:
                self._on_delivery(self._delivery(incoming, index, address, _identity(incoming)))
            return
        identity = _identity(incoming)
        known = self._entries.get(incoming.mid)
        if known is not None:
            if known.identity == identity:
                self._repeated(known)
                return
            self._forget(known)
        entry = _Entry(self._next, incoming, identity, self.round, routes)
        self._next += 1
        self._entries[incoming.mid] = self._at[entry.position] = entry
        self._watermark.open(entry.position)
        self._route(entry)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """As :meth:`connections.driver.Driver.settle`."""
        if not delivery.settles:
            return
        entry = delivery.token
        if (
            self.closed
            or delivery.generation != self._generation
            or not isinstance(entry, _Entry)
            or delivery.source not in entry.open
        ):
            self.stale += 1
            return
        entry.open.discard(delivery.source)
        entry.again |= settlement is Settlement.REDELIVER and self._redelivers
        if entry.open:
            return
        self._given -= 1
        if entry.again:
            self._watermark.hold(entry.position)
        else:
            self._finish(entry)
        self._give_out_more()

    def _repeated(self, entry: _Entry) -> None:
        """The broker has sent it again. It is given out only if it is to come again."""
        entry.round = self.round
        if entry.due:
            del self._entries[entry.incoming.mid]
            self._ack(entry.incoming.mid, entry.incoming.qos)
        elif entry.again and not entry.open:
            entry.again = False
            self._watermark.open(entry.position)
            self._route(entry)

    def _forget(self, entry: _Entry) -> None:
        """Its number means another message now: the broker has none of it any more."""
        del self._entries[entry.incoming.mid]
        if entry.open:
            entry.open.clear()
            self._given -= 1
        elif entry in self._waiting:
            self._waiting.remove(entry)
        if entry.due:
            return
        self._watermark.open(entry.position)
        self._watermark.finish(entry.position)
        self._advance()

    def _route(self, entry: _Entry) -> None:
        if not entry.routes:  # of a session that had other sources
            self._finish(entry)
        else:
            self._waiting.append(entry)
            self._give_out_more()

    def _give_out_more(self) -> None:
        if self._giving:
            return  # settled while it was given out: the loop below goes on
        self._giving = True
        while self._waiting and self._given < self._limits.in_flight:
            self._give_out(self._waiting.popleft())
        self._giving = False

    def _give_out(self, entry: _Entry) -> None:
        self._given += 1
        entry.open = {index for index, _ in entry.routes}
        for index, address in entry.routes:
            delivery = self._delivery(entry.incoming, index, address, entry.identity, entry)
            self._on_delivery(delivery)

    def _delivery(
        self,
        incoming: Incoming,
        index: int,
        address: str,
        identity: str,
        entry: _Entry | None = None,
    ) -> Delivery:
        return Delivery(
            source=index,
            address=address,
            payload=incoming.payload,
            headers=incoming.headers,
            content_type=incoming.content_type,
            identity=identity,
            token=entry,
            generation=self._generation,
            settles=entry is not None,
        )

    def _finish(self, entry: _Entry) -> None:
        self._watermark.finish(entry.position)
        self._advance()

    def _advance(self) -> None:
        for position in self._watermark.advance():
            entry = self._at.pop(position)
            mid = entry.incoming.mid
            if self._entries.get(mid) is not entry:
                continue  # forgotten
            if entry.round == self.round:
                del self._entries[mid]
                self._ack(mid, entry.incoming.qos)
            else:
                entry.due = True


def _identity(incoming: Incoming) -> str:
    digest = blake2b(incoming.payload, digest_size=8)
    digest.update(incoming.topic.encode())
    return f"{incoming.mid}-{digest.hexdigest()}"
