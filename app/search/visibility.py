"""What a requester may read of the things in the index (spec websocket-... 5.3, 5.4).

The index knows for each policy the class of its READ rules (app/store/sql/schema.py). Here classes
are told apart by what they say about one requester: those that say the same are a group, whoever
else they are about. acks/policy.py decides for each group, and SQL gets lists of classes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from acks.policy import READ, Policy, expiry_ms, split_resource
from acks.resources import ABSENT
from app.search.sql import FALSE, TRUE, Sql
from app.store.sql.database import Database
from app.store.sql.dialect import Dialect

Path = tuple[str, ...]
_ME = ("me",)
_REQUESTERS = 256
_REMEMBERED = 200_000  # classes, over all requesters
_BATCH = 500  # rules read at a time: parsing more would keep everybody else waiting
_SPOTS = 4096  # decisions remembered by one set of rules


class Rule(NamedTuple):
    """A READ rule on things for the requester; it holds until ``expiry`` (ms since the epoch)."""

    resource: str
    granted: bool
    revoked: bool
    expiry: int | None


Rules = frozenset[Rule]


class Rights:
    """What some rules let the requester read."""

    def __init__(self, rules: Rules) -> None:
        resources: dict[str, dict[str, list[str]]] = {}
        for rule in rules:
            effects = resources.setdefault(rule.resource, {"grant": [], "revoke": []})
            if rule.granted:
                effects["grant"] = [READ]
            if rule.revoked:
                effects["revoke"] = [READ]
        entry = {"subjects": {_ME[0]: {"type": ""}}, "resources": resources}
        self._policy = Policy({"entries": {"rules": entry}})
        self._marks = sorted({split_resource(name)[1] for name in resources}, key=len, reverse=True)
        self._decisions: dict[Path, bool] = {}

    def any(self) -> bool:
        """Whether anything of a thing may be read."""
        return self._policy.may(_ME, READ, "thing", (), partial=True)

    def reads(self, path: Path) -> bool:
        """Whether a value at ``path``, that is no object with something in it, may be read."""
        decision = self._decisions.get(path)
        if decision is None:
            decision = self._policy.view(_ME, "thing", path, 0) is not ABSENT
            if len(self._decisions) < _SPOTS:
                self._decisions[path] = decision
        return decision

    def below(self, path: Path) -> tuple[tuple[Path, bool], ...]:
        """Where rules below ``path`` begin, and whether it may be read there; the deepest first.

        Nothing if they all decide as at ``path``.
        """
        depth = len(path)
        marks = [mark for mark in self._marks if len(mark) > depth and mark[:depth] == path]
        decided = tuple((mark, self.reads(mark)) for mark in marks)
        here = self.reads(path)
        return decided if any(reads != here for _, reads in decided) else ()


@lru_cache(maxsize=4096)
def _rights(rules: Rules) -> Rights:
    return Rights(rules)


class Group(NamedTuple):
    """Classes that say the same about the requester."""

    rights: Rights
    classes: tuple[int, ...]


class Sight:
    """What a requester may read at one moment: groups of classes, each a bit of a mask."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(group for group in groups if group.rights.any())
        self.all = (1 << len(self.groups)) - 1

    def readers(self, path: Path) -> int:
        """The groups that let the requester read a value at ``path``."""
        return self.mask(lambda rights: rights.reads(path))

    def mask(self, wanted: Callable[[Rights], bool]) -> int:
        """The groups whose rights are ``wanted``."""
        return sum(1 << at for at, group in enumerate(self.groups) if wanted(group.rights))

    def classes(self, mask: int) -> list[int]:
        """The classes of the groups in ``mask``."""
        return [
            number
            for at, group in enumerate(self.groups)
            if mask >> at & 1
            for number in group.classes
        ]

    def condition(self, dialect: Dialect, mask: int) -> Sql:
        """Whether the policy of a thing, of which something may be read, is of ``mask``."""
        if mask == self.all:
            return TRUE
        if not mask:
            return FALSE
        chosen, others = self.classes(mask), self.classes(self.all & ~mask)
        if len(chosen) <= len(others):
            return among(dialect, "policy.class", chosen)
        condition = among(dialect, "policy.class", others)
        return Sql(f"NOT {condition.text}", condition.params)


