"""What the search benchmarks store and ask for: the same for the gateway and for plain SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

THINGS = 100_000
PAGE = 25
SITES = 500
_PRIME = 7919


def device(number: int) -> dict[str, Any]:
    """The thing ``number``: 16 values that can be searched for, about 500 bytes of JSON."""
    spread = number * _PRIME % THINGS  # the values of neighbours are far apart
    return {
        "attributes": {
            "serial": f"SN-{spread:08d}",
            "site": f"hall-{spread % SITES}",
            "owner": f"team-{number % 7}",
            "level": spread / 8,
            "tags": [f"tag-{number % 13}", f"tag-{number % 17}"],
            "on": number % 2 == 0,
            "location": {"latitude": 44.5 + spread / THINGS, "longitude": 8.2},
        },
        "features": {
            name: {"properties": {"value": (spread + at) % 1000, "unit": "C", "ok": at != 1}}
            for at, name in enumerate(("inside", "outside"))
        },
    }


@dataclass(frozen=True)
class Question:
    """One kind of query: an RQL filter with its option, and the condition of a plain SQL query.

    ``values`` are the SQL's parameters, in their order. ``pages``: so many are read, one after the
    other.
    """

    rql: str
    where: str
    values: tuple[Any, ...]
    option: str = ""
    pages: int = 1


def questions(number: int) -> dict[str, Question]:
    """Of every kind one; ``number`` is drawn anew each time, below ``THINGS``."""
    site, level = f"hall-{number % SITES}", number / 8
    prefix = f"SN-{number // 10:07d}"
    return {
        "eq": Question(
            f'eq(attributes/serial,"SN-{number:08d}")', "serial = ?", (f"SN-{number:08d}",)
        ),
        "range": Question(
            f"and(ge(attributes/level,{level:.3f}),lt(attributes/level,{level + 2:.3f}))",
            "level >= ? AND level < ?",
            (level, level + 2),
        ),
        "like": Question(f'like(attributes/serial,"{prefix}*")', "serial LIKE ?", (f"{prefix}%",)),
        "and_or": Question(
            f'and(eq(attributes/site,"{site}"),'
            f"or(eq(attributes/on,true),gt(attributes/level,9000)))",
            "site = ? AND (active = ? OR level > ?)",
            (site, True, 9000.0),
        ),
        "sort": Question(
            f'eq(attributes/site,"{site}")',
            "site = ?",
            (site,),
            option="sort(-attributes/level,+thingId)",
            pages=4,
        ),
    }
