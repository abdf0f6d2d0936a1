"""Words that keep a database's planner to the way that was chosen for it.

Which way is short is decided here, by looking (app/search/find.py); planners can only guess.
"""

from __future__ import annotations

from typing import NamedTuple

from app.search.sql import Sql
from app.store.sql.dialect import Dialect


class Hints(NamedTuple):
    """What is written around conditions and tables.

    ``sign`` before a column of numbers, ``text_sign`` before one of texts: no index is chosen
    because of it. ``fence`` behind a subquery: it is asked for each row. ``cross``: a join that is
    done in the order in which it is written. ``by_value``: behind the table ``term``, follow its
    index. ``opaque``: what is written around a condition so that no index and no guess about it
    counts. ``apart``: around one on a table that is joined to ``thing`` by its number, so that it
    is not looked for in all of that table before the join.
    """

    sign: str
    text_sign: str
    fence: str
    cross: str
    by_value: str
    opaque: tuple[str, str]
    apart: tuple[str, str]

    def unseen(self, condition: Sql) -> Sql:
        """``condition`` so that the planner takes no account of it."""
        return _around(self.opaque, condition)

    def late(self, condition: Sql) -> Sql:
        """``condition`` on the policy of a thing, looked at when the thing is known."""
        return _around(self.apart, condition)


def _around(words: tuple[str, str], condition: Sql) -> Sql:
    return Sql(f"{words[0]}{condition.text}{words[1]}", condition.params)


_SQLITE = Hints(
    "+",
    "+",
    "",
    "CROSS JOIN",
    "INDEXED BY term_value",
    ("", ""),
    # Else it makes a Bloom filter of all policies for each search. Numbers of things are not 0.
    ("CASE WHEN thing.num THEN ", " END"),
)
_POSTGRESQL = Hints(
    "+",
    "",  # there is no such sign for texts, nor need: the index has kinds and numbers before them
    " OFFSET 0",
    "JOIN",
    "",
    ("CASE WHEN ", " THEN TRUE ELSE FALSE END"),
    ("", ""),
)


def hints_for(dialect: Dialect) -> Hints:
    """The words of a database."""
    return _SQLITE if dialect.name == "sqlite" else _POSTGRESQL
