"""An index with things in it, and what searches should find there.

The reference is :mod:`acks.rql` on :meth:`acks.policy.Policy.view`, where docs/search.md names no
difference: types are told apart, ``ne`` needs the field, ``features/*`` stands for any feature.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from acks.comparing import scalars
from acks.document import Twin, format_pointer
from acks.facts import ThingFacts
from acks.policy import READ, Policy
from acks.resources import ABSENT
from acks.rql import Comparison, Logic, Predicate, Presence, Time, matches
from acks.search_options import SortKey
from acks.search_terms import head_of
from app.search.find import Finder, Query, check_keys
from app.store.record import encode
from app.store.sql.database import Database, Params, Questions, T, open_index
from app.store.sql.index_writer import Change, IndexWriter, PolicyChange, Status

NOW = datetime(2024, 5, 15, 13, 47, 28, tzinfo=UTC)
NUMBERS = count(1)
TIMEOUT = 30.0
JsonObject = dict[str, Any]


Rule = tuple[str, tuple[str, ...], bool, bool]
"""Subject, path, whether READ is granted there, whether it is revoked."""


class Lab:
    """An index under test; every namespace is a set of things of its own."""

    def __init__(self, runner: asyncio.Runner, url: str, directory: Path) -> None:
        self.run = runner.run
        self.database = self.run(open_index(url, directory, readers=1, timeout=TIMEOUT))
        self.writer = IndexWriter(self.database)
        # One begins with what few things have, as all have here; the other walks through them all.
        self.finders = (Finder(self.database), Finder(self.database, few=0, some=0))
        self.run(self.database.write([("INSERT INTO shard (shard) VALUES (?)", (0,))]))

    def fill(
        self, documents: Sequence[JsonObject], policies: Sequence[JsonObject] = ()
    ) -> tuple[str, list[JsonObject]]:
        """Index things, in turn with one of the policies (one that lets anybody read: none).

        Returns their namespace, and the things.
        """
        namespace = f"n{next(NUMBERS)}"
        given_policies = policies or [rules_of([("s:1", (), True, False)])]
        changes = [
            PolicyChange(f"{namespace}:p{at}", orjson.dumps({**policy, "_revision": 1}), True)
            for at, policy in enumerate(given_policies)
        ]
        things = []
        for at, document in enumerate(documents):
            policy_id = f"{namespace}:p{at % len(given_policies)}"
            things.append({"thingId": f"{namespace}:t{at}", "policyId": policy_id, **document})
        records = [Change(thing["thingId"], self._record(thing)) for thing in things]
        results = self.run(self.writer.apply(0, 0, None, records, changes))
        assert {result.status for result in results.values()} <= {Status.WRITTEN}
        return namespace, things

    def _record(self, thing: JsonObject) -> bytes:
        revision = int(thing["thingId"].rpartition("t")[2]) + 1
        twin = Twin("0" * 20, revision, thing["policyId"], *instants(thing["thingId"]), None)
        return encode(twin, orjson.dumps(thing))

    def query(self, namespace: str, predicate: Predicate | None = None, **more: Any) -> Query:
        """A search in one namespace."""
        return Query(
            more.pop("subjects", ("s:1",)), NOW, predicate, frozenset((namespace,)), **more
        )

    def search(self, namespace: str, predicate: Predicate | None = None, **more: Any) -> list[str]:
        """The names of the things that are found."""
        query = self.query(namespace, predicate, **more)
        found, walked = [self.run(finder.find(query, TIMEOUT)) for finder in self.finders]
        assert found == walked
        if "limit" not in more:
            for finder in self.finders:
                assert self.run(finder.count(query, TIMEOUT)) == len(found)
        return [hit.thing_id.partition(":")[2] for hit in found]

    def pages(self, namespace: str, sort: tuple[SortKey, ...], size: int, **more: Any) -> list[str]:
        """What all pages of a size have, one behind the other."""
        found: list[str] = []
        query = self.query(namespace, sort=sort, limit=size, **more)
        while True:
            first, walked = [self.run(finder.find(query, TIMEOUT)) for finder in self.finders]
            assert first == walked
            found += [hit.thing_id.partition(":")[2] for hit in first]
            if len(first) < size:
                return found
            after = json.loads(json.dumps(first[-1].keys))
            check_keys(sort, after)
            query = replace(query, after=after)


@contextmanager
def asked_of(database: Database) -> Iterator[list[tuple[str, Params]]]:
    """What searches within it ask a database: the statements with their parameters."""
    asked: list[tuple[str, Params]] = []
    ask = database.ask

    def noted(questions: Callable[[], Questions[T]]) -> Questions[T]:
        running = questions()
        try:
            question = next(running)
            while True:
                asked.append(question)
                question = running.send((yield question))
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def noting(questions: Callable[[], Questions[T]], timeout: float | None = None) -> T:
        return await ask(partial(noted, questions), timeout)

    database.ask = noting  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        database.ask = ask  # type: ignore[method-assign]


def rules_of(rules: Sequence[Rule]) -> JsonObject:
    entries = {}
    for number, (subject, path, granted, revoked) in enumerate(rules):
        said = {"grant": [READ] * granted, "revoke": [READ] * revoked}
        entries[str(number)] = {
            "subjects": {subject: {"type": "t"}},
            "resources": {f"thing:{format_pointer(path)}": said},
        }
    return {"entries": entries}


# --- the reference


def instants(thing_id: str) -> tuple[str, str]:
    """When a thing was created and modified."""
    at = int(thing_id.rpartition("t")[2])
    return f"2024-01-0{at % 9 + 1}T00:00:00Z", f"2024-05-15T{at % 24:02}:00:00Z"


def facts_of(view: JsonObject) -> ThingFacts:
    created, modified = instants(view["thingId"])
    revision = int(view["thingId"].rpartition("t")[2]) + 1
    special = {"_created": created, "_modified": modified, "_revision": revision}
    return ThingFacts(view, special)


def fits(predicate: Predicate, facts: ThingFacts) -> bool:
    """The semantics of the search: RQL in memory, but for what docs/search.md says."""
    if isinstance(predicate, Logic):
        parts = [fits(child, facts) for child in predicate.children]
        if predicate.operator == "and":
            return all(parts)
        return any(parts) if predicate.operator == "or" else not parts[0]
    wild = predicate.property.startswith("features/*")
    if not wild:
        return leaf_fits(predicate, facts)
    rest = predicate.property.removeprefix("features/*")
    names = [
        f"features/{name.replace('~', '~0').replace('/', '~1')}{rest}"
        for name in facts.document.get("features", {})
    ]
    each = [leaf_fits(renamed(predicate, name), facts) for name in names]
    return all(each) if predicate.operator == "empty" else any(each)


def renamed(predicate: Comparison | Presence, name: str) -> Comparison | Presence:
    if isinstance(predicate, Presence):
        return Presence(predicate.operator, name)
    return Comparison(predicate.operator, name, predicate.values)


def kind_of(value: Any) -> type:
    return float if type(value) is int else type(value)


def leaf_fits(predicate: Comparison | Presence, facts: ThingFacts) -> bool:
    if isinstance(predicate, Presence):
        return matches(predicate, facts, NOW)
    name, operator = predicate.property, predicate.operator
    if operator == "ne":
        same = Comparison("eq", name, predicate.values)
        return matches(Presence("exists", name), facts, NOW) and not leaf_fits(same, facts)
    if operator == "in":
        return any(leaf_fits(Comparison("eq", name, (v,)), facts) for v in predicate.values)
    literal = predicate.values[0]
    value = facts.find(tuple(unescaped(part) for part in name.split("/")))
    kind = str if operator in ("like", "ilike") or isinstance(literal, Time) else kind_of(literal)
    same_kind = [item for item in scalars(value) if kind_of(item) is kind]
    alone = ThingFacts({"attributes": {"x": same_kind}})
    return matches(Comparison(operator, "attributes/x", predicate.values), alone, NOW)


def unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def sort_key(facts: ThingFacts, key: SortKey) -> tuple[Any, ...]:
    """By what a thing is sorted: () if it has nothing there that is sorted."""
    value = facts.find(tuple(unescaped(part) for part in key.property.split("/")))
    ranks: list[tuple[Any, ...]] = []
    for item in scalars(value):
        if isinstance(item, bool):
            ranks.append((3, item))
        elif isinstance(item, (int, float)):
            ranks.append((1, item))
        elif isinstance(item, str):
            ranks.append((2, head_of(item)))
    if not ranks:
        return ()
    return max(ranks) if key.descending else min(ranks)


def in_order(things: list[ThingFacts], sort: tuple[SortKey, ...]) -> list[str]:
    ordered = sorted(things, key=lambda facts: str(facts.document["thingId"]))
    for key in reversed(sort):
        ordered.sort(key=lambda facts: sort_key(facts, key), reverse=key.descending)
    return [str(facts.document["thingId"]).partition(":")[2] for facts in ordered]


def seen(
    things: list[JsonObject], policies: Sequence[JsonObject], subjects: tuple[str, ...]
) -> list[ThingFacts]:
    """The things as the policies show them, without those of which nothing is shown."""
    found = []
    for at, thing in enumerate(things):
        policy = Policy(policies[at % len(policies)])
        view = policy.view(subjects, "thing", (), thing)
        if view is not ABSENT:
            found.append(facts_of({**view, "thingId": thing["thingId"]}))
    return found


def names_of(things: list[ThingFacts]) -> list[str]:
    return sorted(str(facts.document["thingId"]).partition(":")[2] for facts in things)
