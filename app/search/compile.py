"""RQL as SQL over the search index (spec websocket-... 6.1-6.4).

A predicate becomes a condition on the tables ``thing`` and ``policy``, joined. What the requester
may not read counts as absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from acks.facts import ThingFacts
from acks.placeholders import resolve_time
from acks.rql import Comparison, Literal, Logic, Predicate, Presence, Time, matches
from acks.search_terms import FILLED, MAX_PATH, OBJECT, TEXT, path_text
from app.search.hints import hints_for
from app.search.literals import Literals, Terms, column_condition, text_range, value_conditions
from app.search.properties import Mixed, Properties, Property, is_column, is_placeholder
from app.search.sql import FALSE, TRUE, Sql, all_of, any_of, in_line, listed, none_of
from app.search.visibility import Path, among
from app.store.sql.dialect import Dialect
from app.store.sql.schema import COLUMNS

_NO_THING = ThingFacts({})
_FEW = 20
NUMERIC = frozenset({"_revision"})
"""Columns that hold a number; the others hold texts."""


class Compiler:
    """Makes conditions for one search at the moment ``now``, an aware datetime."""

    def __init__(self, dialect: Dialect, properties: Properties, now: datetime) -> None:
        self.dialect = dialect
        self.properties = properties
        self._sight = properties.sight
        self._now = now
        self.hints = hints_for(dialect)
        # The thing is given, so the index by values is not what leads to its terms.
        self._x = Terms.of("x", self.hints)
        self._y = Terms.of("y", self.hints)

    def condition(self, predicate: Predicate, opposite: bool = False) -> Sql:
        """Whether the thing of a row fits, or does not. Nothing in it is ever NULL.

        Raises ``rql.expression.invalid`` for a long pattern.
        """
        if not isinstance(predicate, Logic):
            fits = self._leaf(predicate)
            return none_of(fits) if opposite else fits
        if predicate.operator == "not":
            return self.condition(predicate.children[0], not opposite)
        # SQLite's parser forgets the end of what lies deepest only if it comes first.
        children = sorted(predicate.children, key=_depth, reverse=True)
        parts = [self.condition(child, opposite) for child in children]
        return all_of(parts) if (predicate.operator == "and") != opposite else any_of(parts)

    def _leaf(self, predicate: Comparison | Presence) -> Sql:
        name = predicate.property.removeprefix("/")
        if is_placeholder(name):
            return TRUE if matches(predicate, _NO_THING, self._now) else FALSE
        if isinstance(predicate, Presence):
            return self._presence(predicate.operator, name)
        if is_column(name):
            return all_of((self.readable(name), self.column(predicate, COLUMNS[name])))
        if predicate.operator == "ne":
            return self._differs(predicate, name)
        value = any_of(self.values(predicate, self._x))
        return self._exists(self.properties.values(name), value)

    def values(self, predicate: Comparison, terms: Terms) -> list[Sql]:
        """Conditions on a term, of which one holds if it is what ``predicate`` looks for."""
        literals = self._literals(predicate)
        return value_conditions(self.dialect, terms, predicate.operator, literals)

    def column(self, predicate: Comparison, column: str) -> Sql:
        """The comparison of a ``column`` of the tables ``thing`` and ``policy``."""
        numeric = predicate.property.removeprefix("/") in NUMERIC
        literals = self._literals(predicate)
        return column_condition(self.dialect, column, predicate.operator, literals, numeric)

    def readable(self, name: str) -> Sql:
        """Whether the requester may read a column; the special fields everybody may (5.4)."""
        if name != "policyId":
            return TRUE
        return self.seen(self._sight.readers((name,)))

    def seen(self, mask: int) -> Sql:
        """Whether the thing's policy is of the groups in ``mask``."""
        condition = self._sight.condition(self.dialect, mask)
        return condition if condition in (TRUE, FALSE) else self.hints.late(condition)

    def anything(self, column: str) -> Sql:
        """Whether the class in ``column`` lets the requester read anything of a thing."""
        return among(self.dialect, column, self._sight.classes(self._sight.all))

    def exists(self, tables: str, where: Sql) -> Sql:
        """Whether there is such a row."""
        text = f"EXISTS (SELECT 1 FROM {tables} WHERE {where.text}{self.hints.fence})"
        return Sql(text, where.params)

    def path(self, column: str, nums: Sequence[int]) -> Sql:
        """Whether ``column`` is one of the numbers of paths."""
        return listed(column, nums) if len(nums) <= _FEW else among(self.dialect, column, nums)

    def _literals(self, predicate: Comparison) -> Literals:
        return Literals.of([self._resolved(value) for value in predicate.values])

    def _resolved(self, literal: Literal) -> str | int | float | bool | None:
        if not isinstance(literal, Time):
            return literal
        found = resolve_time(literal.name, self._now)
        if found is not None and literal.name.startswith("now_epoch_millis"):
            return int(found)  # a text would fit none of the numbers that it is meant for
        return found

    # --- properties in terms

    def _exists(self, found: Property, value: Sql) -> Sql:
        """Whether the thing has a term x with this ``value`` where it may be read."""
        if value == FALSE:
            return FALSE
        return any_of(
            all_of((self.seen(mask), self._term(nums, value))) for mask, nums in found.spots.items()
        )

    def _term(self, nums: Sequence[int], value: Sql) -> Sql:
        where = all_of((Sql("x.thing = thing.num"), self.path("x.path", nums), value))
        return self.exists("term x", where)

    def _differs(self, predicate: Comparison, name: str) -> Sql:
        """``ne``: the property is there, and no value of it is equal; of one feature, if of any."""
        if not self.properties.is_wild(name):
            value = any_of(self.values(predicate, self._x))
            equal = self._exists(self.properties.values(name), value)
            return all_of((self._there(name, False), none_of(equal)))
        equal = any_of(self.values(predicate, self._y))
        where = all_of((Sql("y.thing = x.thing AND y.path = x.path"), equal))
        # One feature's property is one path, so a term beside this one is of the same feature.
        none = none_of(self.exists("term y", where))
        found = self.properties.presence(name)
        parts = [self._exists(found.whole, none)]
        for mixed in found.mixed:
            same = none_of(self._term((mixed.num,), any_of(self.values(predicate, self._x))))
            parts.append(all_of((self._mixed(mixed, False), same if mixed.here else TRUE)))
        return any_of(parts)

    def _presence(self, operator: str, name: str) -> Sql:
        if is_column(name):
            empty = Sql(f"{COLUMNS[name]} = ''") if name not in NUMERIC else FALSE
            there = self.readable(name)
            return there if operator == "exists" else any_of((none_of(there), empty))
        if operator == "exists":
            return self._there(name, False)
        return none_of(self._there(name, True))

    def _there(self, name: str, filled: bool) -> Sql:
        """Whether the property is there, or with ``filled`` whether it is and not empty."""
        found = self.properties.presence(name)
        whole = self._exists(found.whole, self._filled() if filled else TRUE)
        return any_of((whole, *(self._mixed(mixed, filled) for mixed in found.mixed)))

    def _filled(self) -> Sql:
        kinds = ", ".join(map(str, FILLED))
        kind, head = self._x.kind, self._x.head
        return Sql(f"({kind} IN ({kinds}) OR ({kind} = {TEXT} AND {head} <> ''))")

    def _mixed(self, mixed: Mixed, filled: bool) -> Sql:
        """As :meth:`_there`, for groups that may read only some of what is below the property.

        An object is there if anything below it, that is no object with something in it, is.
        """
        leaf = Sql(f"{self._x.kind} <> {OBJECT}")
        at_it = all_of((leaf, self._filled())) if filled else leaf
        decision = in_line(
            [
                *(_decision(mark, reads) for mark, reads in mixed.below),
                Sql("ELSE TRUE" if mixed.here else "ELSE FALSE"),
            ],
            " ",
        )
        where = Sql(
            "x.thing = thing.num AND q.path >= ? AND q.path < ?"
            f" AND {leaf.text} AND CASE {decision.text} END",
            (f"{mixed.path}/", f"{mixed.path}0", *decision.params),  # "0" follows "/"
        )
        below = self.exists("term x JOIN path q ON q.num = x.path", where)
        there = any_of((self._term((mixed.num,), at_it), below)) if mixed.here else below
        return all_of((self.seen(mixed.mask), there))


