"""Who indexes which shard: leases in the index itself.

They lie beside what they guard, so one statement gives a shard with its fence and its bookmark, and
two indexes of the same data never share their work by accident. A lease only says who should
work: that nobody else can write is the fence's business, which is raised whenever a shard is taken
and compared by every commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4

from app.store.sql.database import Database, IndexUnavailable, Write

LEASE_S = 4.0
"""Time after which the shards of a dead process are taken over, s."""
_KEEP = "SELECT shard, owner, fence, lease_until > {now}, rebuild_wanted FROM shard ORDER BY shard"


class Taken(NamedTuple):
    """A shard that is ours now; ``bookmark`` is '' if it was never indexed.

    It has to be rebuilt if ``wanted`` (when that was asked for, ms) is later than ``done``.
    """

    shard: int
    fence: int
    bookmark: str
    wanted: int
    done: int


class View(NamedTuple):
    """What the leases are: by shard, ours with their fences and when a rebuild was wanted last.

    ``free`` are shards of nobody; ``fair`` is how many one process should have.
    """

    ours: dict[int, tuple[int, int]]
    free: tuple[int, ...]
    fair: int


class Leases:
    """The leases of the process ``indexer`` in ``database``."""

    def __init__(self, database: Database, indexer: str, shards: int) -> None:
        self._database = database
        self._indexer = indexer
        self._shards = shards
        self._now = database.dialect.now_ms
        self._ttl = int(LEASE_S * 1000)
        self._store = ""

    async def prepare(self, store: str) -> str:
        """Make the rows, and make sure that the index is that of the data called ``store``.

        Returns the name of the index.

        Raises IndexUnavailable if it is of other data, and what the database raises.
        """
        self._store = store
        shards = [(shard,) for shard in range(self._shards)]
        row = "INSERT INTO shard (shard) VALUES (?) ON CONFLICT DO NOTHING"
        await self._database.write([Write(row, shards, many=True)])
        return await check_store(self._database, store)

    async def renew(self, held: Sequence[int]) -> View:
        """Say that we are alive, make the leases of ``held`` longer, and look at all leases.

        Raises IndexUnavailable if the index has become that of other data.
        """
        await check_store(self._database, self._store)
        now = self._now
        await self._database.write(
            [
                (
                    f"INSERT INTO indexer (id, alive_until) VALUES (?, {now} + ?) "
                    "ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until",
                    (self._indexer, self._ttl),
                ),
                Write(f"DELETE FROM indexer WHERE alive_until < {now}"),
                Write(
                    f"UPDATE shard SET lease_until = {now} + ? WHERE owner = ? AND "
                    + self._database.dialect.among("shard"),
                    (self._ttl, self._indexer, list(held)),
                ),
            ]
        )
        rows = await self._database.read(_KEEP.format(now=now))
        ((alive,),) = await self._database.read("SELECT count(*) FROM indexer")
        ours = {row[0]: (row[2], row[4]) for row in rows if row[1] == self._indexer}
        free = tuple(row[0] for row in rows if row[1] == "" or not row[3])
        return View(ours, free, -(-self._shards // max(1, alive)))

    async def take(self, shards: Sequence[int]) -> list[Taken]:
        """Take what is free of ``shards``, or is ours; others may be faster."""
        statement = (
            f"UPDATE shard SET owner = ?, fence = fence + 1, lease_until = {self._now} + ? "
            f"WHERE shard = ? AND (owner = '' OR owner = ? OR lease_until < {self._now}) "
            "RETURNING shard, fence, bookmark, rebuild_wanted, rebuild_done"
        )
        taken = []
        for shard in shards:
            values = (self._indexer, self._ttl, shard, self._indexer)
            [rows] = await self._database.write([(statement, values)])
            taken += [Taken(*row) for row in rows]
        return taken

    async def release(self, shard: int, fence: int) -> None:
        """Give a shard back."""
        await self._database.write(
            [
                (
                    "UPDATE shard SET owner = '', lease_until = 0 WHERE shard = ? AND fence = ?",
                    (shard, fence),
                )
            ]
        )

    async def leave(self) -> None:
        """Give back everything: this process ends."""
        await self._database.write(
            [
                ("UPDATE shard SET owner = '', lease_until = 0 WHERE owner = ?", (self._indexer,)),
                ("DELETE FROM indexer WHERE id = ?", (self._indexer,)),
            ]
        )


async def check_store(database: Database, store: str) -> str:
    """Make sure that an index is that of the data called ``store``, from now on if it is new.

    Returns the name of the index. Raises IndexUnavailable, and what the database raises.
    """
    facts = await _facts(database)
    if not {"store", "index"} <= facts.keys():
        fact = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING"
        rows = [("store", store), ("index", uuid4().hex)]
        await database.write([Write(fact, rows, many=True)])
        facts = await _facts(database)
    if facts["store"] != store:
        raise IndexUnavailable(
            "the search index was made from other data: let search_index name another one, or make "
            "this one anew by `ackgate search rebuild`"
        )
    return facts["index"]


async def _facts(database: Database) -> dict[str, str]:
    rows = await database.read("SELECT key, value FROM meta WHERE key IN ('store', 'index')")
    return {key: value for key, value in rows}  # noqa: C416 - for its types


async def want_rebuild(database: Database, store: str, shards: int) -> None:
    """Have all shards rebuilt from the data called ``store``, whatever they were made from."""
    name = (
        "INSERT INTO meta (key, value) VALUES ('store', ?) "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )
    rows = "INSERT INTO shard (shard) VALUES (?) ON CONFLICT DO NOTHING"
    statements = [
        Write(name, (store,)),
        Write(rows, [(shard,) for shard in range(shards)], many=True),
        Write(
            f"UPDATE shard SET rebuild_wanted = {database.dialect.now_ms}, "
            # What the rebuild before has seen is no progress of this one.
            "rebuild_seen = 0, rebuild_total = 0"
        ),
    ]
    if (await _facts(database)).get("store", store) != store:
        # Who indexes the other data must write nothing more, who searches it find nothing more;
        # and of what is left of it nobody here may learn.
        statements += [
            Write("UPDATE shard SET fence = fence + 1, owner = '', lease_until = 0"),
            Write("UPDATE meta SET value = ? WHERE key = 'index'", (uuid4().hex,)),
            Write("UPDATE policy SET class = NULL, revision = -1"),
        ]
    await database.write(statements)
