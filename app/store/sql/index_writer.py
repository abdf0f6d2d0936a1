"""Writes things and policies into the search index, one shard's batch in few transactions.

Of a thing only the terms that have changed are written. What is in the index is read before the
transaction begins: nobody else writes a shard's things, and if somebody else has become the shard's
owner meanwhile, the guard at the beginning of the transaction ends it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import structlog

from acks.search_terms import Place, storable
from app.store.sql.database import BadRow, Database, IndexBusy, NotOwner, Write
from app.store.sql.index_rows import (
    Change,
    Indexed,
    PolicyChange,
    Rows,
    Status,
    policy_named,
    policy_writes,
    read_change,
    rows_of,
    thing_writes,
)
from app.store.sql.sweeping import Sweeper

__all__ = ["Change", "IndexWriter", "PolicyChange", "Result", "Status"]

log = structlog.get_logger(__name__)

KNOWN = 100_000
"""Paths, and policies, whose rows are remembered."""
NUMBERS = 500
"""Numbers for new things that are taken at a time, at least."""

MANY = 10_000
"""Rows that one transaction writes, unless a single thing has more: they take some 0.5 s."""

_READ_THINGS = """
SELECT thing.thing_id, thing.num, thing.revision, thing.created, thing.modified, thing.document,
policy.policy_id FROM thing JOIN policy ON policy.num = thing.policy WHERE """

_NEW_PATH = (
    "INSERT INTO path (path, depth, feature, wild) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (path, depth) DO NOTHING"
)


class Result(NamedTuple):
    """What became of a change; ``before`` is the revision indexed before, ``after`` now.

    None means that no such thing is in the index. ``reason`` says why it failed.
    """

    status: Status
    before: int | None
    after: int | None
    reason: str = ""


class IndexWriter:
    """Writes into ``database``. One per process; calls for different shards may overlap."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._paths: OrderedDict[Place, int] = OrderedDict()
        self._policies: OrderedDict[str, None] = OrderedDict()
        self._sweeps: dict[int, int] = {}  # by shard: as of when all that is remembered is right
        self._sweeper = Sweeper(database)
        self._numbers = iter(range(0))
        self._left = 0

    async def unknown_policies(self, changes: Iterable[Change]) -> list[str]:
        """Ids of policies that the things of ``changes`` name and the index does not know yet.

        What is known is remembered. To be read from the store and given to :meth:`apply`.
        Raises IndexUnavailable, IndexBusy.
        """
        named = {policy_named(change) for change in changes}
        asked = sorted(named.difference(self._policies, ("",)))
        if not asked:
            return []
        rows = await self._database.read(
            "SELECT policy_id FROM policy WHERE revision >= 0 AND "
            + self._database.dialect.among("policy_id", "text"),
            (asked,),
        )
        known = {policy_id for (policy_id,) in rows}
        for policy_id in known:
            _remember(self._policies, policy_id, None)
        return [policy_id for policy_id in asked if policy_id not in known]

    async def apply(
        self,
        shard: int,
        fence: int,
        bookmark: str | None,
        changes: Sequence[Change],
        policies: Sequence[PolicyChange] = (),
        *,
        mark: int = 0,
    ) -> dict[str, Result]:
        """Write a batch of one shard and its ``bookmark`` (None: it stays); by thing id the result.

        Large ones are written in several transactions, the bookmark with the last of them.
        Each thing at most once. ``mark`` is the rebuild that is going on (0: leave what is there):
        things that it sees get it, changed or not. If a value is refused, everything else is
        written, and that thing is FAILED. Raises NotOwner if the shard's fence is another one,
        IndexUnavailable, IndexBusy: then the bookmark has not moved, and it has to be done again.
        """
        results, planned = await self._planned(changes)
        seen = [rows.num for rows in planned if rows.num is not None and not rows.changed]
        *parts, last = _parts([rows for rows in planned if rows.changed])
        # Policies come before the things that name them, the bookmark with the last.
        for part in parts:
            await self._write(shard, fence, None, part, policies, (), mark, results)
            policies = ()
        await self._write(shard, fence, bookmark, last, policies, seen, mark, results)
        return results

    async def _planned(self, changes: Sequence[Change]) -> tuple[dict[str, Result], list[Rows]]:
        """What has to be written for ``changes``, and what becomes of them if it can be."""
        results: dict[str, Result] = {}
        planned: list[Rows] = []
        indexed = await self._indexed([change.thing_id for change in changes])
        for change in changes:
            was = indexed.get(change.thing_id)
            before = was.revision if was else None
            stored = read_change(change)
            if isinstance(stored, str):
                results[change.thing_id] = Result(Status.FAILED, before, before, stored)
                continue
            try:
                rows = rows_of(stored, was, change.force)
            except RecursionError:
                reason = "it is nested too deeply"
                results[change.thing_id] = Result(Status.FAILED, before, before, reason)
                continue
            status = Status.WRITTEN if rows.changed else Status.UNCHANGED
            results[change.thing_id] = Result(status, before, rows.after)
            planned.append(rows)
            if rows.size > MANY:
                await asyncio.sleep(0)  # leases are kept by the same thread
        return results, planned

    async def _write(
        self,
        shard: int,
        fence: int,
        bookmark: str | None,
        changed: list[Rows],
        policies: Sequence[PolicyChange],
        seen: Sequence[int],
        mark: int,
        results: dict[str, Result],
    ) -> None:
        """Write some things in one transaction; corrects ``results``."""
        while True:
            sweeps = await self._swept(shard)
            placed = await self._placed(changed, results)
            await self._number(placed)
            guard = _guard(shard, fence, bookmark, len(placed), sweeps)
            rest = [*policy_writes(policies), *self._seen(seen, mark)]
            try:
                await self._database.write([guard, *rest, *thing_writes(placed, shard, mark)])
            except NotOwner:
                self._sweeps.pop(shard, None)
                if await self._swept(shard) == sweeps:
                    raise
                continue  # paths have been removed since we looked
            except BadRow as refused:
                await self._check_indexed(placed)
                log.warning("search.batch_refused", shard=shard, error=str(refused))
                one = _guard(shard, fence, None, 0, sweeps)
                await self._one_by_one(one, shard, placed, policies, mark, results)
                await self._database.write([guard, *self._seen(seen, mark)])
            break
        for policy in policies:
            _remember(self._policies, policy.policy_id, None)

    async def _check_indexed(self, changed: Sequence[Rows]) -> None:
        """Raises IndexBusy if the index has not what it had when the changes were planned.

        A batch that was given up may have been written after all, by a server that was late.
        """
        indexed = await self._indexed([rows.thing_id for rows in changed])
        if any(indexed.get(rows.thing_id) != rows.was for rows in changed):
            raise IndexBusy("the search index has changed meanwhile")

    async def _one_by_one(
        self,
        guard: Write,
        shard: int,
        changed: Sequence[Rows],
        policies: Sequence[PolicyChange],
        mark: int,
        results: dict[str, Result],
    ) -> None:
        """Write each thing and policy by itself, to find those that the database refuses."""
        for policy in policies:
            try:
                await self._database.write([guard, *policy_writes([policy])])
            except BadRow as refused:
                # Nobody may read what a policy says that cannot be kept.
                log.error("search.policy_refused", policy=policy.policy_id, error=str(refused))
                blank = policy._replace(record=None)
                await self._database.write([guard, *policy_writes([blank])])
        for rows in changed:
            try:
                await self._database.write([guard, *thing_writes([rows], shard, mark)])
            except BadRow as refused:
                log.error("search.thing_refused", thing=rows.thing_id, error=str(refused))
                before = results[rows.thing_id].before
                results[rows.thing_id] = Result(Status.FAILED, before, before, str(refused))

    async def remove_unseen(self, shard: int, fence: int, mark: int, limit: int = 500) -> int:
        """Remove up to ``limit`` things of a shard that rebuild ``mark`` has not seen.

        Returns how many; to be called until it is 0. Raises as :meth:`apply`.
        """
        unseen = await self._database.read(
            "SELECT num FROM thing WHERE shard = ? AND mark <> ? LIMIT ?", (shard, mark, limit)
        )
        nums = [num for (num,) in unseen]
        among = self._database.dialect.among
        await self._database.write(
            [
                _guard(shard, fence, None, 0),
                # A row that has been seen since stays, with its terms.
                Write(f"DELETE FROM term WHERE {among('thing')}", (nums,)),
                Write(f"DELETE FROM thing WHERE {among('num')}", (nums,)),
            ]
        )
        return len(nums)

    async def sweep(self) -> bool:
        """Remove some of what nothing refers to any more; True at the end of a round.

        Raises IndexUnavailable, IndexBusy.
        """
        return await self._sweeper.step()

    async def analyze(self) -> None:
        """Have the database look at how much there is of what; raises as :meth:`sweep`."""
        await self._database.write([Write(each) for each in self._database.dialect.analyze])

    # --- what has to be known before

    async def _swept(self, shard: int) -> int:
        """How often there was a sweep; after one that we did not know of nothing is remembered."""
        if shard not in self._sweeps:
            rows = await self._database.read("SELECT sweeps FROM shard WHERE shard = ?", (shard,))
            self._sweeps[shard] = rows[0][0] if rows else 0
            # Forgotten after that, and not before. New objects, as others may be about to remember
            # what they have looked up before.
            self._paths, self._policies = OrderedDict(), OrderedDict()
        return self._sweeps[shard]

    async def _indexed(self, thing_ids: Sequence[str]) -> dict[str, Indexed]:
        if not thing_ids:
            return {}
        among = self._database.dialect.among("thing.thing_id", "text")
        rows = await self._database.read(_READ_THINGS + among, (list(thing_ids),))
        return {row[0]: Indexed(*row[1:]) for row in rows}

    async def _placed(self, changed: list[Rows], results: dict[str, Result]) -> list[Rows]:
        """Fill in ``paths``; returns those that have all they need, the others are FAILED."""
        places = {place for rows in changed for place in rows.places}
        paths = {place: self._paths[place] for place in places if place in self._paths}
        missing = sorted(places.difference(paths))
        if missing:
            paths |= await self._new_paths(missing)
        placed = []
        for rows in changed:
            rows.paths = paths
            if all(place in paths for place in rows.places):
                placed.append(rows)
                continue
            log.error("search.thing_refused", thing=rows.thing_id, error="paths")
            before = results[rows.thing_id].before
            reason = "the index does not take one of its paths"
            results[rows.thing_id] = Result(Status.FAILED, before, before, reason)
        return placed

    async def _new_paths(self, places: list[Place]) -> dict[Place, int]:
        """The numbers of ``places``, which are made if need be; what is refused is left out."""
        known = self._paths
        try:
            await self._database.write([Write(_NEW_PATH, places, many=True)])
        except BadRow:
            for place in places:
                try:
                    await self._database.write([Write(_NEW_PATH, place)])
                except BadRow as refused:
                    log.error("search.path_refused", error=str(refused))
        among = self._database.dialect.among("path", "text")
        rows = await self._database.read(
            f"SELECT path, depth, feature, wild, num FROM path WHERE {among}",
            ([place.path for place in places],),
        )
        found: dict[Place, int] = {}
        for row in rows:
            place, num = Place(*row[:4]), row[4]
            found[place] = num
            _remember(known, place, num)
        return found

    async def _number(self, changed: Sequence[Rows]) -> None:
        """Give every new thing its number."""
        new = [rows for rows in changed if rows.num is None and rows.stored.document is not None]
        if self._left < len(new):
            wanted = max(NUMBERS, len(new))
            ((((end,),),)) = await self._database.write(
                [
                    Write(
                        "UPDATE counter SET next = next + ? WHERE name = 'thing' RETURNING next",
                        (wanted,),
                    )
                ]
            )
            self._numbers, self._left = iter(range(end - wanted, end)), wanted
        for rows in new:
            rows.num = next(self._numbers)
            self._left -= 1

    def _seen(self, nums: Sequence[int], mark: int) -> list[Write]:
        if not mark or not nums:
            return []
        among = self._database.dialect.among("num")
        return [Write(f"UPDATE thing SET mark = ? WHERE {among}", (mark, list(nums)))]


def _guard(
    shard: int, fence: int, bookmark: str | None, written: int, sweeps: int | None = None
) -> Write:
    """Moves the bookmark, if the shard still has the fence, and there was no sweep since."""
    return Write(
        "UPDATE shard SET bookmark = COALESCE(?, bookmark), indexed = indexed + ? "
        "WHERE shard = ? AND fence = ? AND sweeps = COALESCE(?, sweeps) RETURNING shard",
        (None if bookmark is None else storable(bookmark), written, shard, fence, sweeps),
        guard=True,
    )


def _parts(changed: Sequence[Rows]) -> list[list[Rows]]:
    """``changed`` as transactions that take bounded time: at least one, at most one large thing."""
    parts: list[list[Rows]] = [[]]
    size = 0
    for rows in changed:
        if parts[-1] and size + rows.size > MANY:
            parts.append([])
            size = 0
        parts[-1].append(rows)
        size += rows.size
    return parts


def _remember(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > KNOWN:
        known.popitem(last=False)
