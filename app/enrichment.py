"""Twins for extra fields, read from the store: one read for all sessions that want it at once."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any, TypeAlias

import orjson

from acks.document import Twin
from acks.errors import GatewayError, error
from acks.policy import Policy
from acks.resources import ABSENT
from acks.signals import JsonObject
from app.store.policies import PolicyStore
from app.store.twins import TwinStore

READ_S = 10.0
"""How long a twin is waited for, s."""
_ATTEMPTS = 3


class Snapshot:
    """A twin as it was read, with its policy; ``size`` of the document is in bytes.

    ``special`` are its fields beside the document.
    """

    def __init__(self, thing_id: str, twin: Twin, text: bytes, policy: Policy) -> None:
        self.revision = twin.revision
        self.policy_id = twin.policy_id
        self.size = len(text)
        self.special = {
            "_namespace": thing_id.partition(":")[0],
            "_revision": twin.revision,
            "_created": twin.created,
            "_modified": twin.modified,
        }
        self._text = text
        self._policy = policy
        self._seen: dict[tuple[str, ...], JsonObject | None] = {}

    @cached_property
    def _document(self) -> JsonObject:
        document: JsonObject = orjson.loads(self._text)
        return document

    def seen_by(self, subjects: tuple[str, ...]) -> JsonObject | None:
        """As much of the document as these subjects may read, None if that is nothing at all."""
        if subjects not in self._seen:
            seen: Any = self._policy.view(subjects, "thing", (), self._document)
            self._seen[subjects] = None if seen is ABSENT else seen
        return self._seen[subjects]


Reading: TypeAlias = "asyncio.Future[Snapshot | GatewayError]"


class Enrichment:
    """Reads twins for subscribers; ``failed`` counts those that could not be read."""

    def __init__(self, twins: TwinStore, policies: PolicyStore) -> None:
        self._twins = twins
        self._policies = policies
        self._reading: dict[str, Reading] = {}
        self.failed = 0

    def begin(self, thing_id: str) -> Reading:
        """Read a twin; joins a read of it that is on its way. Its result is for :meth:`twin`."""
        reading = self._reading.get(thing_id)
        if reading is not None:
            return reading
        reading = asyncio.get_running_loop().create_future()
        self._reading[thing_id] = reading

        def replied(result: tuple[Twin, bytes, Policy] | GatewayError) -> None:
            if self._reading.get(thing_id) is reading:
                del self._reading[thing_id]
            if isinstance(result, GatewayError):
                reading.set_result(result)
            else:
                reading.set_result(Snapshot(thing_id, *result))

        self._twins.read(thing_id, replied)
        return reading

    async def twin(self, thing_id: str, revision: int, reading: Reading) -> Snapshot | None:
        """The twin that a read brought, not older than ``revision``; None if it is not there.

        Raises ``signal.enrichment.failed``.
        """
        found: Snapshot | GatewayError | None = None
        try:
            async with asyncio.timeout(READ_S):
                for again in range(_ATTEMPTS):
                    # Others wait for it too, and one of them may go.
                    found = await asyncio.shield(reading)
                    if isinstance(found, GatewayError):
                        enough = found.status != 404 or again > 0
                    else:
                        enough = found.revision >= revision
                    if enough:
                        break
                    # It may have been on its way before the signal was written.
                    reading = self.begin(thing_id)
        except TimeoutError:
            if self._reading.get(thing_id) is reading:
                del self._reading[thing_id]
            raise self._failure(thing_id, "It could not be read in time.") from None
        if not isinstance(found, GatewayError):
            return found
        if found.status == 404:
            return None
        raise self._failure(thing_id, found.message) from found

    async def policy(
        self, thing_id: str, policy_id: str, subjects: tuple[str, ...]
    ) -> JsonObject | None:
        """As much of a policy as the subscriber may read, None for nothing; raises as ``twin``."""
        try:
            async with asyncio.timeout(READ_S):
                return await self._policies.readable(policy_id, subjects)
        except TimeoutError:
            raise self._failure(thing_id, "Its policy could not be read in time.") from None
        except GatewayError as problem:
            raise self._failure(thing_id, problem.message) from problem

    def _failure(self, thing_id: str, reason: str) -> GatewayError:
        self.failed += 1
        return error("signal.enrichment.failed", thing_id=thing_id, reason=reason)
