"""The few expressions that SQLite and PostgreSQL write differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from acks.search_terms import storable

_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOWER = _UPPER.lower()
_TO_LOWER = str.maketrans(_UPPER, _LOWER)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database's way to write expressions; each holds as many ``?`` as its method says."""

    name: Literal["sqlite", "postgresql"]
    now_ms: str
    """The database's clock, in ms since the epoch."""
    analyze: tuple[str, ...]
    """Statements that have it look at how much there is of what."""

    def among(self, column: str, kind: Literal["int", "text"] = "int") -> str:
        """Whether ``column`` is in a list; one parameter, the list (of any length)."""
        if self.name == "sqlite":
            return f"{column} IN (SELECT value FROM json_each(?))"
        return f"{column} = ANY(?::{'bigint' if kind == 'int' else 'text'}[])"

    def like(self, text: str, pattern: str, *, ignore_case: bool) -> tuple[str, str]:
        """Whether the SQL expression ``text`` fits an RQL pattern (acks/wildcards.py).

        Returns the condition and its one parameter. It takes bounded time whatever the pattern;
        one of more than 10,000 characters may be refused (SQLite takes 50,000 bytes).
        """
        pattern = storable("*".join(_pieces(pattern)))
        if ignore_case:
            pattern = pattern.translate(_TO_LOWER)
        if self.name == "postgresql":
            if ignore_case:
                text = f"translate({text}, '{_UPPER}', '{_LOWER}')"
            escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            return f"{text} LIKE ?", escaped.replace("*", "%").replace("?", "_")
        if ignore_case:
            text = f"lower({text})"  # of A to Z alone
        return f"{text} GLOB ?", pattern.replace("[", "[[]")


def _pieces(pattern: str) -> list[str]:
    """What is between the stars; several stars in a row are one."""
    head, *rest = pattern.split("*")
    if not rest:
        return [head]
    return [head, *filter(None, rest[:-1]), rest[-1]]


SQLITE = Dialect(
    "sqlite",
    "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    # A changed schema has all connections, also those of other processes, read what was found. Else
    # they would plan by what the index was when they opened it, maybe empty.
    ("ANALYZE", "CREATE TABLE analysed (n)", "DROP TABLE analysed"),
)
POSTGRESQL = Dialect(
    "postgresql",
    "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    ("ANALYZE",),
)
