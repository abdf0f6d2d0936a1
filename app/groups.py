"""Label groups as the node sees them that waits for the acks: it chooses who gets a signal.

It keeps a view of all groups: read anew after every notice of a change, after a lost connection,
and in time for the end of every lease, since a holder that dies says nothing. What is decided from
that is acks/declared.py's; what members do, app/group_members.py's
(docs/decisions/0008-label-groups.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol, TypeVar

import structlog

from acks.accepted import Accepted
from acks.declared import (
    MOVED,
    ORDER,
    PASSED,
    UNASSIGNED,
    Assignments,
    Key,
    Order,
    Weak,
    holder_of,
    is_assignable,
)
from acks.errors import GatewayError
from acks.journal import ASYNC, group_channel, shard_of
from acks.signals import Acknowledgement, Command, Live
from app.group_members import Members, Share
from app.offers import Verdict
from app.sessions import SendAck
from app.store.instant import now_ms
from app.store.label_list import LabelList
from app.store.redis_client import (
    Redis,
    RedisAddress,
    StoreError,
    StoreUnavailable,
    Subscriber,
)
from app.store.requests import RequestStore
from app.weak_acks import WEAK

log = structlog.get_logger(__name__)

CONTROL = frozenset({ORDER, PASSED, MOVED, UNASSIGNED})
GATHER_S = 0.01
"""Shortest time between two looks at the groups, s."""
SHARE = 9
"""Times as long as a look took that it is not repeated: it is at most a tenth of the work."""
AGAIN_S = 0.5
"""Pause after a look that the store did not answer, s."""
MARGIN_S = 0.005
"""How much later than the end of a lease is looked, s."""
LOOKS_UP = 1_000
"""Accepted requests whose record is read at a time, before their signals go to another member."""


Signal = TypeVar("Signal", Command, Live)


class Owed(Protocol):
    """Says which labels a request still waits for."""

    def __call__(self, correlation_id: str, labels: Iterable[str]) -> list[str]:
        """Those of ``labels`` that are outstanding."""


class Groups:
    """The view of all groups, and who of them has which signal of this node.

    ``lease`` is the lease of labels in s. ``members`` are those of this process.
    """

    def __init__(
        self,
        redis: Redis,
        address: RedisAddress,
        labels: LabelList,
        members: Members,
        requests: RequestStore,
        *,
        prefix: str,
        shards: int,
        lease: float,
        limit: int,
        send: SendAck,
        owed: Owed,
    ) -> None:
        self.known = False  # whether there are groups to choose from
        self.members = members
        self.assignments = Assignments(limit)
        self.redelivered = 0
        self.passed = 0
        self.count = 0
        self._node = members.node
        self._redis = redis
        self._shards = shards
        self._labels = labels
        self._requests = requests
        self._every = lease / 3
        self._send = send
        self._owed = owed
        self._wake = asyncio.Event()
        self._version = ""
        self._view: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._next = self._every
        self._subscriber = Subscriber(
            address,
            [group_channel(prefix)],
            lambda *_: self._wake.set(),
            name=f"ackgate-groups-{members.node}",
        )
        self._subscriber.on_connected = self._wake.set
        self._task: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()

    async def start(self, deadline: float) -> None:
        """Listen and look for the first time; raises StoreUnavailable after ``deadline`` s."""
        await self._subscriber.start(deadline)
        try:
            await self._look()
        except StoreError as problem:
            raise StoreUnavailable(f"the groups cannot be read: {problem}") from problem
        self._redis.add_connected_listener(self._wake.set)
        self._task = asyncio.create_task(self._keep(), name="label-groups")

    async def close(self) -> None:
        """Stop looking. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            self._redis.remove_connected_listener(self._wake.set)
            tasks = [task, *self._looks]
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._subscriber.close()

    # --- the requests of this node

    def assign(self, signal: Signal, deadline: int) -> Signal:
        """Choose who of each group gets a signal, which then says so in its entry.

        ``deadline`` is in ms since the epoch.
        """
        key = (signal.correlation_id, False)
        chosen = self._chosen(key, signal, deadline)
        return signal._replace(assigned=chosen) if chosen else signal

    def assign_async(self, signal: Command | Live, deadline: int) -> dict[str, str]:
        """Who gets a signal whose sender does not wait; this node sees to its redelivery."""
        key = (signal.correlation_id, True)
        chosen = {"": self._node}
        # If it is open, this one is about to be refused.
        if self.known and key not in self.assignments.open:
            chosen.update(self._chosen(key, signal, deadline))
        return chosen

    def _chosen(self, key: Key, signal: Command | Live, deadline: int) -> dict[str, str]:
        sender = f"{self._node}/{signal.origin}" if signal.origin else ""
        labels = signal.options.custom_acks
        return self.assignments.assign(key, labels, deadline, now_ms(), sender)

    def written(self, signal: Command | Live, entry_id: bytes) -> None:
        """A signal for which somebody was chosen is in the journal."""
        place = (shard_of(signal.thing_id, self._shards), entry_id.decode())
        key = (signal.correlation_id, signal.answer_to == ASYNC)
        self._carry_out(self.assignments.written(key, place))

    def acknowledged(self, correlation_id: str, label: str) -> None:
        """An ack has counted for a request that somebody waits for."""
        self.assignments.acknowledged((correlation_id, False), label)

    def refused(self, signal: Command | Live) -> None:
        """A request for which members were chosen is not carried out."""
        if len(signal.assigned) > 1:
            self.assignments.forget((signal.correlation_id, True))

    def failed(self, key: object) -> None:
        """A request has ended with an error of our own processing."""
        if isinstance(key, str):
            self.assignments.forget((key, False))

    # --- what nodes tell each other

    def control(self, ack: Acknowledgement) -> None:
        """Take a control record of another node, or of this one."""
        try:
            if ack.label == ORDER:
                self.members.ordered(_share(ack))
                return
            facts: dict[str, Any] = ack.payload
            key: Key = (ack.correlation_id, bool(facts["a"]))
            if ack.label == PASSED:
                self._took_not(key, ack, facts)
            elif ack.label == MOVED:
                self.passed += 1
                self.assignments.moved(key, facts["g"], facts["b"], facts["m"])
            else:
                self._unassigned(key, facts)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            log.error("groups.record_unreadable", record=ack.label, error=repr(problem))

    def _took_not(self, key: Key, ack: Acknowledgement, facts: dict[str, Any]) -> None:
        members, reason = [str(one) for one in facts["x"]], facts.get("v")
        done = self.assignments.passed(key, facts["g"], members, reason)
        self.passed += len(members)
        if isinstance(done, Order):
            self._carry_out([done])
        elif isinstance(done, Weak):
            verdict = Verdict(done.reason)
            self.members.sessions.weak[verdict] += len(done.labels)
            for label in done.labels:
                weak = ack._replace(label=label, payload=WEAK[verdict])
                self._send(ASYNC if key[1] else self._node, weak)

    def _unassigned(self, key: Key, facts: dict[str, Any]) -> None:
        """A member has seen a signal of ours for which we have chosen nobody."""
        correlation_id, is_async = key
        group, labels, (shard, entry_id) = facts["g"], facts["l"], facts["p"]
        if not is_async:
            labels = self._owed(correlation_id, labels)
        if not labels:
            return
        place = (int(shard), str(entry_id))
        order = self.assignments.adopt(key, labels, int(facts["d"]), now_ms(), group, place)
        if order is not None:
            self._carry_out([order])
        elif group not in self._view:
            self._wake.set()

    def _carry_out(self, orders: Iterable[Order]) -> None:
        unsure: list[Order] = []
        for order in orders:
            if order.key[1]:
                unsure.append(order)
            else:
                self._order(order)
        if unsure:
            self._own(self._ask_and_order(unsure))

    def _order(self, order: Order) -> None:
        request = self.assignments.open.get(order.key)
        if request is None:
            return
        self.redelivered += order.redelivered
        correlation_id, is_async = order.key
        facts = {
            "o": self._node,
            "g": order.group,
            "m": order.member,
            "p": order.place,
            "d": request.deadline,
            "r": order.redelivered,
            "x": order.tried,
            "a": is_async,
        }
        ack = Acknowledgement(ORDER, "", correlation_id, 200, facts)
        self._send(holder_of(order.member), ack)

    async def _ask_and_order(self, orders: list[Order]) -> None:
        """Order what is still owed of requests whose acks do not come here, but to the store."""
        for order in orders:
            correlation_id = order.key[0]
            try:
                found = await self._requests.find(correlation_id)
            except GatewayError as problem:
                # It may be acknowledged already; rather twice than not at all.
                log.warning("groups.not_asked", error=problem.code)
            else:
                owed = () if found is None else _owed(*found)
                if not self.assignments.still(order.key, order.group, owed):
                    continue
            # Meanwhile it may be gone, and another order under way.
            if self.assignments.stands(order):
                self._order(order)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._looks) >= LOOKS_UP:
            work.close()
            log.warning("groups.too_many_orders", limit=LOOKS_UP)
            return
        task = asyncio.create_task(work, name="label-group-orders")
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    # --- the view

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            patience = self._next if self._view or self.assignments.open else None
            try:
                async with asyncio.timeout(patience):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the ordinary case: it is time to look
            self._wake.clear()
            began = loop.time()
            try:
                await self._look()
            except (StoreUnavailable, StoreError) as problem:
                log.debug("groups.not_read", reason=str(problem))
                self._next = AGAIN_S
            except Exception:
                log.exception("groups.not_read")
            await asyncio.sleep(max(GATHER_S, SHARE * (loop.time() - began)))

    async def _look(self) -> None:
        """Read the groups if they have changed, and act on what has become of them."""
        found = await self._labels.groups(self._version)
        if found.groups is not None:
            self._version, self._view = found.version, found.groups
        groups: dict[str, tuple[tuple[str, ...], list[str]]] = {}
        shortest = float("inf")
        for name, (labels, members) in self._view.items():
            there = [one for one in members if is_assignable(one)]
            leases = {holder: found.leases.get(holder, 0) for holder in set(map(holder_of, there))}
            there = [one for one in there if leases[holder_of(one)] > 0]
            if there:
                groups[name] = (labels, there)
                shortest = min(shortest, *(left for left in leases.values() if left > 0))
        self._next = min(self._every, shortest / 1000 + MARGIN_S)
        self.count = len(groups)
        self.assignments.expire(now_ms())
        orders = self.assignments.update(groups)
        self.known = bool(groups)
        self._carry_out(orders)


def _owed(request: Accepted, at_ms: int) -> set[str]:
    """The labels that others still owe an accepted request."""
    if request.outcome(at_ms) is not None:
        return set()
    return set(request.others) - {ack.label for ack in request.acks()}


def _share(order: Acknowledgement) -> Share:
    """What an order says. Raises KeyError, TypeError or ValueError if it is none."""
    facts: dict[str, Any] = order.payload
    shard, entry_id = facts["p"]
    return Share(
        str(facts["o"]),
        order.correlation_id,
        bool(facts["a"]),
        "",
        "",
        str(facts["g"]),
        str(facts["m"]),
        (int(shard), str(entry_id)),
        int(facts["d"]),
        bool(facts["r"]),
        tuple(map(str, facts["x"])),
    )
