"""The same filter the other way round: from values to the things that have them.

A *start* is a set of queries for numbers of things, each by an index, that together give all things
that meet one of the conditions which all have to hold, and maybe others. If a start gives few
things, a search begins with those instead of walking through all in the order of its sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from acks.rql import Comparison, Logic, Predicate, Presence
from acks.search_terms import ARRAY, TEXT
from app.search.compile import Compiler
from app.search.literals import ORDERS, Terms, split_pattern
from app.search.properties import is_column, is_placeholder
from app.search.sql import FALSE, TRUE, Sql, all_of, any_of, in_line
from app.store.sql.schema import COLUMNS

SAMPLE = 1_000
"""Values of a property that are looked at to see whether many fit."""
MAX_STARTS = 8
"""Conditions of one search that are tried."""
MAX_BRANCHES = 40
"""Queries of one start."""
_DIRECT = frozenset({"thingId", "_namespace", "_modified", "_created"})
"""Columns of ``thing`` with an index."""


class Start(NamedTuple):
    """``branches`` are queries for a column ``thing``; none: nothing fits.

    ``instead``: the condition that holds for exactly these things. ``sample``: the branches look at
    all values that ``looked_at`` finds, and this is an expression for how many of the first fit.
    """

    branches: tuple[Sql, ...]
    instead: Predicate | None = None
    looked_at: Sql | None = None
    sample: Sql | None = None

    @property
    def things(self) -> Sql:
        """One query for all of them, some twice."""
        nothing = Sql("SELECT num AS thing FROM thing WHERE FALSE")
        return in_line(self.branches, " UNION ALL ") if self.branches else nothing

    def size(self, limit: int) -> Sql:
        """An expression: how many are looked at, counted up to ``limit``."""
        found = self.looked_at or self.things
        text = f"(SELECT count(*) FROM (SELECT 1 FROM ({found.text}) a LIMIT ?) b)"
        return Sql(text, (*found.params, limit))


def conjuncts(predicate: Predicate | None) -> Iterator[Predicate]:
    """The predicates that all have to hold."""
    if isinstance(predicate, Logic) and predicate.operator == "and":
        for child in predicate.children:
            yield from conjuncts(child)
    elif predicate is not None:
        yield predicate


def starts(compiler: Compiler, conditions: Sequence[Predicate]) -> list[Start]:
    """What a search whose ``conditions`` all have to hold may start with: the first few."""
    found: list[Start] = []
    merged: set[str] = set()
    for predicate in conditions:
        between = _between(predicate, conditions)
        if between:
            if between[0].property in merged:
                continue
            merged.add(between[0].property)
            start: Start | None = _of_range(compiler, between)
        else:
            start = _start(compiler, predicate)
        if start is not None and len(start.branches) <= MAX_BRANCHES:
            found.append(start)
        if len(found) == MAX_STARTS:
            break
    return found


def _start(compiler: Compiler, predicate: Predicate) -> Start | None:
    if isinstance(predicate, Logic):
        return _of_logic(compiler, predicate)
    name = predicate.property.removeprefix("/")
    if is_placeholder(name):
        return None
    if isinstance(predicate, Presence):
        if predicate.operator == "empty" or is_column(name):
            return None
        return having(compiler, name)
    if is_column(name):
        return _of_column(compiler, predicate, name)
    if predicate.operator == "ne":
        return having(compiler, name)
    return _of_comparison(compiler, predicate, name)


def _of_comparison(compiler: Compiler, predicate: Comparison, name: str) -> Start:
    found = compiler.properties.values(name)
    values = compiler.values(predicate, _sought(compiler))
    branches = tuple(_seek(compiler, found.nums, value) for value in values)
    exactly = predicate if found.full else None
    if not _looks_at_all(predicate) or not found.nums or not values:
        return Start(branches, exactly)
    looked_at = _seek(compiler, found.nums, Sql(f"x.kind = {TEXT}"))
    first = looked_at.text.replace("x.thing", "x.*", 1)
    value = any_of(values)
    sample = Sql(
        f"(SELECT count(*) FROM ({first} LIMIT ?) x WHERE {value.text})",
        (*looked_at.params, SAMPLE, *value.params),
    )
    return Start(branches, exactly, looked_at, sample)


def _sought(compiler: Compiler) -> Terms:
    return Terms.of("x", compiler.hints, sought=True)


def _looks_at_all(predicate: Comparison) -> bool:
    """Whether no index shortens the way."""
    if predicate.operator == "like":
        return not split_pattern(str(predicate.values[0]))[0]
    return predicate.operator == "ilike"


def _of_logic(compiler: Compiler, predicate: Logic) -> Start | None:
    if predicate.operator == "not":
        return None
    children = [_start(compiler, child) for child in predicate.children]
    if predicate.operator == "and":
        known = [child for child in children if child is not None and child.sample is None]
        if not known:
            return None
        return min(known, key=lambda start: len(start.branches))._replace(instead=None)
    branches: list[Sql] = []
    exact = True
    for child, start in zip(predicate.children, children, strict=True):
        if start is None or start.sample is not None:
            return None
        branches += start.branches
        exact = exact and start.instead is child
    return Start(tuple(branches), predicate if exact else None)


def having(compiler: Compiler, name: str, kinds: Sequence[int] = ()) -> Start:
    """Things that have the property, or with ``kinds`` a value of one of these there."""
    found = compiler.properties.presence(name)
    nums = sorted({*found.whole.nums, *(mixed.num for mixed in found.mixed)})
    within = Sql(f"x.kind IN ({', '.join(map(str, kinds))})") if kinds else TRUE
    return Start((_seek(compiler, nums, within),))


def _seek(compiler: Compiler, nums: Sequence[int], value: Sql) -> Sql:
    where = all_of((compiler.path("x.path", nums) if nums else FALSE, value))
    return Sql(f"SELECT x.thing FROM term x WHERE {where.text}", where.params)


def _between(predicate: Predicate, conditions: Sequence[Predicate]) -> list[Comparison]:
    """The limits that are set to the property of ``predicate``, if it sets one and others do."""
    if not isinstance(predicate, Comparison) or predicate.operator not in ORDERS:
        return []
    if is_column(predicate.property) or is_placeholder(predicate.property):
        return []
    found = [
        other
        for other in conditions
        if isinstance(other, Comparison)
        and other.operator in ORDERS
        and other.property == predicate.property
    ]
    return found if len(found) > 1 else []


def _of_range(compiler: Compiler, limits: Sequence[Comparison]) -> Start:
    """Things with a value between the limits, and all that have an array there.

    One value of an array may be above a limit, another one below the other.
    """
    nums = compiler.properties.values(limits[0].property).nums
    values = [compiler.values(limit, _sought(compiler)) for limit in limits]
    inside = all_of(value[0] if value else FALSE for value in values)
    array = Sql(f"x.kind = {ARRAY}")
    return Start((_seek(compiler, nums, inside), _seek(compiler, nums, array)))


def _of_column(compiler: Compiler, predicate: Comparison, name: str) -> Start | None:
    operator = predicate.operator
    if operator in ("ne", "ilike"):
        return None
    if operator == "like" and _looks_at_all(predicate):
        return None
    if name == "policyId":
        where = compiler.column(predicate, "policy_id")
        chosen = f"policy IN (SELECT num FROM policy WHERE {where.text})"
        return Start((Sql(f"SELECT num AS thing FROM thing WHERE {chosen}", where.params),))
    if name not in _DIRECT:
        return None
    where = compiler.column(predicate, COLUMNS[name])
    things = Sql(f"SELECT thing.num AS thing FROM thing WHERE {where.text}", where.params)
    return Start((things,), predicate)


def of_namespaces(compiler: Compiler, condition: Sql) -> Start:
    """Things for which the ``condition`` on the column ``namespace`` holds."""
    return Start((Sql(f"SELECT num AS thing FROM thing WHERE {condition.text}", condition.params),))


def of_classes(compiler: Compiler) -> Start:
    """Things of which the requester may read anything."""
    where = compiler.anything("policy.class")
    # In this order it can stop as soon as it has enough.
    joined = f"policy {compiler.hints.cross} thing ON thing.policy = policy.num"
    return Start(
        (Sql(f"SELECT thing.num AS thing FROM {joined} WHERE {where.text}", where.params),)
    )
