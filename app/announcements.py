"""The announcer: has policies' subjects expire, and announces that they do or that they are gone.

What is due lies in the store, written together with the policy (app/store/policies.py). The
announcer of every process looks there again and again. Whoever finds something computes the next
state (acks/announcements.py) and writes it with the announcements in one script, which refuses all
but one of those who try. That state has the time at which it is due again, so nothing is held by a
process: if it dies while it waits for acks, another one publishes again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import orjson
import structlog

from acks.aggregator import Outcome
from acks.announcements import Publication, answered, due_at, step
from acks.errors import GatewayError
from acks.headers import AckOptions
from acks.journal import ANNOUNCEMENT, EntryMeta
from acks.policy_document import revision
from acks.policy_protocol import SUBJECT_DELETION
from acks.signals import JsonObject, Live
from app.gateway import Gateway
from app.store.instant import instant, now_ms
from app.store.policies import Entry, PolicyStore, StoredPolicy
from app.store.redis_client import StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

EVERY_S = 1.0
"""How often the announcer looks what is due, s: nothing comes later than that by its fault."""
PAGE = 50
"""Policies of a shard that are worked on before the announcer looks again."""
ATTEMPTS = 20
"""Times an outcome is written again while others change the same policy."""
BROKEN_MS = 60_000
"""Pause before a policy that cannot be read is looked at again, ms."""
CROWDED_MS = 1_000
"""Pause before an announcement is made for whose acks there was no room, ms."""
_LAST_INSTANT = 253_402_300_799_999
"""The last moment that an ISO-8601 instant with four digits of a year can name, ms."""


class Announcer:
    """Works on due policies. One per process.

    Acks of ``most`` announcements are awaited at once: everybody can make a policy that asks for
    thousands, and requests wait in the same place.
    """

    def __init__(
        self,
        policies: PolicyStore,
        gateway: Gateway,
        *,
        most: int,
        every: float = EVERY_S,
    ) -> None:
        self.published = 0
        self.expired = 0
        self._policies = policies
        self._gateway = gateway
        self._most = most
        self._every = every
        self._kicked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._awaited: set[str] = set()
        self._settling: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to look."""
        self._policies.on_due = self._kicked.set
        self._task = asyncio.create_task(self._run(), name="announcer")

    async def close(self) -> None:
        """Stop; what acks were awaited for is published again by somebody else. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._policies.on_due = None
        tasks = (task, *self._settling)
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for token in self._awaited:
            self._gateway.abandon(token)
        self._awaited.clear()

    async def _run(self) -> None:
        interrupted = False
        while True:
            # Not in step with the others, who would all try the same.
            pause = self._every * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            try:
                async with asyncio.timeout(pause):
                    await self._kicked.wait()
            except TimeoutError:
                pass  # the ordinary case
            self._kicked.clear()
            try:
                await self._look()
                interrupted = False
            except (StoreUnavailable, StoreError, GatewayError) as problem:
                if not interrupted:  # once for an outage, not once a second
                    log.warning("announcer.interrupted", error=str(problem))
                interrupted = True
            except Exception:
                log.exception("announcer.failed")

    async def _look(self) -> None:
        """Work on everything that is due now. Raises what the store raises."""
        found = await self._policies.due(now_ms(), PAGE)
        random.shuffle(found)
        for policy_id in found:
            try:
                await self._work(policy_id)
            except (StoreUnavailable, StoreError, GatewayError):
                raise
            except Exception:
                log.exception("announcer.policy_failed", policy_id=policy_id)
                await self._policies.postpone(policy_id, now_ms() + BROKEN_MS)
        if len(found) >= PAGE:
            self._kicked.set()

    async def _work(self, policy_id: str) -> None:
        """Do what is due about one policy, unless somebody else is faster."""
        try:
            stored = await self._policies.find(policy_id)
        except GatewayError as problem:
            log.warning("announcer.policy_unreadable", policy_id=policy_id, error=problem.code)
            await self._policies.postpone(policy_id, now_ms() + BROKEN_MS)
            return
        if stored is None:
            await self._policies.advance(policy_id, b"", None, told=False)
            return
        at = now_ms()
        taken = step(stored.document, at, uuid4().hex, self._most - len(self._awaited))
        if taken is None and (due_at(stored.document) or at + 1) <= at:
            # Behind the others, for as much as is looked at in one go.
            await self._policies.postpone(policy_id, at + CROWDED_MS)
            return
        if taken is None:  # its time in the set of what is due was wrong
            await self._policies.advance(policy_id, stored.text, stored.document, told=False)
            return
        document = taken.document
        if taken.expired:
            number, now = revision(stored.document) + 1, instant(at)
            document = {**document, "_revision": number, "_modified": now}
        await self._publish(policy_id, stored, document, taken.publications, told=taken.expired)

    async def _publish(
        self,
        policy_id: str,
        stored: StoredPolicy,
        document: JsonObject,
        publications: tuple[Publication, ...],
        *,
        told: bool,
    ) -> None:
        at, number, done = now_ms(), revision(document), False
        entries = [self._entry(policy_id, one, number, at) for one in publications]
        try:
            for one in publications:  # before it is published, so that no ack can come too early
                self._await(policy_id, one)
            done = await self._policies.advance(
                policy_id, stored.text, document, told=told, entries=entries
            )
        finally:
            if not done:
                for one in publications:
                    self._forget(one.token)
        if done:
            self.published += len(entries)
            self.expired += told
            log.info(
                "policy.due", policy_id=policy_id, expired=told,
                announced=[one.subject for one in publications],
            )  # fmt: skip

    def _entry(self, policy_id: str, one: Publication, number: int, at: int) -> Entry:
        meta = EntryMeta(
            policy_id,
            SUBJECT_DELETION,
            "/",
            number,
            instant(at),
            one.token,
            one.labels,
            self._gateway.node,
            at + one.wait_ms if one.labels else 0,
            (one.subject,),
            ANNOUNCEMENT,
        )
        headers = {"timeout": f"{one.wait_ms}ms"} if one.labels else {}
        moment = instant(min(one.delete_at, _LAST_INSTANT))
        value = {"deleteAt": moment, "subjectIds": [one.subject]}
        return orjson.dumps(meta.to_json()), orjson.dumps(headers), orjson.dumps(value)

    # --- acks

    def _await(self, policy_id: str, one: Publication) -> None:
        """Wait for the acks of an announcement, if it asks for any. Raises 503 if it cannot."""
        if not one.labels:
            return
        options = AckOptions(one.labels, True, one.wait_ms, one.labels)
        live = Live(
            policy_id, "announcements", SUBJECT_DELETION, "/", None, one.token, options,
            (one.subject,),
        )  # fmt: skip
        self._gateway.await_acks(live, self._answered(policy_id, one.token))
        self._awaited.add(one.token)

    def _forget(self, token: str) -> None:
        if token in self._awaited:
            self._awaited.remove(token)
            self._gateway.abandon(token)

    def _answered(self, policy_id: str, token: str) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            self._awaited.discard(token)
            if outcome.acks:
                statuses = tuple(ack.status for ack in outcome.acks)
                self._own(self._settle(policy_id, token, statuses))

        return done

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="announcement-acks")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, policy_id: str, token: str, statuses: tuple[int, ...]) -> None:
        """Store what the acks mean; if that fails it is published again when it is due."""
        try:
            for _ in range(ATTEMPTS):
                stored = await self._policies.find(policy_id)
                document = stored and answered(stored.document, token, statuses, now_ms())
                if stored is None or document is None:
                    return
                if await self._policies.advance(policy_id, stored.text, document, told=False):
                    return
        except GatewayError as problem:
            log.warning("announcer.acks_not_stored", policy_id=policy_id, error=problem.code)
