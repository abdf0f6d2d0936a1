"""Where the index has a property of a filter or a sort, and for whom (app/store/sql/schema.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from acks.document import parse_pointer
from acks.placeholders import PREFIXES
from acks.search_terms import path_text, wild_text
from app.search.sql import Sql
from app.search.visibility import Path, Sight
from app.store.sql.dialect import Dialect
from app.store.sql.schema import COLUMNS

MAX_MIXED = 200
"""Sets of rules that may tell apart what is below one property. What more rules there are about
lets nobody know of a value: policies that name a foreign subject must not slow down its searches.
"""
_STORED = re.compile("\x01([\x01\x02])")
_PLAIN = {"\x01": "\x00", "\x02": "\x01"}


class PathRow(NamedTuple):
    """A row of the table ``path``."""

    num: int
    path: str
    depth: int
    feature: str
    wild: str


class Mixed(NamedTuple):
    """Groups that may read only some of what is below the path ``num``.

    ``here``: whether a value right there may be read; ``below`` decides below it: the deepest that
    fits comes first.
    """

    num: int
    path: str
    mask: int
    here: bool
    below: tuple[tuple[Path, bool], ...]


class Property(NamedTuple):
    """A property that is found in terms: numbers of paths by the groups that may read them.

    ``wild``: one of all features. ``full``: everybody may read all of it.
    """

    spots: Mapping[int, tuple[int, ...]]
    wild: bool
    full: bool

    @property
    def nums(self) -> tuple[int, ...]:
        """The paths that anybody may read."""
        return tuple(sorted({num for mask, nums in self.spots.items() if mask for num in nums}))


class Presence(NamedTuple):
    """A property as a whole: where a term says that it is there, and where rules differ below."""

    whole: Property
    mixed: tuple[Mixed, ...]


def is_column(name: str) -> bool:
    """Whether the property ``name`` is a column of the table ``thing``."""
    return name.removeprefix("/") in COLUMNS


def is_placeholder(name: str) -> bool:
    """Whether the property ``name`` is one such as ``time:now``, which no thing has."""
    return name.partition(":")[0] in PREFIXES


class Properties:
    """The properties of one search, as the requester sees them."""

    def __init__(self, sight: Sight, rows: Iterable[PathRow]) -> None:
        self.sight = sight
        self._rows: dict[str, list[PathRow]] = {}
        for row in rows:
            for key in {row.path, row.wild} - {""}:
                self._rows.setdefault(key, []).append(row)

    def values(self, name: str) -> Property:
        """Where the values of a property are that can be compared."""
        parts = parse_pointer(name)
        return self._grouped(
            [
                (row.num, self.sight.readers(_parts(row, parts)[: row.depth]))
                for row in self._rows.get(key_of(name), ())
            ],
            is_wild(parts),
        )

    def presence(self, name: str) -> Presence:
        """Where a property is as a whole: an object is there if any of it may be read."""
        parts = parse_pointer(name)
        whole: list[tuple[int, int]] = []
        mixed: list[Mixed] = []
        for row in self._rows.get(key_of(name), ()):
            at = _parts(row, parts)
            mask = self.sight.readers(at[: row.depth])
            kinds: dict[tuple[bool, tuple[tuple[Path, bool], ...]], int] = {}
            # Below an array no rule counts.
            for bit, group in enumerate(self.sight.groups if row.depth == len(at) else ()):
                below = group.rights.below(at)
                if below:
                    kind = (bool(mask >> bit & 1), below)
                    kinds[kind] = kinds.get(kind, 0) | 1 << bit
            for (here, below), groups in kinds.items():
                mask &= ~groups
                if len(mixed) < MAX_MIXED:
                    mixed.append(Mixed(row.num, row.path, groups, here, below))
            whole.append((row.num, mask))
        return Presence(self._grouped(whole, is_wild(parts)), tuple(mixed))

    def is_wild(self, name: str) -> bool:
        """Whether it is a property of all features."""
        return is_wild(parse_pointer(name))

    def _grouped(self, spots: Iterable[tuple[int, int]], wild: bool) -> Property:
        found: dict[int, tuple[int, ...]] = {}
        for num, mask in spots:
            found[mask] = (*found.get(mask, ()), num)
        return Property(found, wild, set(found) <= {self.sight.all})


def _parts(row: PathRow, parts: Path) -> Path:
    """The path of ``row``, which the property with these ``parts`` has found."""
    if not is_wild(parts) or row.feature == "":
        return parts
    feature = _STORED.sub(lambda found: _PLAIN[found[1]], row.feature)
    return ("features", feature, *parts[2:])


def is_wild(parts: Path) -> bool:
    """Whether it is a property of all features."""
    return parts[:2] == ("features", "*")


def key_of(name: str) -> str:
    """A property as the table ``path`` names it."""
    parts = parse_pointer(name)
    return wild_text(parts) if is_wild(parts) else path_text(parts)


def paths_query(dialect: Dialect, names: Iterable[str]) -> list[Sql]:
    """Queries for the rows of ``path`` that the properties ``names`` need: num, path, depth, ..."""
    keys = sorted({key_of(name) for name in names if not (is_column(name) or is_placeholder(name))})
    plain = [key for key in keys if not key.startswith("features/*")]
    wild = [key for key in keys if key.startswith("features/*")]
    queries = []
    for column, chosen in (("path", plain), ("wild", wild)):
        if chosen:
            where = dialect.among(column, "text")
            query = f"SELECT num, path, depth, feature, wild FROM path WHERE {where}"
            queries.append(Sql(query, (chosen,)))
    return queries