def _decision(mark: Path, reads: bool) -> Sql:
    """A case of what may be read below a property; a rule does not count below an array."""
    at = path_text(mark)
    if len(at) > MAX_PATH:
        # Below a path that was cut the index does not know what is whose: nothing of it is shown.
        near = text_range("q.path", at[:MAX_PATH])
        return Sql(f"WHEN {near.text} THEN FALSE", near.params)
    return Sql(
        f"WHEN q.depth >= {len(mark)} AND (q.path = ? OR (q.path >= ? AND q.path < ?))"
        f" THEN {'TRUE' if reads else 'FALSE'}",
        (at, f"{at}/", f"{at}0"),
    )


def _depth(predicate: Predicate) -> int:
    if not isinstance(predicate, Logic):
        return 0
    return 1 + max(map(_depth, predicate.children))


def simplified(predicate: Predicate) -> Predicate:
    """The same with one ``in`` for what an ``or`` says about equality with one property."""
    if not isinstance(predicate, Logic):
        return predicate
    children = [simplified(child) for child in predicate.children]
    if predicate.operator != "or":
        return Logic(predicate.operator, tuple(children))
    values: dict[str, tuple[Literal, ...]] = {}
    others: list[Predicate] = []
    for child in children:
        if isinstance(child, Comparison) and child.operator in ("eq", "in"):
            values[child.property] = (*values.get(child.property, ()), *child.values)
        else:
            others.append(child)
    equal = [Comparison("in", name, each) for name, each in values.items()]
    kept = (*equal, *others)
    return kept[0] if len(kept) == 1 else Logic("or", kept)
