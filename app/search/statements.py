"""The statements of one search: its condition, its order and where it begins, put together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard

from acks.rql import Comparison, Predicate, Presence
from acks.search_options import SortKey
from acks.search_terms import (
    ARRAY,
    EMPTY_ARRAY,
    EMPTY_OBJECT,
    NULL,
    NUMBER,
    OBJECT,
    TEXT,
    storable,
)
from app.search.compile import Compiler, simplified
from app.search.covers import Start, conjuncts, having, of_classes, of_namespaces, starts
from app.search.literals import Terms, text_among
from app.search.ordering import (
    MISSING,
    SORTED,
    Level,
    beyond,
    counting,
    levels,
    order_by,
    where_read,
)
from app.search.properties import is_column
from app.search.sql import TRUE, Sql, all_of, any_of, in_line, none_of

_UNSORTED = (NULL, OBJECT, EMPTY_OBJECT, ARRAY, EMPTY_ARRAY)
_SCALAR = frozenset({"eq", "in", "gt", "ge", "lt", "le", "like", "ilike"})
_NO_VALUE = (Sql("0"), Sql("0"), Sql("''"))

Values = Sequence[tuple[Any, ...]]


class Part(NamedTuple):
    """A query for a part of the result; the parts follow one another in the order of the sort.

    ``columns`` are selected beside the thing's id, ``order`` is the list of ORDER BY.
    ``empty`` is a quicker statement for one truth: whether there is surely nothing in this part.
    """

    columns: tuple[Sql, ...]
    source: Sql
    where: Sql
    order: str
    empty: Sql | None = None

    def page(self, limit: int, offset: int) -> Sql:
        """The statement for ``limit`` rows of it."""
        selected = in_line((Sql("SELECT thing.thing_id"), *self.columns), ", ")
        words = (
            selected,
            Sql("FROM"),
            self.source,
            Sql("WHERE"),
            self.where,
            Sql(f"ORDER BY {self.order} LIMIT ? OFFSET ?", (limit, offset)),
        )
        return in_line(words, " ")


class Statements:
    """Makes the statements of one search; raises ``rql.expression.invalid`` for a long pattern."""

    def __init__(
        self,
        compiler: Compiler,
        predicate: Predicate | None,
        namespaces: Collection[str],
        sort: Sequence[SortKey] = (),
    ) -> None:
        self._compiler = compiler
        self._sort = sort
        self._conditions = list(conjuncts(predicate and simplified(predicate)))
        self._fits = [compiler.condition(each) for each in self._conditions]
        self._namespaces = sorted(map(storable, namespaces))
        self.levels = tuple(levels(compiler, sort))
        self._hints = compiler.hints

    def _where(self, *instead: Predicate | None) -> Sql:
        """Whether a thing is found, if the conditions ``instead`` are known to hold."""
        kept = [
            fits
            for each, fits in zip(self._conditions, self._fits, strict=True)
            if not any(each is known for known in instead)
        ]
        anything = self._hints.late(self._compiler.anything("policy.class"))
        return all_of((anything, self._named("thing.namespace"), *kept))

    def _named(self, column: str) -> Sql:
        if not self._namespaces:
            return TRUE
        return text_among(self._compiler.dialect, column, self._namespaces)

    # --- where to begin

    @property
    def several(self) -> bool:
        """Whether more than one condition has to hold."""
        return len(self._conditions) + bool(self._namespaces) > 1

    def starts(self) -> list[Start]:
        """What the search could begin with; the last is everything that may be read."""
        found = starts(self._compiler, self._conditions)
        if self._namespaces:
            found.append(of_namespaces(self._compiler, self._named("namespace")))
        return [*found, of_classes(self._compiler)]

    def probe(self, found: Sequence[Start], limit: int, *, sampled: bool) -> Sql:
        """A statement for one row about ``found``: their sizes, counted up to ``limit``; samples.

        The samples are 0 unless ``sampled``. Last comes whether the property that the sort could
        follow has arrays anywhere.
        """
        columns = [start.size(limit) for start in found]
        columns += [(sampled and start.sample) or Sql("0") for start in found]
        num = self._walked()
        arrays = Sql("0")
        if num is not None:
            text = f"EXISTS (SELECT 1 FROM term x WHERE x.path = ? AND x.kind = {ARRAY})"
            arrays = Sql(text, (num,))
        return in_line((Sql("SELECT"), in_line((*columns, arrays), ", ")), " ")

    def _source(self, start: Start | None) -> Sql:
        joined = Sql(f"{self._hints.cross} policy ON policy.num = thing.policy")
        if start is None:
            return in_line((Sql("thing"), joined), " ")
        found = start.things
        things = f"(SELECT DISTINCT thing FROM ({found.text}) e) d {self._hints.cross} thing"
        return in_line((Sql(f"{things} ON thing.num = d.thing", found.params), joined), " ")

    # --- statements

    def counted(self, start: Start | None) -> Sql:
        """The statement for how many there are."""
        where = self._where(start.instead) if start else self._where()
        words = (Sql("SELECT count(*) FROM"), self._source(start), Sql("WHERE"), where)
        return in_line(words, " ")

    def parts(
        self, start: Start | None, after: Values | None, *, walk: bool, arrays: bool
    ) -> Iterator[Part]:
        """What to ask, one behind the other until the page is full.

        Without a ``start``, and if there may be several parts (``walk``), a sort by a property
        follows its values in the index: those that lack it are a part by themselves. ``arrays``:
        a thing may have several values there.
        """
        num = self._walked() if walk and start is None else None
        if num is None:
            where = [self._where(start.instead if start else None)]
            if after is not None:
                where.append(beyond(self._hints, self.levels, after))
            yield self._part(self.levels, [self._source(start)], where, ())
            return
        lacks = after is not None and after[0] == MISSING
        descending = self.levels[0].descending
        if not descending and (after is None or lacks):
            yield from self._lacking(num, after, arrays)
        if not lacks:
            yield self._having(num, after, arrays)
        elif not descending:
            yield self._having(num, None, arrays)
        if descending:
            yield from self._lacking(num, after if lacks else None, arrays)

    # --- following the values of the first property of the sort

    def _walked(self) -> int | None:
        """The path of the first property of the sort, if it can be followed in the index."""
        if not self._sort or is_column(self._sort[0].property):
            return None
        nums = self._compiler.properties.values(self._sort[0].property).nums
        return nums[0] if len(nums) == 1 else None

    def _having(self, num: int, after: Values | None, arrays: bool) -> Part:
        """Things that have the property, in the order of its values."""
        columns = (Sql("k0.kind"), Sql("k0.number"), Sql("k0.head"))
        first = self.levels[0]._replace(columns=columns, join=None)
        keys = (first, *self.levels[1:])
        near = (
            f"thing ON thing.num = k0.thing {self._hints.cross} policy ON policy.num = thing.policy"
        )
        source = [Sql(f"term k0 {self._hints.by_value} {self._hints.cross} {near}")]
        where = [
            Sql("k0.path = ?", (num,)),
            where_read(self._compiler, self._sort[0].property, "k0.path"),
        ]
        # If the value that is followed is the only one, what is asked of it narrows the way.
        limits = [leaf for leaf in self._about_sort() if _is_scalar(leaf) and not arrays]
        if arrays:
            where.append(counting(self._compiler, "k0", first.descending))
        if not limits:
            # A plus: as a list of kinds it would have no order in SQLite.
            where.append(Sql(f"k0.kind >= {NUMBER}"))
            where.append(self._hints.unseen(Sql(f"{self._hints.sign}k0.kind IN {SORTED}")))
        elif after is not None:
            where.append(_from(after[0], first.descending))
        for limit in limits:
            passed = after is not None and _is_passed(limit, first.descending)
            terms = Terms.of("k0", self._hints, sought=not passed)
            where.append(any_of(self._compiler.values(limit, terms)))
        where.append(self._where(*limits))
        if after is not None:
            where.append(beyond(self._hints, keys, after, entered=bool(limits)))
        return self._part(keys, source, where, ())

    def _lacking(self, num: int, after: Values | None, arrays: bool) -> Iterator[Part]:
        """Things that lack the property, or have nothing there that is sorted."""
        name = self._sort[0].property
        named = self._about_sort()
        if any(_is_scalar(leaf) for leaf in named):
            return
        start = None
        if any(isinstance(leaf, Presence) and leaf.operator == "exists" for leaf in named):
            start = having(self._compiler, name, _UNSORTED)
        keys = self.levels[1:]
        path = where_read(self._compiler, name, "x.path")
        inside = all_of(
            (Sql("x.thing = thing.num"), path, Sql(f"{self._hints.sign}x.kind IN {SORTED}"))
        )
        where = [self._where(), none_of(self._compiler.exists("term x", inside))]
        if after is not None:
            where.append(beyond(self._hints, keys, after[1:]))
        part = self._part(keys, [self._source(start)], where, _NO_VALUE)
        if start is None and not arrays and self._compiler.properties.values(name).full:
            values = f"SELECT count(*) FROM term WHERE path = ? AND kind IN {SORTED}"
            empty = Sql(f"SELECT ({values}) = (SELECT count(*) FROM thing)", (num,))
            part = part._replace(empty=empty)
        yield part

    def _about_sort(self) -> list[Comparison | Presence]:
        """The conditions on the first property of the sort."""
        return [
            leaf
            for leaf in self._conditions
            if isinstance(leaf, Comparison | Presence)
            and leaf.property.removeprefix("/") == self._sort[0].property
        ]

    def _part(
        self, keys: Sequence[Level], source: list[Sql], where: list[Sql], constants: tuple[Sql, ...]
    ) -> Part:
        columns = (*constants, *(column for level in keys for column in level.columns))
        joins = [level.join for level in keys if level.join is not None]
        order = order_by(keys, 2 + len(constants))
        return Part(columns, in_line((*source, *joins), " "), all_of(where), order)


def _is_scalar(leaf: Comparison | Presence) -> TypeGuard[Comparison]:
    """Whether what fits has a value that is sorted."""
    if not isinstance(leaf, Comparison) or leaf.operator not in _SCALAR:
        return False
    return None not in leaf.values


def _is_passed(limit: Comparison, descending: bool) -> bool:
    """Whether all values behind one that is within ``limit`` are: an index need not look for it."""
    return limit.operator in (("lt", "le") if descending else ("gt", "ge"))


def _from(value: tuple[Any, ...], descending: bool) -> Sql:
    """The part of the index that begins at ``value``, with others of its kind."""
    kind, number, head = value
    sign = "<=" if descending else ">="
    if kind == TEXT:
        return Sql(f"k0.kind = {TEXT} AND k0.number = 0 AND k0.head {sign} ?", (head,))
    return Sql(f"k0.kind = ? AND k0.number {sign} ?", (kind, number))
