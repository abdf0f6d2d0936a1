"""What the writer leaves in the search index, on each database."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from acks.document import Twin
from acks.policy import implicit_policy
from acks.policy_document import tombstone
from acks.search_terms import Place, Terms, Value, head_of, terms_of
from app.store.record import encode
from app.store.sql.database import Database, NotOwner, Params, Row, Write
from app.store.sql.index_writer import Change, IndexWriter, PolicyChange, Result, Status
from tests.store.test_search_index import opened

CREATED = "2026-01-01T00:00:00.000Z"
Json = dict[str, Any]


def record(
    thing_id: str,
    revision: int,
    fields: Json | None = None,
    *,
    policy: str = "t:p",
    created: str = CREATED,
) -> bytes:
    """A twin's bytes in the store."""
    document = {"thingId": thing_id, "policyId": policy, **(fields or {})}
    modified = f"2026-01-02T00:00:{revision % 60:02d}.000Z"
    twin = Twin("x" * 20, revision, policy, created, modified, None)
    return encode(twin, orjson.dumps(document))


def gone(thing_id: str, revision: int) -> Change:
    """A deleted thing of which the store still knows the revision."""
    return Change(thing_id, encode(Twin("x" * 20, revision, "", "", "", None), b"null"))


def thing(thing_id: str, revision: int, fields: Json | None = None, **facts: Any) -> Change:
    return Change(thing_id, record(thing_id, revision, fields, **facts))


def grants(policy_id: str, *subjects: str, revision: int = 1, own: bool = True) -> PolicyChange:
    """A policy that lets subjects read everything."""
    document = implicit_policy(policy_id, "s:nobody")
    document["entries"]["DEFAULT"]["subjects"] = {name: {"type": "x"} for name in subjects}
    return PolicyChange(policy_id, orjson.dumps({**document, "_revision": revision}), own)


async def shard(database: Database, number: int = 0, fence: int = 1) -> None:
    await database.write([("INSERT INTO shard (shard, fence) VALUES (?, ?)", (number, fence))])


@pytest.fixture
async def writer(database: Database) -> IndexWriter:
    await shard(database)
    return IndexWriter(database)


async def indexed_terms(database: Database, thing_id: str) -> Terms:
    """All terms of a thing as they are in the index."""
    rows = await database.read(
        "SELECT path.path, depth, feature, wild, kind, number, head, text FROM term "
        "JOIN path ON path.num = term.path JOIN thing ON thing.num = term.thing "
        "WHERE thing.thing_id = ? ORDER BY term.path, term.ord",
        (thing_id,),
    )
    found: dict[Place, tuple[Value, ...]] = {}
    for row in rows:
        place = Place(*row[:4])
        found[place] = (*found.get(place, ()), Value(*row[4:]))
    return found


async def things(database: Database) -> list[Row]:
    return await database.read("SELECT thing_id, revision FROM thing ORDER BY thing_id")


async def class_of(database: Database, policy_id: str) -> Any:
    [(number,)] = await database.read("SELECT class FROM policy WHERE policy_id = ?", (policy_id,))
    return number


# --- things


async def test_a_thing_is_made_changed_and_removed(database: Database, writer: IndexWriter) -> None:
    fields = {"definition": "a:b:1", "attributes": {"a": 1, "b": "x" * 500}}
    made = await writer.apply(0, 1, "1-0", [thing("t:a", 1, fields)])
    assert made == {"t:a": Result(Status.WRITTEN, None, 1)}
    assert await indexed_terms(database, "t:a") == terms_of(fields)
    columns = (
        "thing_id, shard, namespace, policy.policy_id, thing.revision, created, modified, mark"
    )
    sql = f"SELECT {columns} FROM thing JOIN policy ON policy.num = thing.policy"
    modified = "2026-01-02T00:00:01.000Z"
    assert await database.read(sql) == [("t:a", 0, "t", "t:p", 1, CREATED, modified, 0)]

    fields["attributes"] = {"a": [1, 2, None], "c": {}}
    changed = await writer.apply(0, 1, "2-0", [thing("t:a", 5, fields)])
    assert changed == {"t:a": Result(Status.WRITTEN, 1, 5)}
    assert await indexed_terms(database, "t:a") == terms_of(fields)
    assert await things(database) == [("t:a", 5)]

    removed = await writer.apply(0, 1, "3-0", [gone("t:a", 6)])
    assert removed == {"t:a": Result(Status.WRITTEN, 5, None)}
    assert await things(database) == []
    assert await database.read("SELECT count(*) FROM term") == [(0,)]
    assert await database.read("SELECT bookmark, indexed FROM shard") == [("3-0", 3)]


