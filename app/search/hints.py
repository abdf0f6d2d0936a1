"""Words that keep a database's planner to the way that was chosen for it.

Which way is short is decided here, by looking (app/search/find.py); planners can only guess.
"""

from __future__ import annotations

from typing import NamedTuple

from app.search.sql import Sql
from app.store.sql.dialect import Dialect


class Hints(NamedTuple):
    """``sign`` before a column: no index is chosen because of it.

    ``fence`` behind a subquery: it is asked for each row. ``cross``: a join that is done in the
    order in which it is written. ``by_value``: behind the table ``term``, follow its index.
    ``opaque``: what is written around a condition so that no index and no guess about it counts.
    """

    sign: str
    fence: str
    cross: str
    by_value: str
    opaque: tuple[str, str]

    def unseen(self, condition: Sql) -> Sql:
        """``condition`` so that the planner takes no account of it."""
        before, behind = self.opaque
        return Sql(f"{before}{condition.text}{behind}", condition.params)


_SQLITE = Hints("+", "", "CROSS JOIN", "INDEXED BY term_value", ("", ""))
_POSTGRESQL = Hints("", " OFFSET 0", "JOIN", "", ("CASE WHEN ", " THEN TRUE ELSE FALSE END"))


def hints_for(dialect: Dialect) -> Hints:
    """The words of a database."""
    return _SQLITE if dialect.name == "sqlite" else _POSTGRESQL
