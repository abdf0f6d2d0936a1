"""Acks for a streaming query: sent when the batch function has done its work, never before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson

from acks.accepted import field_of, value_json
from acks.journal import ASYNC, DEFAULT_PREFIX, ack_channel, request_key, shard_of
from acks.signals import Acknowledgement
from connections.spark.labels import LabelLease
from connections.spark.store import calls, resolve_url, shard_count

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

_NEEDED: Final = ("correlation_id", "thing_id", "origin", "requested_acks")
_RECORDS: Final = 1000  # records of one message: bounds what a gateway must parse at once
_TAKE: Final = (
    files("acks").joinpath("accepted.lua").read_text(encoding="utf-8")
    + "\nreturn take(KEYS[1], ARGV[1], ARGV[2])\n"
)
_TAKE_SHA: Final = sha1(_TAKE.encode(), usedforsecurity=False).hexdigest()
_MESSAGE: Final = 200  # characters of an exception's text that leave the process


@dataclass(frozen=True, slots=True)
class Poison:
    """A row that can never be processed: its requester gets ``status`` instead of 200.

    ``status`` is 400-499, ``payload`` anything JSON can say, e.g. the reason.
    """

    correlation_id: str
    status: int = 422
    payload: object = None

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 499:
            raise ValueError(f"a poison row's status is 400-499, not {self.status}")


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
    label: str,
    *,
    redis_url: str | None = None,
    prefix: str = DEFAULT_PREFIX,
    on_failure: OnFailure = "raise",
    persist: bool = False,
) -> Acknowledger:
    """Wrap a ``foreachBatch`` function so that it acknowledges with ``label``.

    ``redis_url`` defaults to the environment's ``ACKGATE_REDIS_URL``. If ``batch_fn`` raises, all
    rows of the batch get 500, then the query fails (``"raise"``) or goes on (``"skip"``).
    ``persist`` is for large batches read on executors: the batch is kept in memory while its acks
    are found, so that the source is read once, and Spark picks the rows that ask for the label.
    Raises LabelTaken if somebody else owns the label, StoreError if the address is unusable.
    """
    return Acknowledger(
        batch_fn,
        label,
        redis_url=redis_url,
        prefix=prefix,
        on_failure=on_failure,
        persist=persist,
    )


class Acknowledger:
    """The callable for ``foreachBatch``; owns the label until :meth:`close`. See acknowledge()."""

    def __init__(
        self,
        batch_fn: BatchFunction,
        label: str,
        *,
        redis_url: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        on_failure: OnFailure = "raise",
        persist: bool = False,
    ) -> None:
        if on_failure not in ("raise", "skip"):
            raise ValueError(f"on_failure is 'raise' or 'skip', not {on_failure!r}")
        self.label = label
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
        self._lease = LabelLease(self._url, prefix, [label])

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run the batch function on one batch, then send its acks.

        Raises what the batch function raised (on_failure="raise"), LabelTaken or LabelLost if the
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

    def _asking(self, df: DataFrame) -> list[tuple[str, str, str]]:
        """Correlation-id, thing id and origin of the rows whose requester waits for this label.

        Four narrow columns go to the driver as Arrow and are filtered here: planning a filter costs
        Spark 10 ms a batch, more than it saves up to some ten thousand rows (docs/spark.md).
        """
        import pyarrow.compute as pc
        from pyspark.sql import functions as f

        if self._columns is None:
            self._columns = [f.col(name) for name in _NEEDED]
        if self._persist:
            df = df.where(f.array_contains("requested_acks", self.label))
        table = df.select(*self._columns).toArrow()
        labels = table.column("requested_acks").combine_chunks()
        rows = pc.list_parent_indices(labels).filter(pc.equal(pc.list_flatten(labels), self.label))
        asking = table.take(rows.unique())
        return [
            (correlation_id, thing_id, origin)
            for correlation_id, thing_id, origin in zip(
                *(asking.column(name).to_pylist() for name in _NEEDED[:3]), strict=True
            )
            if origin
        ]

    def _send(
        self,
        rows: Sequence[tuple[str, str, str]],
        status: int,
        payload: object,
        poison: dict[str, Poison],
    ) -> None:
        """Send one status for all ``rows`` except the poisoned ones, in one round trip."""
        if not rows:
            return
        begun = time.perf_counter()
        self._lease.check()
        by_origin: dict[str, list[list[Any]]] = {}
        for correlation_id, thing_id, origin in rows:
            bad = poison.get(correlation_id)
            record = self._record(
                correlation_id,
                thing_id,
                status if bad is None else bad.status,
                payload if bad is None else bad.payload,
            )
            by_origin.setdefault(origin, []).append(record)
        accepted = self._accepted(by_origin.pop(ASYNC, []))
        published = [
            (
                "PUBLISH",
                ack_channel(self._prefix, origin),
                orjson.dumps(records[start : start + _RECORDS]),
            )
            for origin, records in by_origin.items()
            for start in range(0, len(records), _RECORDS)
        ]
        heard = calls(self._url, [*accepted, *published])[len(accepted) :]
        self.counters.unheard += heard.count(0)
        nacks = len(rows) if status != 200 else sum(row[0] in poison for row in rows)
        self.counters.nacks += nacks
        self.counters.acks += len(rows) - nacks
        self.counters.last_ack_ms = (time.perf_counter() - begun) * 1000

    def _accepted(self, records: Sequence[list[Any]]) -> list[tuple[str | bytes | int, ...]]:
        """Commands that add acks to the records of accepted requests, for which no gateway waits.

        As Redis forgets scripts, the script is loaded in the same round trip.
        """
        if not records:
            return []
        if not self._shards:
            self._shards = shard_count(self._url, self._prefix)
        commands: list[tuple[str | bytes | int, ...]] = [("SCRIPT", "LOAD", _TAKE)]
        for correlation_id, label, thing_id, status, headers, *payload in records:
            told = payload[0] if payload else None
            ack = Acknowledgement(label, thing_id, correlation_id, status, told, headers)
            key = request_key(self._prefix, shard_of(thing_id, self._shards), correlation_id)
            value = orjson.dumps(value_json(ack))
            commands.append(("EVALSHA", _TAKE_SHA, 1, key, field_of(ack), value))
        return commands

    def _record(
        self, correlation_id: str, thing_id: str, status: int, payload: object
    ) -> list[Any]:
        headers = {"correlation-id": correlation_id}
        if payload is None:
            return [correlation_id, self.label, thing_id, status, headers]
        headers["content-type"] = "application/json"
        return [correlation_id, self.label, thing_id, status, headers, payload]

    def close(self, deadline: float = 30.0) -> None:
        """Wait up to ``deadline`` seconds for the batch that runs, then release the label.

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
