"""Twins in the store: every change is computed here and committed by one script.

Per thing there is a *lane*: the last state this process has seen or written, and the changes that
are on their way. A change is computed from that state at once, without reading the store, and the
script refuses it if the state has meanwhile been changed elsewhere. Then the lane waits until what
is on its way has come back, takes the state the script returned, and sends the refused changes
again, in their order.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from itertools import count

import orjson
import structlog

from acks.document import Change, Twin, change, format_pointer
from acks.errors import GatewayError, error
from acks.journal import journal_key, meta_json, policy_key, shard_of, twin_key
from acks.policy import WRITE, Policy, implicit_policy
from acks.signals import Command, JsonObject, Response
from app.store.policies import PolicyStore
from app.store.record import decode, encode
from app.store.redis_client import Redis, Reply, StoreUnavailable

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 200
"""Times a change is sent again when others change the same thing, before it is given up."""

LANE_BYTES = 1_500
"""What a lane takes beside its document, about."""
PARSED = 6
"""How many times the bytes of its text a parsed document takes, about."""

OnDone = Callable[[Response | GatewayError], None]
OnTwin = Callable[[tuple[Twin, bytes, Policy] | GatewayError], None]


class _Op:
    __slots__ = (
        "attempts", "command", "deadline", "fresh", "on_done", "own_policy", "policy", "reply",
    )  # fmt: skip

    def __init__(self, command: Command, deadline: int, on_done: OnDone) -> None:
        self.command = command
        self.deadline = deadline
        self.on_done = on_done
        self.attempts = 0
        self.fresh = False  # the lane's state was read after this change had arrived
        self.policy: Policy | None = None  # of a policyId that the change sets
        self.own_policy: Policy | None = None  # the stored one with the thing's id, if it is set
        self.reply: Response | None = None


class _Lane:
    __slots__ = (
        "broken", "flying", "keys", "known", "loading", "policy", "refused", "size", "stored",
        "text", "twin", "waiting",
    )  # fmt: skip

    def __init__(self, keys: tuple[str, str, str]) -> None:
        self.keys = keys  # twin, journal, policy with the thing's id
        self.twin: Twin | None = None
        self.text = b""  # the document as JSON, where the twin lacks it
        self.policy: Policy | None = None
        self.known = False
        self.loading = False
        self.broken = False
        self.stored: Reply = None  # the state that a refused change found
        self.flying: list[_Op] = []
        self.refused: list[_Op] = []  # come before the waiting ones
        self.waiting: list[_Op] = []
        self.size = 0


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instant(now_ms: int) -> str:
    """A time in ms since the epoch as an ISO-8601 instant with milliseconds."""
    return f"{_second(now_ms // 1000)}.{now_ms % 1000:03d}Z"


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
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()
        self._commit = redis.register(files("app.store").joinpath("commit.lua").read_text())
        self._tags = map(
            f"{node[:8]:0>8}{{:012x}}".format, count(time.time_ns() // 1_000_000 & 0xFFFFFFF)
        )
        self._originators: dict[str, bytes] = {}
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
                self._policies.load(twin.policy_id, lambda policy: finish(twin, text, policy))
            elif reply is None:
                on_twin(error("things:thing.notfound", thing_id=thing_id))
            else:
                on_twin(_unavailable(thing_id, reply))

        def finish(twin: Twin, text: bytes, policy: Policy | GatewayError | None) -> None:
            if isinstance(policy, Policy):
                on_twin((twin, text, policy))
            else:
                on_twin(policy or error("things:thing.notfound", thing_id=thing_id))

        self._redis.send(("GET", self._keys(thing_id)[0]), replied)

    # --- changing

    def submit(self, command: Command, deadline: int, on_done: OnDone) -> None:
        """Carry out a change. ``on_done`` gets its response once it is durable, or the error.

        ``deadline`` (ms since the epoch) goes into the journal: until then somebody waits for acks.
        """
        op = _Op(command, deadline, on_done)
        if not command.path and "policyId" in command.value:
            self._with_policy(op)
        else:
            self._enter(op)

    def _with_policy(self, op: _Op) -> None:
        policy_id = op.command.value["policyId"]
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

    def _enter(self, op: _Op) -> None:
        thing_id = op.command.thing_id
        lane = self._lanes.get(thing_id)
        if lane is None:
            self._lanes[thing_id] = lane = _Lane(self._keys(thing_id))
        else:
            self._lanes.move_to_end(thing_id)
        if lane.known and not lane.broken:
            self._issue(lane, op)
        else:
            lane.waiting.append(op)
            if not lane.flying:
                self._load(thing_id, lane)

    def _issue(self, lane: _Lane, op: _Op) -> None:
        command = op.command
        try:
            done, policy, created_policy = self._decide(lane, op)
            document = orjson.dumps(done.document)
            if len(document) > self._max_thing:
                raise error("things:thing.toolarge", size=len(document), limit=self._max_thing)
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
        self._send(lane, op, done, document, policy, created_policy)

    def _decide(self, lane: _Lane, op: _Op) -> tuple[Change, Policy, JsonObject | None]:
        """The change, the policy that governs the thing afterwards, and a policy to create."""
        command, twin = op.command, lane.twin
        if twin is not None and twin.document is None and command.path:
            lane.twin = twin = twin._replace(document=orjson.loads(lane.text))
        done = change(twin, command)
        if twin is None:
            if op.policy is None:
                document = command.policy or implicit_policy(command.thing_id, command.subjects[0])
                policy = self._policies.compile(document)
            else:
                document, policy = None, op.policy
            _check_write(policy, command)
            return done, policy, document
        if lane.policy is None:
            raise error("things:thing.notfound", thing_id=command.thing_id)
        _check_write(lane.policy, command)
        policy_id = done.document["policyId"]
        if policy_id == twin.policy_id:
            return done, lane.policy, None
        target = op.policy or op.own_policy
        if target is None:
            thing_id = command.thing_id
            raise error("things:thing.notcreatable", thing_id=thing_id, policy_id=policy_id)
        _check_write(target, command)
        return done, target, None

    def _send(
        self,
        lane: _Lane,
        op: _Op,
        done: Change,
        document: bytes,
        policy: Policy,
        created_policy: JsonObject | None,
    ) -> None:
        command, before = op.command, lane.twin
        thing_id, path = command.thing_id, command.path
        now = instant(time.time_ns() // 1_000_000)
        twin = Twin(
            next(self._tags),
            before.revision + 1 if before else 1,
            done.document["policyId"],
            before.created if before else now,
            now,
            # Whoever changes parts will do so again; a twin that is replaced is kept as text only.
            done.document if path else None,
        )
        value = document if not path else orjson.dumps(done.value)
        meta = meta_json(
            thing_id,
            done.action,
            format_pointer(path),
            twin.revision,
            now,
            command.correlation_id,
            command.options.custom_acks,
            self._node,
            op.deadline,
            policy.readers(path),
        )
        originator = command.subjects[0]
        op.reply = _response(command, done, twin.revision, value, originator)
        record = encode(twin, document)
        self._redis.run(
            self._commit,
            lane.keys,
            (
                before.tag if before else "",
                record,
                self._keep,
                orjson.dumps(meta),
                self._entry_headers(command, originator),
                value,
                orjson.dumps(created_policy) if created_policy else b"",
            ),
            lambda reply: self._replied(lane, op, policy if created_policy else None, reply),
        )
        op.attempts += 1
        lane.twin, lane.policy = twin, policy
        lane.text = b"" if path else document
        lane.flying.append(op)
        size = LANE_BYTES + len(document) * (PARSED if path else 1)
        self._cached_bytes += size - lane.size
        lane.size = size
        if self._cached_bytes > self._cache_bytes:
            self._evict()

    def _entry_headers(self, command: Command, originator: str) -> bytes:
        if command.headers:
            return orjson.dumps({**command.headers, "ditto-originator": originator})
        encoded = self._originators.get(originator)
        if encoded is None:
            encoded = orjson.dumps({"ditto-originator": originator})
            if len(self._originators) < 10_000:
                self._originators[originator] = encoded
        return encoded

    def _replied(
        self, lane: _Lane, op: _Op, created_policy: Policy | None, reply: Reply | Exception
    ) -> None:
        thing_id = op.command.thing_id
        lane.flying.remove(op)
        if isinstance(reply, bytes):
            if op.reply is not None:
                if created_policy is not None:
                    self._policies.remember(thing_id, created_policy)
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
            if isinstance(reply, list):
                op.on_done(
                    error(
                        "things:thing.notcreatable",
                        thing_id=thing_id,
                        policy_id=thing_id,
                        message=f"The Thing with ID '{thing_id}' could not be created, because a "
                        f"Policy with ID '{thing_id}' exists already.",
                    )
                )
            else:
                op.on_done(_unavailable(thing_id, reply))
        if lane.broken and not lane.flying:
            self._reopen(thing_id, lane)

    def _reopen(self, thing_id: str, lane: _Lane) -> None:
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

    def _load(self, thing_id: str, lane: _Lane) -> None:
        if not lane.loading:
            lane.loading = True
            for op in lane.waiting:
                # Later ones are not: the state may be older than they are when it arrives.
                op.fresh = True
            self._redis.send(("GET", lane.keys[0]), lambda reply: self._take(thing_id, lane, reply))

    def _take(self, thing_id: str, lane: _Lane, reply: Reply | Exception) -> None:
        if isinstance(reply, bytes):
            try:
                twin, lane.text = decode(reply)
            except (ValueError, KeyError):
                self._loaded(thing_id, lane, None, _unreadable(thing_id))
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
        lane: _Lane,
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


def _check_write(policy: Policy, command: Command) -> None:
    if policy.may(command.subjects, WRITE, "thing", command.path):
        return
    if not command.path:
        raise error("things:thing.notmodifiable", thing_id=command.thing_id)
    if len(command.path) == 1:
        raise error("things:attributes.notmodifiable", thing_id=command.thing_id)
    raise error(
        "things:attribute.notmodifiable",
        thing_id=command.thing_id,
        path=format_pointer(command.path[1:]),
    )


def etag(path: tuple[str, ...], revision: int, value: bytes) -> str:
    """Entity tag of a thing (by revision) or of a part of it (by value), spec 9.2."""
    if not path:
        return f'"rev:{revision}"'
    return f'"hash:{hashlib.blake2b(value, digest_size=8).hexdigest()}"'


def _response(
    command: Command, done: Change, revision: int, value: bytes, originator: str
) -> Response:
    headers: dict[str, object] = {
        "correlation-id": command.correlation_id,
        "response-required": False,
        **command.headers,
        "etag": etag(command.path, revision, value),
        "entity-revision": revision,
        "ditto-originator": originator,
    }
    if not done.created:
        return Response(204, None, headers)
    return Response(201, done.value, headers)


def _unavailable(thing_id: str, cause: Reply | Exception) -> GatewayError:
    if isinstance(cause, Exception) and not isinstance(cause, StoreUnavailable):
        log.error("store.command_failed", thing_id=thing_id, error=str(cause))
    return error("things:thing.unavailable", thing_id=thing_id)


def _unreadable(thing_id: str) -> GatewayError:
    log.error("store.record_unreadable", thing_id=thing_id)
    return error("things:thing.unavailable", thing_id=thing_id)
