"""Composition root: the parts of one gateway process, put together, started and stopped."""

from __future__ import annotations

from uuid import uuid4

import structlog

from app.api.auth import Authenticator
from app.api.front import Front
from app.api.rest import Rest
from app.api.things import Things
from app.api.ws import WebSocket
from app.gateway import Gateway
from app.observe.metrics import Metrics
from app.settings import Settings
from app.store.ackbus import AckBus
from app.store.journal import JournalTail
from app.store.labels import LabelRegistry
from app.store.layout import check_durability, check_layout
from app.store.policies import PolicyStore
from app.store.redis_client import Redis, RedisAddress
from app.store.twins import TwinStore

log = structlog.get_logger(__name__)


class Node:
    """One gateway process over the store at ``redis_url``.

    ``instance`` and ``worker`` name it among its siblings in the metrics.
    """

    def __init__(
        self, settings: Settings, redis_url: str, *, instance: str = "", worker: str = "0"
    ) -> None:
        self.id = uuid4().hex[:16]
        self._settings = settings
        address = RedisAddress.parse(redis_url)
        prefix, shards = settings.prefix, settings.shards
        self._redis = Redis(
            address, name=f"ackgate-{self.id}", reply_timeout=settings.store_timeout
        )
        self.gateway = gateway = Gateway(
            self.id,
            max_pending=settings.max_pending,
            max_sessions=settings.max_sessions,
            outbox_bytes=settings.session_outbox,
        )
        self._twins = TwinStore(
            self._redis,
            PolicyStore(self._redis, prefix, shards),
            prefix=prefix,
            shards=shards,
            node=self.id,
            max_thing_bytes=settings.max_thing_bytes,
            journal_entries=settings.journal_max_entries,
            cache_bytes=settings.twin_cache_bytes,
        )
        self._bus = AckBus(
            self._redis, address, prefix=prefix, node=self.id, on_ack=gateway.receive
        )
        self._tail = JournalTail(
            self._redis,
            address,
            prefix=prefix,
            shards=shards,
            node=self.id,
            on_entry=gateway.sessions.route,
        )
        self._registry = LabelRegistry(
            self._redis, prefix, self.id, ttl_ms=int(settings.label_lease * 1000)
        )
        self._registry.on_lost = gateway.label_lost
        gateway.connect(self._twins, self._bus, self._tail, self._registry)
        self._started = False
        self._metrics = Metrics(
            self._redis,
            prefix=prefix,
            instance=instance or self.id,
            worker=worker,
            values=self._values,
            siblings=settings.workers > 1,
        )
        self.app = self._front()

    def _front(self) -> Front:
        settings = self._settings
        authenticator = Authenticator(settings.credentials())
        things = Things(
            self.gateway,
            authenticator,
            defaults=settings.header_defaults,
            max_timeout_ms=int(settings.max_timeout * 1000),
            default_timeout_ms=int(settings.default_timeout * 1000),
            max_body=settings.max_body_bytes,
            max_headers=settings.max_headers_chars,
        )
        websocket = WebSocket(self.gateway, authenticator, max_headers=settings.max_headers_chars)
        rest = Rest(authenticator, self.health, self._metrics.render).build()
        return Front(
            things,
            websocket,
            rest,
            self._metrics.requests,
            log_sample=settings.access_log_sample,
            max_body=settings.max_body_bytes,
        )

    async def start(self) -> None:
        """Connect to the store and check it.

        Raises StoreUnavailable, or LayoutMismatch with what to do about it.
        """
        deadline = self._settings.store_timeout
        await self._redis.start(deadline)
        warning = await check_durability(self._redis, self._settings.durability)
        if warning:
            log.warning("store.unchecked", reason=warning)
        await check_layout(self._redis, self._settings.prefix, self._settings.shards)
        await self._bus.start(deadline)
        await self._registry.start()
        self._metrics.start()
        self._started = True
        log.info("gateway.started", node=self.id)

    async def drain(self) -> None:
        """Finish what is open and close all sessions (flow 7)."""
        log.info("gateway.draining", node=self.id, open_requests=self.gateway.open_requests)
        await self.gateway.drain(self._settings.drain_timeout)

    async def stop(self) -> None:
        """Release the labels and disconnect from the store."""
        self._started = False
        await self._metrics.close()
        await self._registry.close()
        await self._tail.close()
        await self._bus.close()
        await self._redis.close()
        log.info("gateway.stopped", node=self.id)

    def health(self) -> dict[str, str | None]:
        """What readiness depends on: name -> None, or why it is not fine."""
        links = self._redis.connected and self._bus.connected and self._tail.connected
        return {
            "store": None if links else "The store cannot be reached.",
            "gateway": "It is shutting down." if self.gateway.draining else None,
        }

    def _values(self) -> dict[str, float]:
        counters, sessions = self.gateway.counters, self.gateway.sessions
        ready = self._started and not any(self.health().values())
        return {
            "submitted": counters.submitted,
            "refused": counters.refused,
            "expired": counters.expired,
            "acks_accepted": counters.acks_accepted,
            "acks_ignored": counters.acks_ignored,
            "acks_weak": sessions.weak,
            "acks_undelivered": self._bus.lost,
            "events_delivered": sessions.delivered,
            "journal_entries": self._tail.entries,
            "journal_skipped": self._tail.skipped,
            "conflicts": self._twins.conflicts,
            "open_requests": self.gateway.open_requests,
            "sessions": len(sessions),
            "ready": float(ready),
        }
