"""Composition root: the parts of one gateway process, put together, started and stopped."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import structlog

from app.access import authenticator_of
from app.announcements import Announcer
from app.api.acks import Acks
from app.api.connections import Connections
from app.api.events import Events
from app.api.front import Front
from app.api.http import Rules
from app.api.labels import Labels
from app.api.messages import Messages
from app.api.policies import Policies, WhoAmI
from app.api.protocol_commands import Desk
from app.api.queries import Queries
from app.api.reception import Reception
from app.api.report import Report
from app.api.rest import Rest
from app.api.search import MAX_HEAD_CHARS, SearchThings
from app.api.things import Things
from app.api.ws import WebSocket
from app.api.ws_policies import PolicyCommands
from app.connection_client import Means
from app.connections import Connections as Runner
from app.connections import pace_of
from app.gateway import Gateway
from app.group_members import Members
from app.groups import Groups
from app.links import Links
from app.live import LiveChannel
from app.observe.metrics import Metrics
from app.outcomes import Outcomes
from app.replay import Replay
from app.search.figures import figures
from app.search.index import GatewayIndex
from app.search.opening import IndexReader
from app.search.overview import Overview
from app.search.process import IndexerProcess, Orders
from app.search.service import Search
from app.settings import Settings
from app.store.ackbus import AckBus
from app.store.connections import ConnectionStore
from app.store.journal import JournalTail
from app.store.labels import LabelRegistry
from app.store.layout import check_durability, check_layout, store_id
from app.store.policies import PolicyStore
from app.store.policy_changes import PolicyChanges
from app.store.redis_client import Redis, RedisAddress
from app.store.requests import RequestStore
from app.store.twins import TwinStore
from connections.drivers import late

log = structlog.get_logger(__name__)

CLOSE_S = 1.0
"""How long connections may take to send what is left when the process ends, s."""


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
        if settings.outcomes:
            gateway.outcomes = Outcomes(
                self._redis, prefix=prefix, max_entries=settings.outcomes_max_entries
            )
        self._policies = PolicyStore(
            self._redis, prefix, shards, journal_entries=settings.journal_max_entries
        )
        self._policy_changes = PolicyChanges(address, self._policies, prefix=prefix, node=self.id)
        self._twins = TwinStore(
            self._redis,
            self._policies,
            prefix=prefix,
            shards=shards,
            node=self.id,
            max_thing_bytes=settings.max_thing_bytes,
            journal_entries=settings.journal_max_entries,
            cache_bytes=settings.twin_cache_bytes,
        )
        self._links = Links(self._redis, prefix=prefix, node=self.id, listen=settings.link)
        self._bus = AckBus(
            self._redis,
            address,
            self._links,
            prefix=prefix,
            node=self.id,
            on_ack=gateway.receive,
        )
        self._tail = JournalTail(
            self._redis,
            address,
            prefix=prefix,
            shards=shards,
            node=self.id,
            on_entry=gateway.sessions.route,
        )
        self._replay = Replay(
            address,
            prefix=prefix,
            shards=shards,
            node=self.id,
            live=lambda: self._tail.positions,
        )
        self._registry = LabelRegistry(
            self._redis, prefix, self.id, ttl_ms=int(settings.label_lease * 1000)
        )
        requests = RequestStore(
            self._redis, prefix=prefix, shards=shards, keep_ms=int(settings.async_keep * 1000)
        )
        live = LiveChannel(
            self._redis,
            self._twins,
            prefix=prefix,
            shards=shards,
            node=self.id,
            max_thing_bytes=settings.max_thing_bytes,
            journal_entries=settings.journal_max_entries,
        )
        members = Members(
            self._redis,
            gateway.sessions,
            gateway.send,
            self._registry.valid,
            prefix=prefix,
            node=self.id,
        )
        self._groups = Groups(
            self._redis,
            address,
            self._registry.list,
            members,
            requests,
            prefix=prefix,
            shards=shards,
            lease=settings.label_lease,
            limit=settings.max_pending,
            send=gateway.send,
            owed=gateway.owed,
        )
        gateway.connect(
            self._twins,
            self._bus,
            self._tail,
            self._registry,
            requests,
            live,
            self._policies,
            self._groups,
        )
        self._registry.on_lost = gateway.entrance.lost
        self._announcer = Announcer(
            self._policies, gateway, most=max(1, settings.max_pending // 10)
        )
        rules = Rules(
            settings.header_defaults,
            int(settings.max_timeout * 1000),
            int(settings.default_timeout * 1000),
        )
        self._index = GatewayIndex(
            settings.search_index.get_secret_value(),
            settings.data_dir,
            lambda: store_id(self._redis, prefix),
            timeout=settings.search_timeout,
        )
        self._reader = IndexReader(self._index.opened, self._index.check)
        gateway.index = lambda: self._index.name
        self._search = Search(self._reader, gateway, int(settings.search_timeout * 1000))
        policies = PolicyCommands(self._policies, rules, settings.max_headers_chars)
        self._desk = Desk(gateway, policies, rules, settings.max_headers_chars, search=self._search)
        self._documents = ConnectionStore(self._redis, prefix)
        self._runner = Runner(
            Means(
                self._documents,
                self._desk,
                late,
                pace_of(settings),
                settings.connection_lease,
                settings.session_outbox,
            ),
            address,
        )
        self._indexer = IndexerProcess(_orders(settings, redis_url, self.id, worker))
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
        authenticator = self._authenticator = authenticator_of(settings)
        rules = self._desk.rules
        reception = Reception(
            authenticator,
            max_body=settings.max_body_bytes,
            max_headers=settings.max_headers_chars,
        )
        self._events = events = Events(self.gateway, self._replay)
        queries = Queries(self.gateway, rules, self._search)
        things = Things(self.gateway, reception, queries, events, rules)
        messages = Messages(self.gateway, reception, events, rules)
        labels = Labels(self._registry.list, self.gateway.sessions, self.id)
        report = Report(self._redis, settings.prefix)
        self._acks = Acks(
            self.gateway, reception, labels, report, max_streams=settings.max_ack_streams
        )
        policies = Policies(self._policies, reception, rules)
        self._searching = SearchThings(
            self._search,
            Reception(authenticator, max_body=settings.max_body_bytes, max_headers=MAX_HEAD_CHARS),
            rules,
            lambda: self.gateway.draining,
        )
        websocket = WebSocket(self._desk, reception, authenticator)
        overview = Overview(self._index, self._redis, settings.prefix, settings.shards)
        rest = Rest(
            authenticator, self.health, self._metrics.render, overview.status, overview.rebuild
        ).build()
        return Front(
            things,
            messages,
            {
                "acks": self._acks,
                "connections": Connections(
                    self._documents, reception, frozenset(settings.connection_blocked_hosts)
                ),
                "policies": policies,
                "search": self._searching,
                "whoami": WhoAmI(reception),
            },
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
        self._reader.start()
        await self._policy_changes.start(deadline)
        await self._bus.start(deadline)
        await self._links.start()
        await self._registry.start()
        await self._groups.start(deadline)
        self._announcer.start()
        if self._settings.connections:
            await self._runner.start(deadline)
        self._metrics.start()
        self._indexer.start()
        self._started = True
        log.info("gateway.started", node=self.id)

    async def drain(self) -> None:
        """Finish what is open and close all sessions (flow 7)."""
        log.info("gateway.draining", node=self.id, open_requests=self.gateway.open_requests)
        await self._announcer.close()
        timeout = self._settings.drain_timeout
        # Sources stop before commands are refused, lest their messages come again for nothing.
        settled = self._runner.drain(timeout)
        await asyncio.sleep(0)
        await self.gateway.drain(timeout)
        await settled
        await self._runner.close(CLOSE_S)
        await self.gateway.dismiss()

    async def stop(self) -> None:
        """Release the labels and disconnect from the store."""
        self._started = False
        await self._announcer.close()
        await self._authenticator.close()
        await self._runner.close()
        await self._metrics.close()
        if self.gateway.outcomes is not None:
            await self.gateway.outcomes.close()
        await self._indexer.close()
        await self._reader.close()
        await self._index.close()
        await self._registry.close()
        await self._groups.close()
        await self._replay.close()
        await self._tail.close()
        await self._bus.close()
        await self._policy_changes.close()
        await self._links.close()
        await self._redis.close()
        log.info("gateway.stopped", node=self.id)

    def health(self) -> dict[str, str | None]:
        """What readiness depends on: name -> None, or why it is not fine."""
        subscribers = self._bus.connected and self._policy_changes.connected
        links = self._redis.connected and subscribers and self._tail.connected
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
            "acks_ignored": counters.acks_ignored + self.gateway.accepting.ignored,
            "acks_weak": sessions.weak.total(),
            **{f"acks_weak_by_reason_{why.value}": count for why, count in sessions.weak.items()},
            "enrichments_failed": sessions.enrichments_failed,
            "acks_recorded": self.gateway.accepting.recorded,
            "async_accepted": self.gateway.accepting.accepted,
            "async_streams": self._acks.streams,
            "labels_owned": self._registry.owned,
            "label_groups": self._groups.count,
            "redeliveries": self._groups.redelivered,
            "group_passes": self._groups.passed,
            "event_streams": self._events.streams,
            "search_streams": self._searching.streams,
            "searches": self._search.answered,
            "searches_failed": self._search.failed,
            "acks_undelivered": self._bus.lost,
            "acks_sent_link": self._bus.sent_by_link,
            "acks_sent_pubsub": self._bus.sent_by_pubsub,
            "events_delivered": sessions.delivered,
            "journal_entries": self._tail.entries,
            "journal_skipped": self._tail.skipped,
            "outcomes_recorded": self.gateway.outcomes.recorded if self.gateway.outcomes else 0,
            "outcomes_lost": self.gateway.outcomes.lost if self.gateway.outcomes else 0,
            "conflicts": self._twins.conflicts,
            "open_requests": self.gateway.open_requests,
            "sessions": len(sessions),
            "links": len(self._links),
            **self._runner.figures(),
            **figures(self._indexer),
            "ready": float(ready),
        }


def _orders(settings: Settings, redis_url: str, node: str, worker: str) -> Orders:
    """What the indexer of this process has to know."""
    return Orders(
        indexer=f"{node}-index",
        worker=worker,
        redis_url=redis_url,
        prefix=settings.prefix,
        shards=settings.shards,
        database=settings.search_index.get_secret_value(),
        data_dir=str(settings.data_dir),
        interval=settings.search_interval,
        store_timeout=settings.store_timeout,
        index_timeout=settings.search_timeout,
        link=settings.link,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
