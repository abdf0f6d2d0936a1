"""Acks for a streaming query: sent when the batch function has done its work, never before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from acks.journal import DEFAULT_PREFIX
from connections.spark.labels import LabelLease, LabelTaken
from connections.spark.sending import Ack, send
from connections.spark.store import resolve_url, shard_count

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

_NEEDED: Final = ("correlation_id", "thing_id", "origin", "requested_acks")
DEFAULT_LABEL: Final = "spark:ingested"
_PAUSE: Final = 0.2  # s between two tries to claim
_MESSAGE: Final = 200  # characters of an exception's text that leave the process


@dataclass(frozen=True, slots=True)
class Poison:
    """A row that can never be processed: its requester gets ``status`` instead of 200.

    ``status`` is 400-499, ``payload`` anything JSON can say, e.g. the reason. It is meant for all
    labels of the acknowledger that the requester waits for.
    """

    correlation_id: str
    status: int = 422
    payload: object = None

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 499:
            raise ValueError(f"a poison row's status is 400-499, not {self.status}")


class _Asking(NamedTuple):
    """A row whose requester waits for ``label``."""

    correlation_id: str
    thing_id: str
    origin: str
    label: str


BatchFunction: TypeAlias = "Callable[[DataFrame, int], Iterable[Poison] | None]"
OnFailure: TypeAlias = Literal["raise", "skip"]


@dataclass(slots=True)
class Counters:
    """What an :class:`Acknowledger` has done so far."""

    last_batch: int = -1  # id of the last batch whose function was called
    batches: int = 0  # batch functions that returned
    failures: int = 0  # batch functions that raised
    acks: int = 0  # status 200 sent
    nacks: int = 0  # any other status sent
    unheard: int = 0  # messages with acks that no gateway was listening to
    last_ack_ms: float = field(default=0.0)  # what finding and sending the last batch's acks took


class AcknowledgerClosedError(RuntimeError):
    """A batch began after :meth:`Acknowledger.close`; it runs again when the query restarts."""


def acknowledge(
    batch_fn: BatchFunction,
    label: str | Sequence[str] = DEFAULT_LABEL,
    *,
    group: str = "",
    redis_url: str | None = None,
    prefix: str = DEFAULT_PREFIX,
    on_failure: OnFailure = "raise",
    persist: bool = False,
    label_timeout: float = 0.0,
) -> Acknowledger:
    """Wrap a ``foreachBatch`` function so that it acknowledges with ``label``, or several labels.

    Queries of one ``group`` may own the same labels; without it a label has one owner.
    ``redis_url`` defaults to the environment's ``ACKGATE_REDIS_URL``. If ``batch_fn`` raises, all
    rows of the batch get 500, then the query fails (``"raise"``) or goes on (``"skip"``).
    ``persist`` is for large batches read on executors: the batch is kept in memory while its acks
    are found, so that the source is read once, and Spark picks the rows that ask for a label.
    A label that is taken is waited for up to ``label_timeout`` seconds: 9 is enough for the label
    of a job that has just crashed.
    Raises LabelTaken if somebody else owns a label, StoreError if the address is unusable, and
    GatewayError if the group's name is none.
    """
    return Acknowledger(
        batch_fn,
        label,
        group=group,
        redis_url=redis_url,
        prefix=prefix,
        on_failure=on_failure,
        persist=persist,
        label_timeout=label_timeout,
    )


class Acknowledger:
    """The callable for ``foreachBatch``; owns the labels until :meth:`close`. See acknowledge()."""

    def __init__(
        self,
        batch_fn: BatchFunction,
        label: str | Sequence[str] = DEFAULT_LABEL,
        *,
        group: str = "",
        redis_url: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        on_failure: OnFailure = "raise",
        persist: bool = False,
        label_timeout: float = 0.0,
    ) -> None:
        if on_failure not in ("raise", "skip"):
            raise ValueError(f"on_failure is 'raise' or 'skip', not {on_failure!r}")
        self.labels = (label,) if isinstance(label, str) else tuple(dict.fromkeys(label))
        if not self.labels:
            raise ValueError("an acknowledger needs a label")
        self.counters = Counters()
        self._batch_fn = batch_fn
        self._url = resolve_url(redis_url)
        self._prefix = prefix
        self._skip = on_failure == "skip"
        self._persist = persist
        self._busy = threading.Lock()
        self._closed = False
        self._checked = False
        self._shards = 0  # read when an accepted request is acknowledged for the first time
        self._columns: list[Column] | None = None  # built once: 1 ms each in the JVM
        self._lease = self._claim(group, time.monotonic() + label_timeout)

    def _claim(self, group: str, deadline: float) -> LabelLease:
        while True:
            try:
                return LabelLease(self._url, self._prefix, self.labels, group=group)
            except LabelTaken:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run the batch function on one batch, then send its acks.

        Raises what the batch function raised (on_failure="raise"), LabelTaken or LabelLost if a
        label is not ours any more (before the batch function, so nothing is done twice unseen),
        and redis.RedisError if the acks could not be sent: the batch then runs again.
        """
        with self._busy:
            if self._closed:
                raise AcknowledgerClosedError(f"closed before batch {batch_id}")
            self._lease.check()
            if not self._checked:
                _check_columns(df)
                self._checked = True
            if self._persist:
                df.persist()
            try:
                self._run(df, batch_id)
            finally:
                if self._persist:
                    df.unpersist()

    def _run(self, df: DataFrame, batch_id: int) -> None:
        self.counters.last_batch = batch_id
        try:
            poison = _poison(self._batch_fn(df, batch_id))
        except Exception as failure:
            self.counters.failures += 1
            self._failed(df, batch_id, failure)
            if not self._skip:
                raise
            log.exception("batch %d failed and is skipped", batch_id)
            return
        self.counters.batches += 1
        self._send(self._asking(df), 200, None, poison)

    def _failed(self, df: DataFrame, batch_id: int, failure: Exception) -> None:
        message = f"{type(failure).__name__}: {failure}".splitlines()[0][:_MESSAGE]
        try:
            self._send(self._asking(df), 500, {"message": message, "batchId": batch_id}, {})
        except Exception:
            # The failure itself is what the user must see; whoever waits runs into the timeout.
            log.exception("no negative acks for batch %d", batch_id)

    def _asking(self, df: DataFrame) -> list[_Asking]:
        """The rows whose requester waits for one of the labels, once for each of these labels.

        Four narrow columns go to the driver as Arrow and are filtered here: planning a filter costs
        Spark 10 ms a batch, more than it saves up to some ten thousand rows (docs/spark.md).
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyspark.sql import functions as f

        if self._columns is None:
            self._columns = [f.col(name) for name in _NEEDED]
        if self._persist:
            labels = f.array(*map(f.lit, self.labels))
            df = df.where(f.arrays_overlap("requested_acks", labels))
        table = df.select(*self._columns).toArrow()
        asked = table.column("requested_acks").combine_chunks()
        flat = pc.list_flatten(asked)
        ours = pc.is_in(flat, value_set=pa.array(self.labels, pa.string()))
        asking = table.take(pc.list_parent_indices(asked).filter(ours))
        columns = [asking.column(name).to_pylist() for name in _NEEDED[:3]]
        # A header may name a label twice; the gateway wants one ack.
        rows = dict.fromkeys(zip(*columns, flat.filter(ours).to_pylist(), strict=True))
        return [_Asking(*row) for row in rows if row[2]]

    def _send(
        self,
        rows: Sequence[_Asking],
        status: int,
        payload: object,
        poison: dict[str, Poison],
    ) -> None:
        """Send one status for all ``rows`` except the poisoned ones, in one round trip."""
        if not rows:
            return
        begun = time.perf_counter()
        self._lease.check()
        acks = []
        for row in rows:
            bad = poison.get(row.correlation_id)
            verdict = (status, payload) if bad is None else (bad.status, bad.payload)
            acks.append(Ack(*row, *verdict))
        self.counters.unheard += send(self._url, self._prefix, acks, self._shard_count)
        nacks = sum(ack.status != 200 for ack in acks)
        self.counters.nacks += nacks
        self.counters.acks += len(acks) - nacks
        self.counters.last_ack_ms = (time.perf_counter() - begun) * 1000

    def _shard_count(self) -> int:
        if not self._shards:
            self._shards = shard_count(self._url, self._prefix)
        return self._shards

    def close(self, deadline: float = 30.0) -> None:
        """Wait up to ``deadline`` seconds for the batch that runs, then release the labels.

        Batches that begin afterwards are refused; stop the query next. Does nothing the second
        time.
        """
        finished = self._busy.acquire(timeout=deadline)
        self._closed = True
        if finished:
            self._busy.release()
        else:
            log.warning("a batch still runs after %s s; its acks will not be sent", deadline)
        self._lease.close()

    def __enter__(self) -> Acknowledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_columns(df: DataFrame) -> None:
    missing = [name for name in _NEEDED if name not in df.columns]
    if missing:
        raise ValueError(
            f"acks need the columns {', '.join(_NEEDED)}; the batch lacks {', '.join(missing)}"
        )


def _poison(returned: Iterable[Poison] | None) -> dict[str, Poison]:
    """The rows the batch function gave back, by correlation-id."""
    found: dict[str, Poison] = {}
    for row in returned or ():
        if not isinstance(row, Poison):
            raise TypeError(
                f"a batch function returns None or Poison rows, not {type(row).__name__}"
            )
        found[row.correlation_id] = row
    return found
