"""Metrics for Prometheus: plain numbers on the hot path, library objects when somebody asks.

Every worker process puts its numbers into the store every few seconds; the one that is asked shows
its own, fresh, beside those of its siblings. Series carry the label ``worker``, so that a worker's
restart looks like what it is.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import structlog
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from app.store.redis_client import Redis, Reply, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

SHARE_EVERY = 2.0
"""Seconds between two copies of a worker's numbers in the store."""
KEPT_MS = 15_000
"""How long the copy of a silent worker is shown, ms."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

COUNTERS = {
    "submitted": "Commands taken in.",
    "refused": "Commands refused because of draining or too many open requests.",
    "expired": "Requests whose timeout ended the wait.",
    "acks_accepted": "Acknowledgements that counted for a request of this process.",
    "acks_ignored": "Acknowledgements that were late, repeated or not asked for.",
    "acks_weak": "Weak acknowledgements issued for this process's subscribers.",
    "acks_recorded": "Acknowledgements that counted for an accepted request (respond-async).",
    "async_accepted": "Requests accepted with Prefer: respond-async.",
    "acks_undelivered": "Messages with acks for other processes that nobody received.",
    "enrichments_failed": "Signals sent as errors, because the twin could not be read.",
    "events_delivered": "Events put into outboxes of subscribers.",
    "journal_entries": "Journal entries read.",
    "journal_skipped": "Journal entries that could not be read.",
    "redeliveries": "Signals given to another member of a label group because theirs was gone.",
    "group_passes": "Members of label groups that did not want the signal chosen for them.",
    "outcomes_recorded": "Finished requests with acks whose outcome was kept for the ack report.",
    "outcomes_lost": "Finished requests with acks whose outcome could not be kept.",
    "connection_claims": "Clients of connections that this process has begun to run.",
    "connection_signals_dropped": "Signals for which targets of connections had no room.",
    "searches": "Pages and counts that searches were answered with.",
    "searches_failed": "Searches that took too long, or that found no index.",
    "search_entries": "Journal entries that the indexer of this process has read.",
    "search_entries_skipped": "Those of them that could not be read.",
    "search_batches": "Batches written into the search index.",
    "search_things_written": "Things written into the search index, or removed from it.",
    "search_things_unchanged": "Things that were in the search index as they are already.",
    "search_things_failed": "Things that could not be written into the search index.",
    "search_rebuilds_finished": "Shards of the search index built anew.",
    "search_shards_taken": "Shards of the search index that this process has begun to index.",
    "search_acks": "Acknowledgements search-persisted issued, of any status.",
    "search_acks_lost": "Acknowledgements search-persisted that the store would not take.",
    "search_indexer_restarts": "Times the indexer of this process has ended by itself.",
    "conflicts": "Changes computed again because the thing had changed meanwhile.",
}
GAUGES = {
    "open_requests": "Requests that wait for their outcome.",
    "sessions": "Connected subscribers.",
    "links": "Open links on which this process sends acks to others.",
    "labels_owned": "Declared labels that subscribers of this process own.",
    "label_groups": "Label groups with members anywhere.",
    "connection_clients": "Clients of connections that this process runs.",
    "connection_clients_open": "Those of them that are connected with their broker.",
    "connection_unsettled": "Messages taken from brokers that are not settled yet.",
    "async_streams": "Open event streams of accepted requests.",
    "event_streams": "Open event streams of things and messages; each is a session.",
    "search_streams": "Open event streams of searches.",
    "search_indexer_up": "1 if the indexer of this process is at work.",
    "search_shards": "Shards of the search index that this process indexes.",
    "search_rebuilding": "Shards of the search index that this process builds anew.",
    "ready": "1 if the process is ready to serve.",
}
MESSAGES = "connection_messages_"
"""Begins the figures of connections: direction, type and outcome follow."""
LAG = "search_lag_seconds_"
"""Begins the figures of the lag of the search index; the number of the shard follows."""
WAYS = ("link", "pubsub")
"""How acks reach another process."""
REASONS = ("unauthorized", "unsubscribed", "filtered", "hidden")
"""Why weak acks are issued: the subscriber may not read the signal, does not want its kind or
namespace, its filter does not fit, or nothing is left of what it may read."""


class RequestMetrics:
    """Counts HTTP requests by status and the duration of the hot ones."""

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def observe(self, hot: bool, status: int, seconds: float) -> None:
        """Count one request."""
        self.by_status[status] = self.by_status.get(status, 0) + 1
        if hot:
            self.buckets[bisect_left(BUCKETS, seconds)] += 1
            self.seconds += seconds


class _Families(Collector):
    def __init__(self, snapshots: dict[str, dict[str, Any]]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        """One family per metric, one sample per worker."""
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"ackgate_{name}", text, labels=["worker"])
            for worker, snapshot in self._snapshots.items():
                counter.add_metric([worker], snapshot["values"].get(name, 0))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"ackgate_{name}", text, labels=["worker"])
            for worker, snapshot in self._snapshots.items():
                gauge.add_metric([worker], snapshot["values"].get(name, 0))
            yield gauge
        yield self._split("acks_sent", "Acknowledgements sent to other processes.", "way", WAYS)
        yield self._split(
            "acks_weak_by_reason", "Weak acknowledgements by their reason.", "reason", REASONS
        )
        yield self._connections()
        yield self._lag()
        requests = CounterMetricFamily(
            "ackgate_http_requests", "HTTP requests answered.", labels=["worker", "status"]
        )
        seconds = HistogramMetricFamily(
            "ackgate_thing_request_seconds",
            "Time to answer a request on a thing, waiting for acks included.",
            labels=["worker"],
        )
        for worker, snapshot in self._snapshots.items():
            for status, number in snapshot["by_status"].items():
                requests.add_metric([worker, str(status)], number)
            total, pairs = 0, []
            for bound, number in zip((*BUCKETS, "+Inf"), snapshot["buckets"], strict=True):
                total += number
                pairs.append((str(bound), total))
            seconds.add_metric([worker], pairs, snapshot["seconds"])
        yield requests
        yield seconds

    def _connections(self) -> Metric:
        """What connections have done with messages; the figures begin with :data:`MESSAGES`."""
        family = CounterMetricFamily(
            "ackgate_connection_messages",
            "Messages and signals of connections, by what was done with them.",
            labels=["worker", "direction", "type", "outcome"],
        )
        for worker, snapshot in self._snapshots.items():
            for name, figure in snapshot["values"].items():
                if name.startswith(MESSAGES):
                    family.add_metric([worker, *name[len(MESSAGES) :].split("_")], figure)
        return family

    def _lag(self) -> Metric:
        """How far the index is behind, by shard: each shard is shown by who indexes it."""
        family = GaugeMetricFamily(
            "ackgate_search_lag_seconds",
            "Age of the oldest change that is not in the search index.",
            labels=["worker", "shard"],
        )
        for worker, snapshot in self._snapshots.items():
            for name, figure in snapshot["values"].items():
                if name.startswith(LAG):
                    family.add_metric([worker, name[len(LAG) :]], figure)
        return family

    def _split(self, name: str, text: str, label: str, values: Iterable[str]) -> Metric:
        """A counter with one more label; the figure of each of its values is ``name_value``."""
        family = CounterMetricFamily(f"ackgate_{name}", text, labels=["worker", label])
        for worker, snapshot in self._snapshots.items():
            for value in values:
                figure = snapshot["values"].get(f"{name}_{value}", 0)
                family.add_metric([worker, value], figure)
        return family


class Metrics:
    """A worker's numbers, shared with its siblings of the same ``instance`` through the store.

    ``values()`` returns the current counters and gauges by name.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        prefix: str,
        instance: str,
        worker: str,
        values: Callable[[], dict[str, float]],
        siblings: bool,
    ) -> None:
        self.requests = RequestMetrics()
        self._redis = redis
        self._key = f"{prefix}:metrics:{instance}"
        self._worker = worker
        self._values = values
        self._siblings = siblings
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to share, if there are siblings; to be called in the event loop."""
        if self._siblings:
            self._task = asyncio.create_task(self._share(), name="metrics-share")

    async def close(self) -> None:
        """Stop sharing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def snapshot(self) -> dict[str, Any]:
        """This worker's numbers as a JSON object."""
        return {
            "values": self._values(),
            "by_status": {str(k): v for k, v in self.requests.by_status.items()},
            "buckets": self.requests.buckets,
            "seconds": self.requests.seconds,
        }

    async def render(self) -> bytes:
        """The exposition text for all workers of this instance."""
        snapshots: dict[str, dict[str, Any]] = {}
        stored: Reply = []
        try:
            if self._siblings:
                stored = await self._redis.call("HGETALL", self._key, timeout=1.0)
        except (StoreUnavailable, StoreError):
            stored = []  # the store is down: our own numbers are all we can show
        if isinstance(stored, list):
            now = asyncio.get_running_loop().time()
            for name, text in zip(stored[::2], stored[1::2], strict=True):
                assert isinstance(name, bytes)
                assert isinstance(text, bytes)
                copy = orjson.loads(text)
                if now - copy["at"] < KEPT_MS / 1000:
                    snapshots[name.decode()] = copy
        snapshots[self._worker] = self.snapshot()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(dict(sorted(snapshots.items()))))
        return generate_latest(registry)

    async def _share(self) -> None:
        # The monotonic clock is one for all processes of a machine, and an instance is on one.
        while True:
            copy = {**self.snapshot(), "at": asyncio.get_running_loop().time()}
            try:
                await self._redis.call("HSET", self._key, self._worker, orjson.dumps(copy))
                await self._redis.call("PEXPIRE", self._key, KEPT_MS)
            except (StoreUnavailable, StoreError) as problem:
                log.debug("metrics.not_shared", reason=str(problem))
            await asyncio.sleep(SHARE_EVERY)
