"""The live channel: messages, live commands and events on their way to subscribers (3, 9.3).

A live signal changes no twin. It becomes an entry of the journal in the shard of its thing, and so
reaches the subscribers of every process in order with the thing's events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import orjson
import structlog

from acks.document import Twin
from acks.errors import GatewayError, error
from acks.journal import EntryMeta, journal_key, shard_of
from acks.labels import LIVE_RESPONSE
from acks.live import awaited, is_claim, kind_of, resources_of
from acks.policy import READ, WRITE, Policy
from acks.resources import not_deletable, not_found, not_modifiable
from acks.signals import Live, Response
from app.store.instant import instant
from app.store.prepare import check_twin_condition
from app.store.redis_client import Redis, Reply, StoreUnavailable
from app.store.twins import TwinStore

log = structlog.get_logger(__name__)

OnDone = Callable[[Response | GatewayError], None]
OnWritten = Callable[[Live, bytes], None]
"""Hears where in the journal a signal with assigned members is: (signal, entry id)."""
TAKEN: Mapping[str, object] = {}
_NOT_ALLOWED = {"messages": "messages:send.notallowed", "events": "things:event.notallowed"}


class LiveChannel:
    """Authorises live signals and appends them to the journal."""

    def __init__(
        self,
        redis: Redis,
        twins: TwinStore,
        *,
        prefix: str,
        shards: int,
        node: str,
        max_thing_bytes: int,
        journal_entries: int,
    ) -> None:
        self._redis = redis
        self._twins = twins
        self._prefix = prefix
        self._shards = shards
        self._node = node
        self._max_thing = max_thing_bytes
        self._keep = journal_entries
        self.on_written: OnWritten = _unheeded

    def submit(self, live: Live, deadline: int, on_done: OnDone) -> None:
        """Hand a live signal to its subscribers.

        ``on_done`` gets 202 once it is in the journal, or the error. ``deadline`` (ms since the
        epoch, 0 for none) is until when somebody waits for answers.
        """

        def found(result: tuple[Twin, bytes, Policy] | GatewayError) -> None:
            if isinstance(result, GatewayError):
                on_done(result)
                return
            try:
                entry = self._entry(live, deadline, *result)
            except GatewayError as problem:
                on_done(problem)
                return
            self._append(live, entry, on_done)

        self._twins.read(live.thing_id, found)

    def _entry(
        self, live: Live, deadline: int, twin: Twin, text: bytes, policy: Policy
    ) -> tuple[str | bytes, ...]:
        """The fields of the journal entry. Raises GatewayError if it may not be sent."""
        check_permission(live, policy)
        if live.checks is not None and live.checks.condition is not None:
            twin = twin._replace(document=orjson.loads(text))
            check_twin_condition(twin, policy, live.checks, live.subjects)
        readers, revoked = _readers(live, policy)
        options = live.options
        meta = EntryMeta(
            live.thing_id,
            live.action,
            live.path,
            live.revision,
            live.timestamp or instant(time.time_ns() // 1_000_000),
            live.correlation_id,
            options.custom_acks,
            live.answer_to or self._node,
            deadline,
            readers,
            kind_of(live),
            revoked,
            options.response_required or LIVE_RESPONSE in awaited(options),
            live.fields,
            live.origin or "",
            assigned=live.assigned,
        )
        headers = {
            **live.headers,
            "response-required": options.response_required,
            "ditto-originator": live.subjects[0],
        }
        fields = ("m", orjson.dumps(meta.to_json()), "h", orjson.dumps(headers))
        if live.value is None:
            return fields
        value = orjson.dumps(live.value)
        if live.criterion != "messages" and len(value) > self._max_thing:
            raise error("things:thing.toolarge", size=len(value), limit=self._max_thing)
        return (*fields, "v", value)

    def _append(self, live: Live, fields: tuple[str | bytes, ...], on_done: OnDone) -> None:
        def replied(reply: Reply | Exception) -> None:
            if isinstance(reply, bytes):
                if live.assigned:
                    self.on_written(live, reply)
                on_done(Response(202, None, TAKEN))
                return
            if not isinstance(reply, StoreUnavailable):
                log.error("live.not_appended", thing_id=live.thing_id, error=str(reply))
            on_done(error("things:thing.unavailable", thing_id=live.thing_id))

        key = journal_key(self._prefix, shard_of(live.thing_id, self._shards))
        self._redis.send(("XADD", key, "MAXLEN", "~", self._keep, "*", *fields), replied)


def _unheeded(_live: Live, _entry_id: bytes) -> None:
    """Nobody wants to know."""


def _readers(live: Live, policy: Policy) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Subjects that may read it by all its resources, and those that may not by one of them."""
    kind, paths = resources_of(live)
    readers, revoked = policy.effected(READ, kind, paths[0])
    for path in paths[1:]:
        also, not_these = policy.effected(READ, kind, path)
        readers = tuple(subject for subject in readers if subject in also)
        revoked = tuple(dict.fromkeys((*revoked, *not_these)))
    return readers, revoked


def check_permission(live: Live, policy: Policy) -> None:
    """Whether the sender may send it (spec websocket-... 5.4).

    Raises ``messages:send.notallowed``, ``things:event.notallowed``; for live commands what the
    same on the twin would raise.
    """
    if is_claim(live):
        return
    kind, paths = resources_of(live)
    if live.criterion != "commands":
        if not all(policy.may(live.subjects, WRITE, kind, path) for path in paths):
            raise error(_NOT_ALLOWED[live.criterion], thing_id=live.thing_id, path=live.path)
        return
    path = paths[0]
    if live.action == "retrieve":
        # Nobody cuts the answer of a request whose sender does not wait for it.
        partial = not live.answer_to
        if not policy.may(live.subjects, READ, kind, path, partial):
            raise not_found(live.thing_id, path)
    elif not policy.may(live.subjects, WRITE, kind, path):
        patch = live.value
        merging = live.action == "merge" and isinstance(patch, dict)
        if merging and policy.may_merge(live.subjects, path, patch):
            return
        refusal = not_deletable if live.action == "delete" else not_modifiable
        raise refusal(live.thing_id, path)
