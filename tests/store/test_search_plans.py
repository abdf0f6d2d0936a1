"""How a database goes about what a search asks for: by the indexes that were chosen for it."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson

from acks.rql import parse
from acks.search_options import BY_ID, SortKey
from acks.search_terms import NUMBER, TEXT
from app.search.find import Finder, Query
from app.store.sql.database import Database, Params
from app.store.sql.index_writer import IndexWriter, PolicyChange
from tests.search_lab import asked_of
from tests.store.test_search_index_writer import shard, thing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
THINGS, POLICIES = 2_000, 500


async def filled(database: Database) -> None:
    await shard(database)
    writer = IndexWriter(database)
    entry = {
        "subjects": {"s:me": {"type": "t"}},
        "resources": {"thing:/": {"grant": ["READ"], "revoke": []}},
    }
    document = orjson.dumps({"entries": {"one": entry}, "_revision": 1})
    policies = [PolicyChange(f"t:p{at}", document, own=True) for at in range(POLICIES)]
    things = []
    for at in range(THINGS):
        attributes = {"site": at % 50, "level": at, "on": at % 2 == 0}
        policy = f"t:p{at % POLICIES}"
        things.append(thing(f"t:{at}", 1, {"attributes": attributes}, policy=policy))
    await writer.apply(0, 1, None, things, policies)
    await writer.analyze()
    if database.dialect.name == "postgresql":
        await database.read("VACUUM term")  # as it does by itself: the index alone is cheap then


async def plan_of(database: Database, sql: str, params: Params) -> str:
    explain = "EXPLAIN QUERY PLAN" if database.dialect.name == "sqlite" else "EXPLAIN"
    return "\n".join(str(row[-1]) for row in await database.read(f"{explain} {sql}", params))


async def test_what_a_thing_says_is_looked_up_by_the_thing(database: Database) -> None:
    """By the value, all things would be looked at again for each that is found otherwise."""
    await filled(database)
    either = f"or(eq(attributes/on,true),gt(attributes/level,{THINGS // 3}))"
    predicate = parse(f"and(eq(attributes/site,7),{either})")
    with asked_of(database) as asked:
        hits = await Finder(database).find(Query(("s:me",), NOW, predicate, limit=THINGS), 10)
    expected = [at for at in range(7, THINGS, 50) if at % 2 == 0 or at > THINGS // 3]
    assert sorted(int(hit.thing_id[2:]) for hit in hits) == expected
    text = await plan_of(database, *asked[-1])
    # Once: what the search begins with.
    assert text.count("term_value") == 1, text


async def test_a_page_does_not_look_at_all_policies(database: Database) -> None:
    await filled(database)
    predicate = parse("gt(attributes/level,-1)")
    with asked_of(database) as asked:
        hits = await Finder(database, few=5).find(Query(("s:me",), NOW, predicate), 10)
    assert len(hits) == 25
    text = await plan_of(database, *asked[-1])
    assert "BLOOM FILTER ON policy" not in text, text
    assert "SCAN policy" not in text, text


async def test_a_sort_by_what_no_thing_has_looks_at_no_values(database: Database) -> None:
    await filled(database)
    sort = (SortKey("attributes/none", True), SortKey("attributes/neither", False), BY_ID)
    ids = sorted(f"t:{at}" for at in range(THINGS))
    finder = Finder(database)
    with asked_of(database) as asked:
        hits = await finder.find(Query(("s:me",), NOW, sort=sort), 10)
        after = hits[-1].keys
        following = await finder.find(Query(("s:me",), NOW, sort=sort, after=after), 10)
    assert [hit.thing_id for hit in (*hits, *following)] == ids[:50]
    assert after == [[], [], [TEXT, ids[24]]]
    pages = [one for one in asked if one[0].startswith("SELECT thing.thing_id")]
    assert len(pages) == 2
    for page in pages:
        text = await plan_of(database, *page)
        assert "term" not in text, text
        assert "k0" not in text, text
        assert "sort" not in text.lower(), text
        assert "B-TREE" not in text, text
    below = Query(("s:me",), NOW, sort=sort, after=[[NUMBER, "-1.5"], [], [TEXT, "t"]], limit=2)
    assert [hit.thing_id for hit in await finder.find(below, 10)] == ids[:2]
    above = Query(("s:me",), NOW, sort=sort, after=[[], [TEXT, "x"], [TEXT, "t"]], limit=2)
    assert await finder.find(above, 10) == []
