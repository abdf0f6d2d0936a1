"""Keeps the labels of queries with an ack sink while they run, and frees them when they stop.

Spark tells a sink neither that its query has started nor that it has stopped, and calls it for
batches only, of which an idle query has none. So a thread of the driver's Python looks which
queries run. (A StreamingQueryListener would hear of it sooner, but it makes Spark carry a report of
every batch of every query to Python, which costs more than a small batch.)
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import redis
from py4j.protocol import Py4JError

from acks.errors import GatewayError
from connections.spark.labels import LabelTaken
from connections.spark.query_labels import TTL, QueryLabels
from connections.spark.sink import NAME, sink_options
from connections.spark.store import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_LOOK: Final = 0.5  # s between two looks at the queries
_RENEW: Final = 4  # looks between two renewals
_GONE: Final = 20  # looks that fail one behind the other: nobody will answer any more
_WRITE: Final = "WriteToMicroBatchDataSource"
_keepers: dict[int, LabelKeeper] = {}


def keep_labels(spark: SparkSession) -> None:
    """Keep the labels of the queries of this session from now on; once for each session.

    A session without a JVM in reach (Spark Connect) is left alone.
    """
    if getattr(spark, "_jsparkSession", None) is None:
        return
    keeper = _keepers.get(id(spark))
    if keeper is None or not keeper.is_alive:
        _keepers[id(spark)] = LabelKeeper(spark)


class LabelKeeper:
    """The thread, from construction to the end of the session or :meth:`close`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._ended = threading.Event()
        self._kept: dict[str, QueryLabels | None] = {}  # by run; None: not a sink of ours
        self._lost: set[str] = set()  # runs whose trouble has been told
        self._thread = threading.Thread(target=self._keep, name="ackgate-labels", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        """Whether it still looks after the session."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Free all labels; does nothing the second time."""
        self._ended.set()
        self._thread.join()
        atexit.unregister(self.close)

    def _keep(self) -> None:
        looks = failed = 0
        try:
            while not self._ended.wait(_LOOK):
                try:
                    self._look(looks % _RENEW == 0)
                    failed = 0
                except Exception as problem:  # noqa: BLE001  # one bad look must not be the last
                    failed += 1
                    # How a session that has been stopped, or a JVM that has ended, shows itself.
                    if self._spark._sc._jsc is None or failed > _GONE:
                        log.debug("the session has ended: %s", problem)
                        return
                    if failed == 1:
                        log.warning("labels cannot be looked after: %r", problem)
                looks += 1
        finally:
            for run in [*self._kept]:
                self._free(run)

    def _look(self, renew: bool) -> None:
        running = {query.runId().toString(): query for query in self._queries()}
        for run in [run for run in self._kept if run not in running]:
            self._free(run)
        for run, query in running.items():
            is_new = run not in self._kept
            if is_new:
                try:
                    self._kept[run] = self._labels(run, query)
                except Py4JError:
                    continue  # not planned yet; the next look sees it
            labels = self._kept[run]
            if labels is not None and (is_new or renew):
                self._hold(run, labels)

    def _queries(self) -> list[Any]:
        return list(self._spark._jsparkSession.streams().active())

    def _labels(self, run: str, query: Any) -> QueryLabels | None:
        """What the query's sink declares, as its plan says; Spark has no public way to ask."""
        plan = query.streamingQuery().logicalPlan()
        if plan.getClass().getSimpleName() != _WRITE or plan.table().name() != NAME:
            return None
        jvm: Any = self._spark._jvm
        options: Mapping[str, str] = jvm.scala.jdk.javaapi.CollectionConverters.asJava(
            plan.writeOptions()
        )
        try:
            return sink_options(dict(options)).labels_of(query.id().toString(), run)
        except (ValueError, StoreError):
            return None  # the query's first batch says what is wrong

    def _hold(self, run: str, labels: QueryLabels) -> None:
        try:
            labels.hold()
        except (LabelTaken, GatewayError, redis.RedisError) as problem:
            # The query itself fails when it has acks to send, unless it is over by then.
            if run not in self._lost:
                log.warning("labels of query %s not held: %s", labels.query, problem)
            self._lost.add(run)
        else:
            self._lost.discard(run)

    def _free(self, run: str) -> None:
        labels = self._kept.pop(run)
        self._lost.discard(run)
        if labels is None:
            return
        try:
            labels.free()
        except redis.RedisError as problem:
            log.warning("labels not released, they expire in %s s: %s", TTL, problem)
