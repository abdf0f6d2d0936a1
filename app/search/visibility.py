"""What a requester may read of the things in the index (spec websocket-... 5.3, 5.4).

The index knows for each policy the class of its READ rules (app/store/sql/schema.py). Here classes
are told apart by what they say about one requester: those that say the same are a group, whoever
else they are about. acks/policy.py decides for each group, and SQL gets lists of classes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
_PAGE = 5_000
_KEPT_S = 600.0  # what is known of a requester is learnt anew then, without what was removed
_BATCH = 500  # rules read at a time: parsing more would keep everybody else waiting
_MASKS = 8  # lists of classes remembered by one sight
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
    """What a requester may read at one moment: groups of classes, each a bit of a mask.

    ``readable`` things at least were seen to be theirs. They may have gone since: it says which way
    to them is short, not what is found.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(group for group in groups if group.rights.any())
        self.all = (1 << len(self.groups)) - 1
        self.readable = 0
        self._classes: dict[int, list[int]] = {}

    def readers(self, path: Path) -> int:
        """The groups that let the requester read a value at ``path``."""
        return self.mask(lambda rights: rights.reads(path))

    def mask(self, wanted: Callable[[Rights], bool]) -> int:
        """The groups whose rights are ``wanted``."""
        return sum(1 << at for at, group in enumerate(self.groups) if wanted(group.rights))

    def classes(self, mask: int) -> list[int]:
        """The classes of the groups in ``mask``; not to be changed."""
        found = self._classes.get(mask)
        if found is None:
            chosen = [group for at, group in enumerate(self.groups) if mask >> at & 1]
            found = [number for group in chosen for number in group.classes]
            if len(self._classes) < _MASKS:
                self._classes[mask] = found
        return found

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


class _Known:
    """What the classes up to ``last`` say about one requester, by what they say.

    Some may have been removed since ``born``: no policy is of them, so they let nobody read.
    """

    def __init__(self, born: float) -> None:
        self.born = born
        self.last = 0
        self.size = 0
        self._groups: dict[Rules, list[int]] = {}
        self._sight: Sight | None = None
        self._from = 0
        self._until: int | None = None

    def add(self, classes: Sequence[tuple[int, Rules]]) -> None:
        """Take in some more, in the order of their numbers."""
        for number, rules in classes:
            self._groups.setdefault(rules, []).append(number)
        self.last = classes[-1][0]
        self.size += len(classes)
        self._sight = None

    def sight(self, now_ms: int) -> Sight:
        """What the requester may read at that moment."""
        over = self._until is not None and now_ms >= self._until
        if self._sight is None or over or now_ms < self._from:
            current: dict[Rules, list[int]] = {}
            for rules, members in self._groups.items():
                current.setdefault(_current(rules, now_ms), []).extend(members)
            expiries = {rule.expiry for rules in self._groups for rule in rules}
            later = [one for one in expiries if one is not None and one > now_ms]
            self._from, self._until = now_ms, min(later, default=None)
            groups = [Group(_rights(rules), tuple(each)) for rules, each in current.items()]
            self._sight = Sight(groups)
        return self._sight


class Classes:
    """What is known of classes: what each says about a requester.

    Classes never change, and a new one has a greater number than all that anybody has seen.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[tuple[str, ...], _Known] = OrderedDict()

    def known(self, subjects: tuple[str, ...], now_ms: int) -> tuple[Sight, int]:
        """What the requester may read at ``now_ms``, by the classes up to a number; the number."""
        known = self._of(subjects)
        return known.sight(now_ms), known.last

    async def sight(
        self, subjects: tuple[str, ...], own: Sql, last: int, now_ms: int, timeout: float
    ) -> Sight:
        """What the requester may read at ``now_ms``, by all classes up to ``last`` at least.

        ``own`` says whether the column ``subject`` is one of the requester's, ``last`` is the
        greatest number of a class that grants one of them anything, 0 for none.
        Raises IndexUnavailable, IndexBusy.
        """
        known = self._of(subjects)
        while known.last < last:
            at = known.last
            rows = await self._database.read(
                "SELECT num, rules FROM class WHERE num IN (SELECT class FROM class_subject "
                f"WHERE {own.text} AND class > ?) ORDER BY num LIMIT ?",
                (*own.params, at, _PAGE),
                timeout,
            )
            if not rows:
                break  # they have been removed meanwhile
            for start in range(0, len(rows), _BATCH):
                if known.last != at:
                    break  # somebody else has read on
                piece = rows[start : start + _BATCH]
                known.add([(num, _about(subjects, rules)) for num, rules in piece])
                at = known.last
                await asyncio.sleep(0)  # others have their turn
        return known.sight(now_ms)

    def _of(self, subjects: tuple[str, ...]) -> _Known:
        now = asyncio.get_running_loop().time()
        known = self._known.get(subjects)
        if known is not None and now - known.born < _KEPT_S:
            self._known.move_to_end(subjects)
            return known
        self._known.pop(subjects, None)
        while self._known and (
            len(self._known) >= _REQUESTERS
            or sum(one.size for one in self._known.values()) >= _REMEMBERED
        ):
            self._known.popitem(last=False)
        known = self._known[subjects] = _Known(now)
        return known


def _about(subjects: tuple[str, ...], text: str) -> Rules:
    return _interned(rules_for(subjects, orjson.loads(text)))


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