async def test_what_is_indexed_already_is_left_alone(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, "1-0", [thing("t:a", 3, {"attributes": {"a": 1}})])
    again = [thing("t:a", 3, {"attributes": {"a": 2}}), gone("t:b", 4), Change("t:c", None)]
    assert await writer.apply(0, 1, None, again) == {
        "t:a": Result(Status.UNCHANGED, 3, 3),
        "t:b": Result(Status.UNCHANGED, None, None),
        "t:c": Result(Status.UNCHANGED, None, None),
    }
    older = await writer.apply(0, 1, None, [thing("t:a", 2)])
    assert older == {"t:a": Result(Status.UNCHANGED, 3, 3)}
    assert await indexed_terms(database, "t:a") == terms_of({"attributes": {"a": 1}})
    assert await database.read("SELECT bookmark, indexed FROM shard") == [("1-0", 1)]


async def test_a_thing_made_anew_replaces_the_old_one(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 8, {"attributes": {"a": 1}}, policy="t:old")])
    later = "2026-03-01T00:00:00.000Z"
    new = thing("t:a", 1, {"attributes": {"b": 1}}, created=later, policy="t:new")
    assert await writer.apply(0, 1, None, [new]) == {"t:a": Result(Status.WRITTEN, 8, 1)}
    assert await indexed_terms(database, "t:a") == terms_of({"attributes": {"b": 1}})
    sql = "SELECT created, policy_id FROM thing JOIN policy ON policy.num = thing.policy"
    assert await database.read(sql) == [(later, "t:new")]


async def test_a_store_that_went_back_can_be_followed(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 8, {"attributes": {"a": 1}})])
    back = thing("t:a", 5, {"attributes": {"a": 2}})._replace(force=True)
    assert await writer.apply(0, 1, None, [back]) == {"t:a": Result(Status.WRITTEN, 8, 5)}
    assert await indexed_terms(database, "t:a") == terms_of({"attributes": {"a": 2}})


async def test_a_revision_that_was_lost_and_written_anew_is_seen(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 8, {"attributes": {"a": 1}})])
    other = thing("t:a", 8, {"attributes": {"a": 2}})._replace(force=True)
    assert await writer.apply(0, 1, None, [other]) == {"t:a": Result(Status.WRITTEN, 8, 8)}
    assert await indexed_terms(database, "t:a") == terms_of({"attributes": {"a": 2}})
    assert await writer.apply(0, 1, None, [other]) == {"t:a": Result(Status.UNCHANGED, 8, 8)}


