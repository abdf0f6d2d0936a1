"""Removes what nothing in the search index refers to any more, a bounded piece at a time.

Paths, classes and policies stay when the last thing that had them goes: to look for other things at
every change would cost each of them. Writers remember the numbers of paths, so whoever removes one
raises ``shard.sweeps`` in all shards, in the same transaction; a writer whose number is an older
one looks up its paths anew (app/store/sql/index_writer.py). As every transaction of a writer begins
with its shard's row, it is either before the sweep, which sees what it has used, or after it.
"""

from __future__ import annotations

from app.store.sql.database import Database, Write

LOOK = 5_000
"""Rows of each table that are looked at in one go, and may be removed in one transaction."""

# In this order: a policy refers to its class.
_USED = {
    "policy": "EXISTS (SELECT 1 FROM policy WHERE policy.num = seen.num AND class IS NOT NULL) "
    "OR EXISTS (SELECT 1 FROM thing WHERE thing.policy = seen.num)",
    "class": "EXISTS (SELECT 1 FROM policy WHERE policy.class = seen.num)",
    "path": "EXISTS (SELECT 1 FROM term WHERE term.path = seen.num)",
}
_SEEN = "(SELECT num FROM {table} WHERE num > ? ORDER BY num LIMIT ?) seen"
_LOOK = "SELECT seen.num, CASE WHEN {used} THEN 1 ELSE 0 END FROM " + _SEEN + " ORDER BY seen.num"
_UNUSED = "{column} IN (SELECT seen.num FROM {table} seen WHERE {among} AND NOT ({used}))"


class Sweeper:
    """Goes round the tables of ``database``, a piece of each at a time; one at a time may work."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._at = dict.fromkeys(_USED, 0)

    async def step(self) -> bool:
        """Look at the next piece; whether that was the end of a round.

        Raises IndexUnavailable, IndexBusy.
        """
        found = {table: await self._look(table) for table in _USED}
        if any(found.values()):
            await self._remove(found)
        return not any(self._at.values())

    async def _look(self, table: str) -> list[int]:
        """The numbers of unused rows in the next piece of a table."""
        sql = _LOOK.format(table=table, used=_USED[table])
        rows = await self._database.read(sql, (self._at[table], LOOK))
        self._at[table] = rows[-1][0] if len(rows) == LOOK else 0
        return [num for num, used in rows if not used]

    async def _remove(self, found: dict[str, list[int]]) -> None:
        # Before anything else: no writer is in the middle of something then.
        writes = [Write("UPDATE shard SET sweeps = sweeps + 1")]
        for table, nums in found.items():
            if not nums:
                continue
            sql = _UNUSED.format(
                column="{column}",
                table=table,
                among=self._database.dialect.among("seen.num"),
                used=_USED[table],
            )
            if table == "class":
                subjects = sql.format(column="class")
                writes.append(Write(f"DELETE FROM class_subject WHERE {subjects}", (nums,)))
            writes.append(Write(f"DELETE FROM {table} WHERE {sql.format(column='num')}", (nums,)))
        await self._database.write(writes)