def among(dialect: Dialect, column: str, numbers: Sequence[int]) -> Sql:
    """Whether ``column`` is one of ``numbers``, of which there may be any number."""
    if len(numbers) == 1:
        return Sql(f"{column} = ?", (numbers[0],))
    return Sql(f"({dialect.among(column)})", (list(numbers),))


class Classes:
    """What is known of classes: what each says about a requester. Classes never change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[tuple[str, ...], dict[int, Rules]] = OrderedDict()

    async def sight(
        self, subjects: tuple[str, ...], classes: Iterable[int], now_ms: int, timeout: float
    ) -> Sight:
        """What the requester may read at ``now_ms`` if ``classes`` are those that name a subject.

        Raises IndexUnavailable, IndexBusy.
        """
        numbers = sorted(set(classes))
        known = self._of(subjects)
        mine = {number: known[number] for number in numbers if number in known}
        unknown = [number for number in numbers if number not in mine]
        for start in range(0, len(unknown), _BATCH):
            learned = await self._learn(subjects, unknown[start : start + _BATCH], timeout)
            mine |= learned
            known |= learned
        if len(known) > 2 * len(numbers) + _BATCH:
            for number in known.keys() - set(numbers):  # of policies that have changed since
                del known[number]
        grouped: dict[Rules, list[int]] = {}
        for number in numbers:
            grouped.setdefault(mine.get(number, frozenset()), []).append(number)
        current: dict[Rules, list[int]] = {}
        for rules, members in grouped.items():
            current.setdefault(_current(rules, now_ms), []).extend(members)
        return Sight([Group(_rights(rules), tuple(each)) for rules, each in current.items()])

    def _of(self, subjects: tuple[str, ...]) -> dict[int, Rules]:
        known = self._known.get(subjects)
        if known is not None:
            self._known.move_to_end(subjects)
            return known
        while self._known and (
            len(self._known) >= _REQUESTERS or sum(map(len, self._known.values())) >= _REMEMBERED
        ):
            self._known.popitem(last=False)
        known = self._known[subjects] = {}
        return known

    async def _learn(
        self, subjects: tuple[str, ...], numbers: list[int], timeout: float
    ) -> dict[int, Rules]:
        condition = among(self._database.dialect, "num", numbers)
        found = await self._database.read(
            f"SELECT num, rules FROM class WHERE {condition.text}", condition.params, timeout
        )
        learned = {
            number: _interned(rules_for(subjects, orjson.loads(text))) for number, text in found
        }
        await asyncio.sleep(0)  # others have their turn
        return learned


def rules_for(subjects: tuple[str, ...], document: dict[str, Any]) -> Rules:
    """What a policy document says about reading things to the requester with ``subjects``."""
    found = set()
    for entry in document["entries"].values():
        expiries = {expiry_ms(entry["subjects"][s]) for s in subjects if s in entry["subjects"]}
        for resource, permissions in entry["resources"].items():
            granted = READ in permissions.get("grant", ())
            revoked = READ in permissions.get("revoke", ())
            if resource.startswith("thing:") and (granted or revoked):
                found |= {Rule(resource, granted, revoked, expiry) for expiry in expiries}
    return frozenset(found)


@lru_cache(maxsize=4096)
def _interned(rules: Rules) -> Rules:
    """One value for equal rules: thousands of classes may say the same."""
    return rules


def _current(rules: Rules, now_ms: int) -> Rules:
    if all(rule.expiry is None for rule in rules):
        return rules
    return frozenset(
        rule._replace(expiry=None) for rule in rules if rule.expiry is None or rule.expiry > now_ms
    )