class Counted:
    """A database that notes which rows of terms are written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.dialect = database.dialect
        self.terms: list[Any] = []
        self.read = database.read
        self.ask = database.ask
        self.close = database.close

    async def write(
        self, statements: Sequence[Write | tuple[str, Params]], timeout: float | None = None
    ) -> list[list[Row]]:
        for statement in statements:
            if " term " in statement[0]:
                self.terms += statement[1]
        return await self._database.write(statements, timeout)


async def test_only_terms_that_have_changed_are_written(database: Database) -> None:
    await shard(database)
    counted = Counted(database)
    writer = IndexWriter(counted)
    values: Json = {"list": [1, 2, 3], **{f"a{number}": number for number in range(20)}}
    await writer.apply(0, 1, None, [thing("t:a", 1, {"attributes": values})])
    assert len(counted.terms) == 24
    counted.terms.clear()
    values = {**values, "a7": "other", "list": [1, 2, 4]}
    await writer.apply(0, 1, None, [thing("t:a", 2, {"attributes": values})])
    assert len(counted.terms) == 2
    assert await indexed_terms(database, "t:a") == terms_of({"attributes": values})


@pytest.mark.parametrize("seed", range(5))
async def test_random_changes_leave_exactly_the_present_terms(
    database: Database, writer: IndexWriter, seed: int
) -> None:
    chance = random.Random(seed)

    def value(depth: int = 0) -> Any:
        kind = chance.randrange(9 if depth < 3 else 6)
        simple = (None, True, chance.randrange(3), 0.5, chance.choice(["", "x", "\x00", "ä" * 150]))
        if kind < 6:
            return simple[kind % 5]
        if kind == 6:
            return [value(depth + 1) for _ in range(chance.randrange(4))]
        return {chance.choice("abc/~"): value(depth + 1) for _ in range(chance.randrange(4))}

    present: dict[str, Json] = {}
    for revision in range(1, 30):
        batch = []
        for name in chance.sample(["t:a", "t:b", "t:c"], 2):
            if name in present and chance.random() < 0.2:
                del present[name]
                batch.append(gone(name, revision))
                continue
            fields = {
                "attributes": {key: value() for key in chance.sample("abcdef", 3)},
                "features": {chance.choice(["f", "f/*"]): {"properties": {"p": value()}}},
            }
            present[name] = fields
            batch.append(thing(name, revision, fields))
        results = await writer.apply(0, 1, f"{revision}-0", batch)
        assert Status.FAILED not in {result.status for result in results.values()}
    assert [name for name, _ in await things(database)] == sorted(present)
    for name, fields in present.items():
        found = await indexed_terms(database, name)
        # The order of values at a place is that of the first write.
        assert {place: set(values) for place, values in found.items()} == {
            place: set(values) for place, values in terms_of(fields).items()
        }
        assert found == terms_of(fields)


async def test_huge_names_and_texts_are_taken(database: Database, writer: IndexWriter) -> None:
    long = "\U0001f600" * 20_000
    fields = {
        "attributes": {long: 1, "text": long, "deep": {"k" * 3000: {"\x00": "a\x00b"}}},
        "features": {"f" * 5000: {"properties": {long: True}}},
    }
    result = await writer.apply(0, 1, None, [thing("t:a", 1, fields)])
    assert result == {"t:a": Result(Status.WRITTEN, None, 1)}
    assert await indexed_terms(database, "t:a") == terms_of(fields)


# --- what goes wrong

KINDS = b't\n{"r":"1","p":"t:p","c":"","m":""}\n{}'


async def test_who_has_lost_the_shard_writes_nothing(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, "1-0", [thing("t:a", 1)])
    await database.write([("UPDATE shard SET fence = 2", ())])
    with pytest.raises(NotOwner):
        await writer.apply(0, 1, "2-0", [thing("t:a", 2)], [grants("t:p", "s:a")])
    with pytest.raises(NotOwner):
        await writer.apply(0, 1, "2-0", [])
    with pytest.raises(NotOwner):
        await writer.remove_unseen(0, 1, 7)
    assert await things(database) == [("t:a", 1)]
    assert await class_of(database, "t:p") is None
    assert await database.read("SELECT bookmark FROM shard") == [("1-0",)]
    await writer.apply(0, 2, "2-0", [thing("t:a", 2)])
    assert await things(database) == [("t:a", 2)]


@pytest.mark.parametrize(
    "damaged", [b"", b"x", b"tag\n{}\n{}", b"tag\n{\n{}", b"t\n[]\n{}", b"t\n{}\n[]", KINDS]
)
async def test_a_record_that_cannot_be_read_fails_alone(
    database: Database, writer: IndexWriter, damaged: bytes
) -> None:
    changes = [Change("t:a", damaged), thing("t:b", 1)]
    assert await writer.unknown_policies(changes) == ["t:p"]
    results = await writer.apply(0, 1, "1-0", changes)
    assert results["t:a"].status is Status.FAILED
    assert results["t:a"].reason
    assert results["t:b"] == Result(Status.WRITTEN, None, 1)
    assert await database.read("SELECT bookmark FROM shard") == [("1-0",)]


async def test_what_the_database_refuses_fails_alone(
    database: Database, writer: IndexWriter
) -> None:
    too_large = 2**63
    await writer.apply(0, 1, None, [thing("t:c", 1, {"attributes": {"c": 1}})])
    changes = [
        thing("t:a", 1, {"attributes": {"a": 1}}),
        thing("t:b", too_large),
        thing("t:c", too_large, {"attributes": {"c": 2}}),
        gone("t:d", 1),
    ]
    policies = [grants("t:p", "s:a"), grants("t:q", "s:a", revision=too_large)]
    results = await writer.apply(0, 1, "5-0", changes, policies)
    assert [result.status for result in results.values()] == [
        *(Status.WRITTEN, Status.FAILED, Status.FAILED, Status.UNCHANGED)
    ]
    assert (results["t:c"].before, results["t:c"].after) == (1, 1)
    assert await things(database) == [("t:a", 1), ("t:c", 1)]
    assert await indexed_terms(database, "t:c") == terms_of({"attributes": {"c": 1}})
    assert await database.read("SELECT bookmark FROM shard") == [("5-0",)]
    assert await class_of(database, "t:p") is not None
    assert await class_of(database, "t:q") is None
    again = await writer.apply(0, 1, None, [thing("t:b", 2)])
    assert again == {"t:b": Result(Status.WRITTEN, None, 2)}


# --- policies


async def test_things_of_one_subject_share_a_class(database: Database, writer: IndexWriter) -> None:
    changes = [thing(f"t:{name}", 1, policy=f"t:{name}") for name in "abc"]
    unknown = await writer.unknown_policies(changes)
    assert unknown == ["t:a", "t:b", "t:c"]
    policies = [grants("t:a", "s:x"), grants("t:b", "s:x"), grants("t:c", "s:x", "s:y")]
    await writer.apply(0, 1, None, changes, policies)
    assert await writer.unknown_policies(changes) == []
    assert await IndexWriter(database).unknown_policies(changes) == []
    assert await class_of(database, "t:a") == await class_of(database, "t:b")
    assert await class_of(database, "t:c") != await class_of(database, "t:a")
    candidates = "SELECT count(*) FROM class_subject WHERE subject = ?"
    assert await database.read(candidates, (head_of("s:x"),)) == [(2,)]
    assert await database.read(candidates, (head_of("s:y"),)) == [(1,)]
    assert await database.read("SELECT count(*) FROM class") == [(2,)]


async def test_a_thing_whose_policy_nobody_knows_is_for_nobody(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 1)])
    assert await class_of(database, "t:p") is None
    assert await writer.unknown_policies([thing("t:a", 1)]) == ["t:p"]
    await writer.apply(0, 1, None, [], [grants("t:p", "s:x", own=False)])
    assert await class_of(database, "t:p") is not None


async def test_a_policy_changes_under_its_things(database: Database, writer: IndexWriter) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 1)], [grants("t:p", "s:x")])
    before = await class_of(database, "t:p")
    await writer.apply(0, 1, None, [], [grants("t:p", "s:y", revision=2)])
    assert await class_of(database, "t:p") not in (None, before)
    await writer.apply(0, 1, None, [], [grants("t:p", "s:x", revision=3)])
    assert await class_of(database, "t:p") == before


async def test_a_deleted_policy_lets_nobody_read(database: Database, writer: IndexWriter) -> None:
    await writer.apply(0, 1, None, [thing("t:a", 1)], [grants("t:p", "s:x")])
    alive = grants("t:p", "s:x")
    assert alive.record is not None
    dead = orjson.dumps(tombstone(orjson.loads(alive.record)))
    for record_ in (dead, None):
        await writer.apply(0, 1, None, [], [PolicyChange("t:p", record_, own=True)])
        assert await class_of(database, "t:p") is None
        await writer.apply(0, 1, None, [], [alive])
        assert await class_of(database, "t:p") is not None


async def test_another_shard_does_not_bring_an_old_policy_back(
    database: Database, writer: IndexWriter
) -> None:
    await writer.apply(0, 1, None, [], [grants("t:p", "s:x", revision=2)])
    known = await class_of(database, "t:p")
    for older in (1, 2):
        late = grants("t:p", "s:y", revision=older, own=False)
        await writer.apply(0, 1, None, [], [late])
        assert await class_of(database, "t:p") == known
    await writer.apply(0, 1, None, [], [grants("t:p", "s:y", revision=3, own=False)])
    assert await class_of(database, "t:p") != known


async def test_of_one_policy_twice_in_a_batch_the_last_counts(
    database: Database, writer: IndexWriter
) -> None:
    dead = PolicyChange("t:p", None, own=True)
    await writer.apply(0, 1, None, [], [grants("t:p", "s:x"), dead])
    assert await class_of(database, "t:p") is None
    await writer.apply(0, 1, None, [], [dead, grants("t:p", "s:x")])
    assert await class_of(database, "t:p") is not None


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b"null", b'{"entries":{"A":1}}', b'{"_revision":"x"}']
)
async def test_a_policy_that_cannot_be_read_lets_nobody_read(
    database: Database, writer: IndexWriter, text: bytes
) -> None:
    await writer.apply(0, 1, None, [], [PolicyChange("t:p", text, own=True)])
    assert await class_of(database, "t:p") is None


async def test_who_sees_a_class_sees_all_that_were_made_before(database: Database) -> None:
    """Readers remember up to which number they know all classes."""
    writers = [IndexWriter(database) for _ in range(4)]
    for number in range(4):
        await shard(database, number)
    seen: set[int] = set()

    async def write(number: int) -> None:
        for turn in range(25):
            policy = grants(f"t:p{number}", f"s:{number}-{turn}")
            await writers[number].apply(number, 1, None, [], [policy])

    async def watch() -> None:
        while len(seen) < 100:
            last = max(seen, default=0)
            rows = await database.read("SELECT num FROM class WHERE num > ?", (last,))
            seen.update(number for (number,) in rows)

    await asyncio.wait_for(asyncio.gather(*map(write, range(4)), watch()), 60)
    assert len(await database.read("SELECT num FROM class")) == 100


# --- several shards, rebuilds


async def test_shards_are_written_at_the_same_time(database: Database) -> None:
    writers = [IndexWriter(database) for _ in range(3)]

    async def write(number: int) -> None:
        await shard(database, number)
        for turn in range(10):
            changes = [
                thing(
                    f"t:{number}-{turn}-{at}",
                    1,
                    {"attributes": {f"k{at}-{turn}": at}},
                    policy=f"t:{at}",
                )
                for at in range(20)
            ]
            policies = [grants(f"t:{at}", f"s:{at}", own=False) for at in range(20)]
            random.Random(number).shuffle(policies)
            results = await writers[number % 3].apply(number, 1, f"{turn}-0", changes, policies)
            assert {result.status for result in results.values()} == {Status.WRITTEN}

    await asyncio.gather(*map(write, range(6)))
    assert await database.read("SELECT count(*), count(DISTINCT num) FROM thing") == [(1200, 1200)]
    assert await database.read("SELECT count(*) FROM path") == [(200,)]
    assert await database.read("SELECT count(*) FROM class") == [(20,)]


async def test_a_rebuild_removes_what_it_has_not_seen(
    database: Database, writer: IndexWriter
) -> None:
    await shard(database, 1)
    await writer.apply(0, 1, None, [thing(f"t:{name}", 1) for name in "abcdef"])
    await writer.apply(1, 1, None, [thing("t:other", 1)])
    await writer.apply(0, 1, None, [thing("t:a", 1), thing("t:b", 2), thing("t:g", 1)], mark=7)
    await writer.apply(0, 1, None, [thing("t:a", 2)])  # outside of it: the mark stays
    assert await writer.remove_unseen(0, 1, 7, limit=3) == 3
    assert await writer.remove_unseen(0, 1, 7, limit=3) == 1
    assert await writer.remove_unseen(0, 1, 7) == 0
    assert await things(database) == [("t:a", 2), ("t:b", 2), ("t:g", 1), ("t:other", 1)]
    left = await database.read(
        "SELECT DISTINCT thing.thing_id FROM term JOIN thing ON thing.num = thing"
    )
    assert left == []


ENDLESS = """
import asyncio, sys
from pathlib import Path
from app.store.sql.database import open_index
from app.store.sql.index_writer import IndexWriter
from tests.store.test_search_index_writer import shard, thing

