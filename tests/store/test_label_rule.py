"""The rule who owns a label: against a plain model of it, and in a race of several processes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import redis as blocking_redis

from acks.journal import leases_key, owners_key
from tests.gateways import ROOT, environment
from tests.servers import RedisServer, wait_for
from tests.store import claimant
from tests.store.test_label_groups import owners
from tests.store.test_labels import registry

RULE = resources.files("acks").joinpath("declared.lua").read_text(encoding="utf-8")
COUNT = 5

Session = tuple[str, str]
"""Holder and session."""


class Model:
    """Who owns what, in the plainest words: the claims of sessions whose holder is live."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.claims: dict[Session, tuple[str, frozenset[str]]] = {}

    def held(self) -> Iterator[tuple[Session, str, frozenset[str]]]:
        """Session, group and labels of everybody whose holder is live."""
        for session, (group, labels) in self.claims.items():
            if session[0] in self.live:
                yield session, group, labels

    def may(self, labels: frozenset[str], group: str) -> bool:
        """Whether a session that has nothing yet may claim this."""
        for _, shared, theirs in self.held():
            if group and shared == group:
                if theirs != labels:
                    return False
            elif theirs & labels:
                return False
        return True

    def forget(self, holder: str) -> list[Session]:
        """Forget all claims of a holder; returns whose they were."""
        gone = [session for session in self.claims if session[0] == holder]
        for session in gone:
            del self.claims[session]
        return gone

    def rows(self) -> set[tuple[str, str, str, str]]:
        """Label, holder, session and group of all that is owned."""
        return {(label, *who, group) for who, group, labels in self.held() for label in labels}


class Side:
    """Does the same on the model and on the store, and compares."""

    def __init__(self, store: blocking_redis.Redis, prefix: str, seed: int) -> None:
        self.done = Counter[str]()
        self._store = store
        self._keys = (owners_key(prefix), leases_key(prefix))
        self._model = Model()
        self._rng = random.Random(seed)

    def step(self) -> None:
        """Do something by chance, and compare who owns what."""
        kinds = [self._claim, self._release, self._die, self._drop, self._renew]
        kind = self._rng.choices(kinds, [60, 30, 4, 2, 4])[0]
        self.done[kind.__name__] += 1
        kind(self._rng.choice(["h1", "h2", "h3"]))
        assert self._rows() == self._model.rows()

    def _run(self, *arguments: object) -> Any:
        return self._store.eval(RULE, 2, *self._keys, *map(str, arguments))

    def _claim(self, holder: str) -> None:
        session, group = f"s{self.done['_claim']}", self._rng.choice(["", "", "g1", "g2"])
        labels = self._rng.sample("abcdef", self._rng.choice([1, 1, 2]))
        wanted = frozenset(labels)
        expected = self._model.may(wanted, group)
        if group:
            taken = self._run("join", holder, 60_000, session, group, *labels)
        else:
            taken = self._run("claim", holder, 60_000, session, *labels)
        assert (taken == "") == expected
        assert not taken or taken in labels
        if not expected:
            return
        if holder not in self._model.live:
            # What it had may be cleared away by now: a real holder claims it anew.
            for gone in self._model.forget(holder):
                self._run("release", *gone)
        self._model.live.add(holder)
        self._model.claims[holder, session] = (group, wanted)
        self.done["won"] += 1

    def _release(self, holder: str) -> None:
        mine = [session for session, _, _ in self._model.held() if session[0] == holder]
        if mine:
            session = self._rng.choice(mine)
            del self._model.claims[session]
            self._run("release", *session)

    def _die(self, holder: str) -> None:
        if holder in self._model.live:
            self._model.live.discard(holder)
            self._store.zadd(self._keys[1], {holder: 1})

    def _drop(self, holder: str) -> None:
        assert self._run("drop", holder) == 0
        self._model.forget(holder)
        self._model.live.discard(holder)

    def _renew(self, holder: str) -> None:
        assert self._run("renew", holder, 60_000) == int(holder in self._model.live)

    def _rows(self) -> set[tuple[str, str, str, str]]:
        _, flat, groups = self._run("groups", "", "")
        leases = set(flat[::2])
        members = dict(zip(groups[::3], groups[2::3], strict=True))
        found = set()
        all_owners: Any = self._store.hgetall(self._keys[0])
        for label, owner in all_owners.items():
            group = owner[1:] if owner[0] == "/" else ""
            for name in members.get(group, []) if group else [owner]:
                holder, _, session = name.partition("/")
                if holder in leases:
                    found.add((label, holder, session, group))
        return found


def test_the_script_does_what_the_plain_rule_says(shared: RedisServer, prefix: str) -> None:
    with blocking_redis.Redis(unix_socket_path=str(shared.socket), decode_responses=True) as store:
        side = Side(store, prefix, seed=11)
        for _ in range(4_000):
            side.step()
    assert all(count > 20 for count in side.done.values()), side.done


@contextmanager
def claimants(server: RedisServer, prefix: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that claim at once when told to."""
    command = [sys.executable, "-m", "tests.store.claimant", server.url, prefix]
    children = [
        subprocess.Popen([*command, str(number)], cwd=ROOT, env=environment())
        for number in range(COUNT)
    ]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_of_the_claims_of_several_processes_no_two_win_a_label(
    own: RedisServer, prefix: str
) -> None:
    with (
        blocking_redis.Redis(unix_socket_path=str(own.socket), decode_responses=True) as store,
        claimants(own, prefix) as children,
    ):
        ready = lambda: store.llen(f"{prefix}:ready") == COUNT  # noqa: E731
        await wait_for(ready, 60, "the processes are there")
        store.rpush(f"{prefix}:go", *range(COUNT))
        won = lambda: store.llen(f"{prefix}:won") == COUNT  # noqa: E731
        await wait_for(won, 60, "all have claimed")
        pages = store.lrange(f"{prefix}:won", 0, -1)
        assert isinstance(pages, list)
        winners = [winner for page in pages for winner in json.loads(page)]
        alone = Counter(label for _, group, labels in winners if not group for label in labels)
        sets: dict[str, set[tuple[str, ...]]] = {}
        for _, group, labels in winners:
            if group:
                sets.setdefault(group, set()).add(tuple(sorted(labels)))
        assert set(alone.values()) == {1}, "a label has one owner"
        assert all(len(labels) == 1 for labels in sets.values()), "a group has one set of labels"
        shared = [label for labels in sets.values() for one in labels for label in one]
        assert len(set(shared)) == len(shared), "and not those of another group"
        assert not set(shared) & set(alone)
        assert len({winner[0].split("/")[0] for winner in winners}) > 1, "several had luck"
        assert sum(len(group) > 0 for _, group, _ in winners) < COUNT * claimant.SESSIONS
        async with registry(own, prefix, "reader") as (reader, _):
            assert owners(await reader.list.owners()) == sorted(
                (label, owner, group) for owner, group, labels in winners for label in labels
            )
        store.rpush(f"{prefix}:end", *range(COUNT))
        await wait_for(lambda: all(child.poll() == 0 for child in children), 30, "the end of all")
        assert store.hlen(owners_key(prefix)) == 0
