"""Who indexes which shard: the leases in the index, on both databases."""

from __future__ import annotations

import pytest

from app.search.leases import Leases, check_store, want_rebuild
from app.store.sql.database import Database, IndexUnavailable

SHARDS = 4


async def leases(database: Database, indexer: str, store: str = "data") -> Leases:
    one = Leases(database, indexer, SHARDS)
    await one.prepare(store)
    return one


async def expire(database: Database, indexer: str) -> None:
    """As if the process had died some time ago."""
    await database.write(
        [
            ("UPDATE shard SET lease_until = 0 WHERE owner = ?", (indexer,)),
            ("UPDATE indexer SET alive_until = 0 WHERE id = ?", (indexer,)),
        ]
    )


async def test_an_indexer_by_itself_gets_all_shards(database: Database) -> None:
    one = await leases(database, "one")
    view = await one.renew([])
    assert (view.ours, view.free, view.fair) == ({}, (0, 1, 2, 3), 4)
    taken = await one.take(view.free)
    assert [(t.shard, t.fence, t.bookmark) for t in taken] == [(n, 1, "") for n in range(4)]
    view = await one.renew([0, 1, 2, 3])
    assert view.free == ()
    assert {shard: fence for shard, (fence, _) in view.ours.items()} == dict.fromkeys(range(4), 1)


async def test_what_another_holds_cannot_be_taken_before_it_is_given_back(
    database: Database,
) -> None:
    one, other = await leases(database, "one"), await leases(database, "other")
    await one.renew([])
    await one.take([0, 1, 2, 3])
    view = await other.renew([])
    assert (view.free, view.fair) == ((), 2)
    assert await other.take([0, 1]) == []
    await one.release(1, 1)
    assert [t.shard for t in await other.take([0, 1])] == [1]


async def test_a_dead_ones_shards_are_taken_over_with_a_higher_fence(database: Database) -> None:
    one, other = await leases(database, "one"), await leases(database, "other")
    await one.renew([])
    await one.take([0, 1, 2, 3])
    await expire(database, "one")
    view = await other.renew([])
    assert (view.free, view.fair) == ((0, 1, 2, 3), 4)
    assert [t.fence for t in await other.take(view.free)] == [2] * 4
    # It was only slow: it sees that they are not its own any more.
    assert (await one.renew([0, 1, 2, 3])).ours == {}


async def test_only_what_is_held_is_kept(database: Database) -> None:
    one = await leases(database, "one")
    await one.renew([])
    await one.take([0, 1])
    await expire(database, "one")
    view = await one.renew([0])
    assert view.free == (1, 2, 3)


async def test_a_process_that_was_restarted_under_its_name_has_its_shards_at_once(
    database: Database,
) -> None:
    one = await leases(database, "one")
    await one.renew([])
    await one.take([0, 1])
    again = await leases(database, "one")
    view = await again.renew([])
    assert sorted(view.ours) == [0, 1]
    assert [(t.shard, t.fence) for t in await again.take([0, 1])] == [(0, 2), (1, 2)]


async def test_who_leaves_leaves_everything(database: Database) -> None:
    one, other = await leases(database, "one"), await leases(database, "other")
    await one.renew([])
    await one.take([0, 1, 2, 3])
    await one.leave()
    view = await other.renew([])
    assert (view.free, view.fair) == ((0, 1, 2, 3), 4)


async def test_giving_back_what_somebody_has_taken_over_changes_nothing(
    database: Database,
) -> None:
    one, other = await leases(database, "one"), await leases(database, "other")
    await one.take([0])
    await expire(database, "one")
    await other.take([0])
    await one.release(0, 1)
    assert list((await other.renew([0])).ours) == [0]


async def test_an_index_of_other_data_is_refused_until_it_is_built_anew(
    database: Database,
) -> None:
    await leases(database, "one", "these")
    with pytest.raises(IndexUnavailable, match="other data"):
        await leases(database, "other", "those")
    await want_rebuild(database, "those", SHARDS)
    await check_store(database, "those")
    other = await leases(database, "other", "those")
    taken = await other.take([0, 1, 2, 3])
    assert all(t.wanted > t.done == 0 for t in taken)
    with pytest.raises(IndexUnavailable, match="other data"):
        await check_store(database, "these")


async def test_who_indexed_the_other_data_writes_nothing_more(database: Database) -> None:
    one = await leases(database, "one", "these")
    await one.renew([])
    await one.take([0])
    await want_rebuild(database, "those", SHARDS)
    with pytest.raises(IndexUnavailable, match="other data"):
        await one.renew([0])
    rows = await database.read("SELECT owner, fence FROM shard WHERE shard = 0")
    assert rows == [("", 2)]


async def test_an_index_keeps_its_name(database: Database) -> None:
    name = await check_store(database, "data")
    assert name
    assert await Leases(database, "one", SHARDS).prepare("data") == name


async def test_a_rebuild_may_be_wanted_before_anybody_has_indexed(database: Database) -> None:
    await want_rebuild(database, "data", SHARDS)
    one = await leases(database, "one")
    assert len(await one.take(range(SHARDS))) == SHARDS


async def test_a_rebuild_that_is_asked_for_has_seen_nothing_yet(database: Database) -> None:
    one = await leases(database, "one")
    await one.renew([])
    # As the rebuild before has left it.
    await database.write([("UPDATE shard SET rebuild_seen = 7, rebuild_total = 7", ())])
    await want_rebuild(database, "data", SHARDS)
    rows = await database.read("SELECT rebuild_seen, rebuild_total FROM shard ORDER BY shard")
    assert [tuple(row) for row in rows] == [(0, 0)] * SHARDS