async def main():
    database = await open_index(sys.argv[1], Path(sys.argv[2]))
    await shard(database)
    writer = IndexWriter(database)
    for turn in range(1, 10**6):
        fields = {"attributes": {f"a{at}": turn for at in range(10)}}
        await writer.apply(0, 1, str(turn), [thing(f"t:{name}", turn, fields) for name in "abcde"])
        print(turn, flush=True)

asyncio.run(main())
"""


async def test_a_kill_leaves_a_bookmark_and_what_belongs_to_it(index: str, tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ENDLESS, index, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    last = 0
    try:
        while last < 30:
            last = int(await child.stdout.readline())
    finally:
        child.kill()
        await child.wait()
    written = [last, *map(int, (await child.stdout.read()).splitlines()[:-1])]
    async with opened(index, tmp_path) as database:
        [(bookmark,)] = await database.read("SELECT bookmark FROM shard")
        assert int(bookmark) >= written[-1]
        assert {revision for _, revision in await things(database)} == {int(bookmark)}
        assert await database.read("SELECT DISTINCT number FROM term") == [(int(bookmark),)]


async def test_deep_documents_are_indexed_or_refused_but_never_in_the_way(
    database: Database, writer: IndexWriter
) -> None:
    def deep(thing_id: str, revision: int, levels: int) -> Change:
        value = b'{"k":' * levels + str(revision).encode() + b"}" * levels
        twin = Twin("x" * 20, revision, "t:p", CREATED, CREATED, None)
        return Change(thing_id, encode(twin, b'{"attributes":{"a":' + value + b"}}"))

    for revision in (1, 2):
        changes = [deep("t:a", revision, 100), deep("t:b", revision, 1_000)]
        results = await writer.apply(0, 1, f"{revision}-0", changes)
        assert results["t:a"].status is Status.WRITTEN
        assert await database.read("SELECT bookmark FROM shard") == [(f"{revision}-0",)]
