"""Twins in the store: every change is computed here and committed by one script.

Per thing there is a *lane*: the last state this process has seen or written, and the changes that
are on their way. A change is computed from that state at once, without reading the store, and the
script refuses it if the state has meanwhile been changed elsewhere. Then the lane waits until what
is on its way has come back, takes the state the script returned, and sends the refused changes
again, in their order.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.resources import files
from itertools import count

import orjson
import structlog

from acks.announcements import due_at
from acks.audience import audience
from acks.document import Twin, format_pointer
from acks.errors import GatewayError, error
from acks.journal import (
    ASYNC,
    due_key,
    journal_key,
    meta_json,
    policy_key,
    request_key,
    shard_of,
    twin_key,
)
from acks.policy import WRITE, Policy
from acks.signals import Command, JsonObject
from app.store.instant import instant
from app.store.lane import Lane, OnDone, Op
from app.store.policies import TOMBSTONE_MS, PolicyStore, StoredPolicy, scheduled
from app.store.prepare import (
    Prepared,
    named_policy,
    policy_in_the_way,
    policy_missing,
    prepare_change,
    prepare_creation,
    response,
)
from app.store.record import decode, encode
from app.store.redis_client import Redis, Reply, StoreUnavailable
from app.store.requests import TAKE, response_value

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 200
"""Times a change is sent again when others change the same thing, before it is given up."""

_POLICY_ID = ("policyId",)

LANE_BYTES = 1_500
"""What a lane takes beside its document, about."""
PARSED = 6
"""How many times the bytes of its text a parsed document takes, about."""

Arguments = tuple[str | bytes | int, ...]
"""Arguments of a script."""
OnWritten = Callable[[Command, bytes], None]
"""Hears where in the journal a change with assigned members is: (command, entry id)."""
OnTwin = Callable[[tuple[Twin, bytes, Policy] | GatewayError], None]


class TwinStore:
    """Reads and changes twins. Callbacks are called from the event loop, never re-entrantly late.

    ``node`` goes into journal entries as the origin; ``cache_bytes`` bounds the idle states kept.
    """

    def __init__(
        self,
        redis: Redis,
        policies: PolicyStore,
        *,
        prefix: str,
        shards: int,
        node: str,
        max_thing_bytes: int,
        journal_entries: int,
        cache_bytes: int,
    ) -> None:
        self._redis = redis
        self._policies = policies
        self._prefix = prefix
        self._shards = shards
        self._node = node
        self._max_thing = max_thing_bytes
        self._keep = journal_entries
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._commit = redis.register(
            TAKE + files("app.store").joinpath("commit.lua").read_text(encoding="utf-8")
        )
        self._tags = map(
            f"{node[:8]:0>8}{{:012x}}".format, count(time.time_ns() // 1_000_000 & 0xFFFFFFF)
        )
        self._originators: dict[tuple[str, bool], bytes] = {}  # with whether no acks are wanted
        self.on_written: OnWritten = _unheeded
        self.conflicts = 0

    # --- reading

    def read(self, thing_id: str, on_twin: OnTwin) -> None:
        """Read a twin and its policy as they are in the store now."""

        def replied(reply: Reply | Exception) -> None:
            if isinstance(reply, bytes):
                try:
                    twin, text = decode(reply)
                except (ValueError, KeyError):
                    on_twin(_unreadable(thing_id))
                    return
                if not twin.policy_id:
                    on_twin(error("things:thing.notfound", thing_id=thing_id))
                    return
                self._policies.load(twin.policy_id, lambda policy: finish(twin, text, policy))
            elif reply is None:
                on_twin(error("things:thing.notfound", thing_id=thing_id))
            else:
                on_twin(_unavailable(thing_id, reply))

        def finish(twin: Twin, text: bytes, policy: Policy | GatewayError | None) -> None:
            if isinstance(policy, Policy):
                on_twin((twin, text, policy))
            else:
                on_twin(policy or policy_missing(thing_id, twin.policy_id))

        self._redis.send(("GET", self._keys(thing_id)[0]), replied)

    async def get(self, thing_id: str) -> tuple[Twin, bytes, Policy]:
        """Read a twin (without its document), that as JSON text, and its policy.

        Raises ``things:thing.notfound``, ``things:thing.unavailable``.
        """
        found: asyncio.Future[tuple[Twin, bytes, Policy] | GatewayError]
        found = asyncio.get_running_loop().create_future()

        def done(result: tuple[Twin, bytes, Policy] | GatewayError) -> None:
            if not found.done():
                found.set_result(result)

        self.read(thing_id, done)
        result = await found
        if isinstance(result, GatewayError):
            raise result
        return result

    # --- changing

    def submit(self, command: Command, deadline: int, on_done: OnDone) -> None:
        """Carry out a change. ``on_done`` gets its response once it is durable, or the error.

        ``deadline`` (ms since the epoch) goes into the journal: until then somebody waits for acks.
        """
        op = Op(command, deadline, on_done)
        path, value = command.path, command.value
        if (path == _POLICY_ID or (not path and type(value) is dict and "policyId" in value)) and (
            policy_id := named_policy(command)
        ) is not None:
            self._with_policy(op, policy_id)
        else:
            self._enter(op)

    def _with_policy(self, op: Op, policy_id: str) -> None:
        own = policy_id == op.command.thing_id

        def loaded(policy: Policy | GatewayError | None) -> None:
            if own and not isinstance(policy, GatewayError):
                op.own_policy = policy  # a new thing makes it, so it may be missing
                self._enter(op)
            elif isinstance(policy, Policy):
                op.policy = policy
                self._enter(op)
            else:
                thing_id = op.command.thing_id
                op.on_done(
                    policy
                    or error("things:thing.notcreatable", thing_id=thing_id, policy_id=policy_id)
                )

        self._policies.load(policy_id, loaded)

    def _enter(self, op: Op) -> None:
        thing_id = op.command.thing_id
        lane = self._lanes.get(thing_id)
        if lane is None:
            self._lanes[thing_id] = lane = Lane(self._keys(thing_id))
        else:
            self._lanes.move_to_end(thing_id)
            if lane.generation != self._policies.generation:
                self._look_again(lane)
        if lane.known and not lane.broken:
            self._issue(lane, op)
        else:
            lane.waiting.append(op)
            if not lane.flying:
                self._load(thing_id, lane)

    def withdraw(self, origin: str) -> None:
        """Carry out no more of what this origin has submitted than what is on its way.

        That is not tried again if others have changed the thing meanwhile; nor is the rest.
        """
        for thing_id, lane in list(self._lanes.items()):
            for op in lane.flying:
                if op.command.origin == origin:
                    op.attempts = MAX_ATTEMPTS
            for ops in (lane.waiting, lane.refused):
                withdrawn = [op for op in ops if op.command.origin == origin]
                ops[:] = [op for op in ops if op.command.origin != origin]
                for op in withdrawn:
                    op.on_done(_unavailable(thing_id, None))

    def _look_again(self, lane: Lane) -> None:
        """Some policy has changed: have the lane read its state again if it may be its own."""
        if not lane.known or lane.twin is None or not lane.twin.policy_id:
            return
        generation = self._policies.generation
        if lane.policy is not None and self._policies.cached(lane.twin.policy_id) is lane.policy:
            lane.generation = generation
        else:
            lane.broken = True

    def _issue(self, lane: Lane, op: Op) -> None:
        try:
            self._try(lane, op)
        except Exception:
            # A defect of ours must not leave the sender, or others of the lane, without an answer.
            log.exception("twin.change_failed", thing_id=op.command.thing_id)
            op.on_done(error("gateway:internalerror"))

    def _try(self, lane: Lane, op: Op) -> None:
        command = op.command
        try:
            prepared = self._prepare(lane, op)
            document = prepared[0].document
            text = b"" if document is None else orjson.dumps(document)
            if len(text) > self._max_thing:
                raise error("things:thing.toolarge", size=len(text), limit=self._max_thing)
        except GatewayError as problem:
            if op.fresh and not lane.flying:
                op.on_done(problem)
                return
            # The refusal rests on a state that may be out of date: look again before saying so.
            lane.broken = True
            lane.waiting.append(op)
            if not lane.flying:
                self._load(command.thing_id, lane)
            return
        self._send(lane, op, prepared, text)

    def _prepare(self, lane: Lane, op: Op) -> Prepared:
        """What the change amounts to, computed from the lane's state. Raises GatewayError."""
        command, twin = op.command, lane.twin
        if twin is None or not twin.policy_id:
            named = op.policy or (op.own_policy if command.policy is None else None)
            deleted = None if op.deleted is None else op.deleted.document
            return prepare_creation(command, named, deleted, self._policies.compile)
        if twin.document is None and (
            command.path or command.action != "put" or command.checks is not None
        ):
            lane.twin = twin = twin._replace(document=orjson.loads(lane.text))
            self._account(lane, LANE_BYTES + len(lane.text) * PARSED)
        if lane.policy is None:
            raise policy_missing(command.thing_id, twin.policy_id)
        return prepare_change(twin, lane.policy, command, op.policy or op.own_policy)

    def _send(self, lane: Lane, op: Op, prepared: Prepared, document: bytes) -> None:
        command, before = op.command, lane.twin
        done, policy, created_policy = prepared
        if created_policy and (command.policy is not None or op.deleted is not None):
            created_policy = scheduled(op.deleted and op.deleted.document, created_policy)
        thing_id, path = command.thing_id, command.path
        now = instant(time.time_ns() // 1_000_000)
        deleted = done.document is None
        # Whoever changes parts will do so again; a twin that is replaced is kept as text only.
        parsed = bool(path) or command.action != "put"
        twin = Twin(
            next(self._tags),
            before.revision + 1 if before else 1,
            "" if done.document is None else done.document["policyId"],
            before.created if before and before.policy_id else now,
            now,
            done.document if parsed else None,
        )
        if done.action == "deleted":
            value = b""
        elif path or done.action == "merged":
            value = orjson.dumps(done.value)
        else:
            value = document
        readers, rules = audience(policy, path)
        meta = meta_json(
            thing_id,
            done.action,
            format_pointer(path),
            twin.revision,
            now,
            command.correlation_id,
            command.options.custom_acks,
            command.answer_to or self._node,
            op.deadline,
            readers,
        )
        if command.origin:
            meta["n"] = command.origin
        if rules:
            meta["v"] = rules
        if command.assigned:
            meta["g"] = command.assigned
        if command.search:
            meta["i"] = command.search
        originator = command.subjects[0]
        op.reply = response(command, done, twin, policy, value, originator)
        arguments: Arguments = (
            before.tag if before else "",
            encode(twin, document),
            self._keep,
            orjson.dumps(meta),
            self._entry_headers(command, originator),
            value,
            orjson.dumps(created_policy) if created_policy else b"",
        )
        if deleted:
            arguments += (TOMBSTONE_MS,)
        keys: tuple[str, ...] = lane.keys
        if command.answer_to == ASYNC:
            # Its record must not say less or more than what was written, whoever dies now.
            arguments += (*(() if deleted else (b"",)), response_value(op.reply))
            keys += (self._request_key(command),)
        if created_policy:
            keys, arguments = self._making_policy(keys, arguments, op, created_policy)
        created = (policy, self._policies.generation) if created_policy else None
        self._redis.run(
            self._commit,
            keys,
            arguments,
            lambda reply: self._replied(lane, op, created, reply),
        )
        op.attempts += 1
        if created is None and policy is not lane.policy:
            lane.generation = -1  # read when the change arrived: it may have changed since
        lane.twin, lane.policy = twin, None if deleted else policy
        lane.text = b"" if parsed else document
        lane.flying.append(op)
        self._account(lane, LANE_BYTES + len(document) * (PARSED if parsed else 1))

    def _making_policy(
        self, keys: tuple[str, ...], arguments: Arguments, op: Op, policy: JsonObject
    ) -> tuple[tuple[str, ...], Arguments]:
        """The commit's keys and arguments with those about a policy that is made with the thing."""
        thing_id = op.command.thing_id
        if op.deleted is not None:
            arguments += (b"",) * (9 - len(arguments)) + (op.deleted.text,)
        if (due := due_at(policy)) is not None:
            arguments += (b"",) * (10 - len(arguments)) + (due, thing_id)
            keys += (due_key(self._prefix, shard_of(thing_id, self._shards)),)
        return keys, arguments

    def _account(self, lane: Lane, size: int) -> None:
        """Take note of what a lane takes now, and let others go if it is too much."""
        self._cached_bytes += size - lane.size
        lane.size = size
        if self._cached_bytes > self._cache_bytes:
            self._evict()

    def _request_key(self, command: Command) -> str:
        shard = shard_of(command.thing_id, self._shards)
        return request_key(self._prefix, shard, command.correlation_id)

    def _entry_headers(self, command: Command, originator: str) -> bytes:
        """Headers of the event. That no acks at all are wanted is one (spec websocket-... 1.5)."""
        known = (originator, not command.options.requested_acks)
        encoded = None if command.headers else self._originators.get(known)
        if encoded is None:
            headers: dict[str, object] = {**command.headers, "ditto-originator": originator}
            if known[1]:
                headers["requested-acks"] = []
            encoded = orjson.dumps(headers)
            if not command.headers and len(self._originators) < 10_000:
                self._originators[known] = encoded
        return encoded

    def _replied(
        self, lane: Lane, op: Op, created: tuple[Policy, int] | None, reply: Reply | Exception
    ) -> None:
        thing_id = op.command.thing_id
        lane.flying.remove(op)
        if isinstance(reply, bytes):
            if op.command.assigned:
                self.on_written(op.command, reply)
            if op.reply is not None:
                if created is not None:
                    self._policies.remember(thing_id, *created)
                op.on_done(op.reply)
        elif isinstance(reply, list) and reply[0] == 1:
            self.conflicts += 1
            lane.broken = True
            lane.stored = reply[1] if len(reply) > 1 else None
            if op.attempts < MAX_ATTEMPTS:
                lane.refused.append(op)
            else:
                op.on_done(_unavailable(thing_id, None))
        else:
            lane.broken = True
            lane.known = False
            if isinstance(reply, list) and op.attempts < MAX_ATTEMPTS:
                # It counts as on its way, so that what came after it is not carried out before.
                lane.flying.append(op)
                self._policies.find_later(thing_id, lambda found: self._found(lane, op, found))
            else:
                op.on_done(_unavailable(thing_id, reply))
        if lane.broken and not lane.flying:
            self._reopen(thing_id, lane)

    def _found(self, lane: Lane, op: Op, found: StoredPolicy | GatewayError | None) -> None:
        """A thing could not be made because something is there in the place of its policy."""
        thing_id, subjects = op.command.thing_id, op.command.subjects
        lane.flying.remove(op)
        if isinstance(found, GatewayError):
            op.on_done(found)
        elif found is None or (found.deleted and found.policy.may(subjects, WRITE, "policy", ())):
            op.deleted = found
            lane.refused.insert(0, op)  # everything that was sent after it has been refused, too
        else:
            op.on_done(policy_in_the_way(thing_id, deleted=found.deleted))
        if not lane.flying:
            self._reopen(thing_id, lane)

    def _reopen(self, thing_id: str, lane: Lane) -> None:
        """Everything on its way has come back: go on from the state in the store."""
        lane.waiting[:0] = lane.refused
        lane.refused.clear()
        if not lane.waiting:
            self._forget(thing_id)
        elif lane.known and isinstance(lane.stored, bytes):
            lane.loading = True
            self._take(thing_id, lane, lane.stored)
        else:
            self._load(thing_id, lane)

    def _load(self, thing_id: str, lane: Lane) -> None:
        if not lane.loading:
            lane.loading = True
            for op in lane.waiting:
                # Later ones are not: the state may be older than they are when it arrives.
                op.fresh = True
            self._redis.send(("GET", lane.keys[0]), lambda reply: self._take(thing_id, lane, reply))

    def _take(self, thing_id: str, lane: Lane, reply: Reply | Exception) -> None:
        if isinstance(reply, bytes):
            try:
                twin, lane.text = decode(reply)
            except (ValueError, KeyError):
                self._loaded(thing_id, lane, None, _unreadable(thing_id))
                return
            if not twin.policy_id:
                self._loaded(thing_id, lane, twin, None)
                return
            self._policies.load(
                twin.policy_id, lambda policy: self._loaded(thing_id, lane, twin, policy)
            )
        elif reply is None:
            self._loaded(thing_id, lane, None, None)
        else:
            self._loaded(thing_id, lane, None, _unavailable(thing_id, reply))

    def _loaded(
        self,
        thing_id: str,
        lane: Lane,
        twin: Twin | None,
        policy: Policy | GatewayError | None,
    ) -> None:
        lane.loading = False
        lane.stored = None
        ready, lane.waiting = lane.waiting, []
        if isinstance(policy, GatewayError):
            self._forget(thing_id)
            for op in ready:
                op.on_done(policy)
            return
        lane.twin, lane.policy, lane.known, lane.broken = twin, policy, True, False
        lane.generation = self._policies.generation
        for position, op in enumerate(ready):
            if lane.broken:
                lane.waiting.extend(ready[position:])
                break
            self._issue(lane, op)
        if not (lane.flying or lane.waiting or lane.loading):
            # Nothing was written, so nothing of it is accounted for.
            self._forget(thing_id)

    def _forget(self, thing_id: str) -> None:
        lane = self._lanes.pop(thing_id, None)
        if lane is not None:
            self._cached_bytes -= lane.size

    def _evict(self) -> None:
        for _ in range(8):
            if self._cached_bytes <= self._cache_bytes:
                return
            thing_id, lane = next(iter(self._lanes.items()))
            if lane.flying or lane.waiting or lane.loading:
                self._lanes.move_to_end(thing_id)
            else:
                self._forget(thing_id)

    def _keys(self, thing_id: str) -> tuple[str, str, str]:
        shard = shard_of(thing_id, self._shards)
        return (
            twin_key(self._prefix, shard, thing_id),
            journal_key(self._prefix, shard),
            policy_key(self._prefix, shard, thing_id),
        )


def _unheeded(_command: Command, _entry_id: bytes) -> None:
    """Nobody wants to know."""


def _unavailable(thing_id: str, cause: Reply | Exception) -> GatewayError:
    if isinstance(cause, Exception) and not isinstance(cause, StoreUnavailable):
        log.error("store.command_failed", thing_id=thing_id, error=str(cause))
    return error("things:thing.unavailable", thing_id=thing_id)


def _unreadable(thing_id: str) -> GatewayError:
    log.error("store.record_unreadable", thing_id=thing_id)
    return error("things:thing.unavailable", thing_id=thing_id)
