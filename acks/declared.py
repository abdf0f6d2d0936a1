"""Label groups: which member of a group gets a signal (docs/decisions/0008-label-groups.md).

Several sessions share a set of labels; a signal that asks for one of these labels is for one of
them. The node that waits for the acks chooses, because it alone knows what is outstanding. Who may
own a label is decided in the store, by declared.lua beside this file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from acks.errors import error
from acks.rotation import Rotation

_GROUP = re.compile(r"[a-zA-Z0-9\-_:]{3,165}")
_READS_ALONE = "spark-"
_SLACK = 1_000

ORDER, PASSED, MOVED, UNASSIGNED = (
    "ack-group#order",
    "ack-group#passed",
    "ack-group#moved",
    "ack-group#unassigned",
)
"""Name, where a label would stand, what nodes tell each other about groups; no label looks so.

To a member's node: deliver a signal. From there: no member here took it; another one than the
chosen one did; a signal came for which nobody was chosen.
"""

Key = tuple[str, bool]
"""A request: its correlation-id, and whether its sender does not wait for the answer."""
Place = tuple[int, str]
"""Where a signal is in the journal: shard and entry id."""


def check_group(text: str | None, labels: Collection[str]) -> str:
    """Return the name of the group in which ``labels`` are to be declared, "" for None: in none.

    Raises ``header.invalid`` if it breaks the grammar, which is that of resolved labels, or if
    there is nothing to share.
    """
    if text is None:
        return ""
    if _GROUP.fullmatch(text) and labels:
        return text
    message = None
    description = "It is 3 to 165 characters long, of A-Z, a-z, 0-9, '-', '_' and ':'."
    if not labels:
        message = f"The group '{text[:165]}' in 'ack-group' has no labels to share."
        description = "Name them in 'declared-acks', or leave 'ack-group' out."
    raise error(
        "header.invalid",
        message=message,
        value=text,
        header="ack-group",
        type="name of a group",
        description=description,
        extras={"invalidHeaderKey": "ack-group"},
    )


def why_taken(group: str, labels: Collection[str], shared: Collection[str], taken: str) -> str:
    """What keeps a session with ``labels`` out of a group, and what to do about it.

    ``shared`` are the labels of the group, empty if there is none of this name; ``taken`` is the
    label that the store refuses. Labels that the session does not know are not told.
    """
    if not shared or set(labels) == set(shared):
        return (
            f"The label '{taken}' has an owner outside the group '{group}'. Declare it when that "
            "one is offline, or declare other labels."
        )
    foreign = next((label for label in labels if label not in shared), None)
    what = "more labels than these" if foreign is None else f"no label '{foreign}'"
    return (
        f"The group '{group}' has {what}, and all its members declare the same labels. Declare "
        "just those of the group, or name another group."
    )


def holder_of(member: str) -> str:
    """The holder of a member ``<holder>/<session>``: the node that has the session."""
    return member.partition("/")[0]


def is_assignable(member: str) -> bool:
    """Whether signals are given to this member; Spark takes what it wants from the journal."""
    return not member.startswith(_READS_ALONE)


class Order(NamedTuple):
    """Deliver the signal at ``place`` to ``member``, or to another one of its node.

    ``redelivered``: a member that is gone may have got it. ``tried`` are those of the same node
    that did not want it.
    """

    key: Key
    group: str
    member: str
    place: Place
    redelivered: bool
    tried: tuple[str, ...]


class Weak(NamedTuple):
    """No member gets the signal: these labels are acknowledged weakly, for this reason."""

    key: Key
    labels: tuple[str, ...]
    reason: str


class _Part:
    """What a request wants of one group: labels still owed, who has the signal, who had."""

    __slots__ = ("due", "labels", "member", "reason", "redelivered", "tried")

    def __init__(self, labels: Iterable[str], tried: Iterable[str]) -> None:
        self.labels = dict.fromkeys(labels)
        self.tried = set(tried)
        self.member: str | None = None
        self.reason: str | None = None
        self.redelivered = False
        self.due = False  # the member is to be told once the place is known


class _Request:
    __slots__ = ("deadline", "parts", "place")

    def __init__(self, deadline: int, place: Place | None) -> None:
        self.deadline = deadline
        self.place = place
        self.parts: dict[str, _Part] = {}


class Assignments:
    """Who of each group has which signal of this node. ``limit`` bounds the requests known.

    Times are ms since the epoch. A request without a member waits for one until its deadline.
    """

    def __init__(self, limit: int) -> None:
        self.open: dict[Key, _Request] = {}
        self.group_of: dict[str, str] = {}
        self._limit = limit
        self._rotations: dict[str, Rotation] = {}
        self._having: dict[str, dict[tuple[Key, str], None]] = {}  # by member, or group if nobody
        self._strangers: dict[str, None] = {}  # have signals, but are not known as members yet
        self._deadlines: list[tuple[int, Key]] = []

    # --- the groups

    def update(self, groups: Mapping[str, tuple[Collection[str], Collection[str]]]) -> list[Order]:
        """Take the groups as they are now: name -> (labels, members); returns what follows."""
        again: list[tuple[Key, str]] = []
        for name in self._rotations.keys() - groups.keys():
            again += self._lost(self._rotations.pop(name).replace(()))
        for name, (_, members) in groups.items():
            rotation = self._rotations.get(name)
            if rotation is None:
                self._rotations[name] = rotation = Rotation()
            again += self._lost(rotation.replace(members))
            again += self._having.get(_waiting(name), ())
        strangers, self._strangers = self._strangers, {}
        known = (one for one in strangers if any(one in own for own in self._rotations.values()))
        again += self._lost(strangers.keys() - set(known))
        self.group_of = {label: name for name, (labels, _) in groups.items() for label in labels}
        orders = (self._again(key, group) for key, group in dict.fromkeys(again))
        return [order for order in orders if order is not None]

    def _lost(self, members: Iterable[str]) -> list[tuple[Key, str]]:
        """Note that members are gone: what they had waits. Returns that."""
        found: list[tuple[Key, str]] = []
        for member in members:
            for key, group in self._having.pop(member, ()):
                part = self.open[key].parts[group]
                part.redelivered |= not part.due
                part.member, part.due = None, False
                self._having.setdefault(_waiting(group), {})[key, group] = None
                found.append((key, group))
        return found

    def _again(self, key: Key, group: str) -> Order | None:
        """Give a waiting signal to a member, if there is one for its labels."""
        request = self.open[key]
        part = request.parts[group]
        if part.member is not None or not any(
            self.group_of.get(label) == group for label in part.labels
        ):
            return None
        if self._choose(key, group, part) is None:
            return None
        part.due = True
        return self._order(key, request, group)

    # --- a request

    def assign(
        self, key: Key, labels: Iterable[str], deadline: int, now: int, sender: str = ""
    ) -> dict[str, str]:
        """Choose a member of each group that owns some of the ``labels``: group -> member.

        ``sender`` is the member that caused the signal, which it does not get back.
        """
        self.forget(key)
        self.expire(now)
        request = _Request(deadline, None)
        chosen: dict[str, str] = {}
        for group, shared in self._by_group(labels).items():
            part = request.parts[group] = _Part(shared, (sender,) if sender else ())
            member = self._choose(key, group, part)
            if member is not None:
                chosen[group] = member
        if request.parts:
            self._open(key, request)
        return chosen

    def adopt(
        self, key: Key, labels: Iterable[str], deadline: int, now: int, group: str, place: Place
    ) -> Order | None:
        """Choose a member of a group that was not known when the signal was sent.

        ``labels`` are those of the group that are still owed. Nothing happens if it is known by now
        that the group has the signal.
        """
        self.expire(now)
        request = self.open.get(key)
        if request is None:
            request = _Request(deadline, place)
            self._open(key, request)
        elif group in request.parts:
            return None
        request.place = place
        request.parts[group] = _Part(labels, ())
        self._having.setdefault(_waiting(group), {})[key, group] = None
        return self._again(key, group)

    def written(self, key: Key, place: Place) -> list[Order]:
        """Note where a signal is; returns what could not be ordered before that was known."""
        request = self.open.get(key)
        if request is None:
            return []
        request.place = place
        orders = (self._order(key, request, group) for group in request.parts)
        return [order for order in orders if order is not None]

    def passed(
        self, key: Key, group: str, members: Collection[str], reason: str | None
    ) -> Order | Weak | None:
        """Members did not take the signal, the first of them the one that had it.

        ``reason`` says why in the words of a weak ack, None if nobody was asked.
        """
        request = self.open.get(key)
        part = None if request is None else request.parts.get(group)
        if request is None or part is None or part.member not in members:
            return None
        part.tried.update(members)
        part.reason = reason or part.reason
        self._release(key, group, part)
        self._having.setdefault(_waiting(group), {})[key, group] = None
        order = self._again(key, group)
        if order is not None or part.member is not None or part.reason is None:
            return order
        weak = Weak(key, tuple(part.labels), part.reason)
        self._close_part(key, request, group)
        return weak

    def moved(self, key: Key, group: str, before: str, member: str) -> None:
        """Another member of the same node has taken the signal instead of ``before``."""
        request = self.open.get(key)
        part = None if request is None else request.parts.get(group)
        if part is not None and part.member == before:
            self._release(key, group, part)
            part.tried.add(before)
            self._note(key, group, part, member)
            rotation = self._rotations.get(group)
            if rotation is not None and member in rotation:
                rotation.add(member, 1)
            else:
                self._strangers[member] = None

    def acknowledged(self, key: Key, label: str) -> None:
        """A label is no longer owed."""
        request = self.open.get(key)
        if request is None:
            return
        for group, part in list(request.parts.items()):
            if label in part.labels:
                del part.labels[label]
                if not part.labels:
                    self._close_part(key, request, group)

    def still(self, key: Key, group: str, owed: Collection[str]) -> bool:
        """Note which labels are owed; returns whether any of this group's is."""
        request = self.open.get(key)
        part = None if request is None else request.parts.get(group)
        for label in [] if part is None else [one for one in part.labels if one not in owed]:
            self.acknowledged(key, label)
        return part is not None and bool(part.labels)

    def stands(self, order: Order) -> bool:
        """Whether the member of an order is still the one that the signal is for."""
        request = self.open.get(order.key)
        part = None if request is None else request.parts.get(order.group)
        return part is not None and part.member == order.member

    def forget(self, key: Key) -> None:
        """Nobody waits any more."""
        request = self.open.get(key)
        if request is not None:
            for group in list(request.parts):
                self._close_part(key, request, group)

    def expire(self, now: int) -> None:
        """Forget what is over by its deadline."""
        while self._deadlines and self._deadlines[0][0] <= now:
            self._end_first()

    def _end_first(self) -> None:
        deadline, key = heappop(self._deadlines)
        request = self.open.get(key)
        if request is not None and request.deadline == deadline:
            self.forget(key)

    def _by_group(self, labels: Iterable[str]) -> dict[str, list[str]]:
        shared: dict[str, list[str]] = {}
        for label in labels:
            group = self.group_of.get(label)
            if group is not None:
                shared.setdefault(group, []).append(label)
        return shared

    def _open(self, key: Key, request: _Request) -> None:
        while len(self.open) >= self._limit:
            # The one that ends first loses its second chance, not its member.
            self._end_first()
        self.open[key] = request
        heappush(self._deadlines, (request.deadline, key))
        if len(self._deadlines) > 2 * len(self.open) + _SLACK:
            # Most requests are done long before their deadline.
            self._deadlines = sorted((one.deadline, key) for key, one in self.open.items())

    def _choose(self, key: Key, group: str, part: _Part) -> str | None:
        rotation = self._rotations.get(group)
        member = None if rotation is None else rotation.choose(part.tried)
        self._note(key, group, part, member)
        return member

    def _note(self, key: Key, group: str, part: _Part, member: str | None) -> None:
        waiting = self._having.get(_waiting(group))
        if member is not None and waiting is not None:
            waiting.pop((key, group), None)
            if not waiting:
                del self._having[_waiting(group)]
        part.member = member
        self._having.setdefault(member or _waiting(group), {})[key, group] = None

    def _release(self, key: Key, group: str, part: _Part) -> None:
        """Take the signal from whoever has it, or from those that wait."""
        name = part.member or _waiting(group)
        having = self._having.get(name)
        if having is not None:
            having.pop((key, group), None)
            if not having:
                del self._having[name]
        rotation = self._rotations.get(group)
        if rotation is not None and part.member is not None:
            rotation.add(part.member, -1)
        part.member, part.due = None, False

    def _close_part(self, key: Key, request: _Request, group: str) -> None:
        self._release(key, group, request.parts.pop(group))
        if not request.parts:
            del self.open[key]

    def _order(self, key: Key, request: _Request, group: str) -> Order | None:
        part = request.parts[group]
        if not part.due or part.member is None or request.place is None:
            return None
        part.due = False
        holder = holder_of(part.member) + "/"
        tried = tuple(sorted(one for one in part.tried if one.startswith(holder)))
        return Order(key, group, part.member, request.place, part.redelivered, tried)


def _waiting(group: str) -> str:
    """Stands for the member that a group does not have; no member looks so."""
    return "/" + group
