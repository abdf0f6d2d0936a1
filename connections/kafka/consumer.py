"""Reads from Kafka in a thread of its own, and commits what is settled.

librdkafka's consumer belongs to one thread at a time, and everything of a group's rebalancing
happens while it is polled. So one thread polls, seeks, pauses and commits; messages go to the event
loop, at most ``in_flight`` of them at a time, and settlements come back by a queue.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from acks.settlement import Settlement
from connections.driver import Delivery, Limits, OnDelivery, OnLost, OnStatus, OpenError
from connections.kafka.errors import is_refusal
from connections.kafka.message import delivery, expired
from connections.kafka.options import Options
from connections.kafka.partition import Partition, Token
from connections.kafka.reach import Link, error_of
from connections.kafka.threads import Inbox, Loop, library_log
from connections.model import Source

log = structlog.get_logger(__name__)

_POLL_S = 0.1  # bounds how late a commit or a seek is when nothing comes
_COMMIT_S = 0.2  # between commits
_FULL_S = 0.5  # after how long without room reading is paused
_MISSING_S = 60.0  # after how long a message that was given back is missing
WINDOW = 10  # times in_flight: finished messages beyond one that is not
_REBALANCING = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
    }
)


class Reader:
    """One consumer of a group and its thread. Methods are called on the event loop."""

    def __init__(
        self,
        options: Options,
        sources: Mapping[str, Source],
        generation: int,
        limits: Limits,
        tell: tuple[OnDelivery, OnLost, OnStatus],
    ) -> None:
        self.late = 0  # settlements that met a partition that was revoked meanwhile
        self.withheld = 0  # messages not committed, but for those that are given out
        self._sources = sources
        self._generation = generation
        self._limits = limits
        self._on_delivery, self._on_lost, self._on_status = tell
        self._inbox: Inbox[tuple[Token, Settlement]] = Inbox()
        self._stopping = threading.Event()
        self._loop = Loop(self._stopping)
        # From here on everything is the thread's.
        self._partitions: dict[tuple[str, int], Partition[Message]] = {}
        self._open = 0
        self._link = Link(self._stopping, next(iter(sources)))
        self._unwell: set[str] = set()
        self._paused = False
        self._lost = False
        self._next_commit = 0.0
        self._grace_s = 0.0
        self._consumer = Consumer(
            {**options, "error_cb": self._link.problems.append, "on_commit": self._committed},
            logger=library_log,
        )
        self._thread = threading.Thread(target=self._run, name="kafka-reader", daemon=True)

    @property
    def opened(self) -> asyncio.Future[None]:
        """Done when the broker has answered, or holds an OpenError."""
        return self._loop.opened

    @property
    def ended(self) -> asyncio.Future[None]:
        """Done when the thread has ended."""
        return self._loop.ended

    def start(self) -> None:
        """Begin; what comes of it is told by ``opened``."""
        self._thread.start()

    def settle(self, token: Token, settlement: Settlement) -> None:
        """Tell the thread."""
        self._inbox.put((token, settlement))

    def stop(self, grace_s: float) -> None:
        """Have the thread commit what is settled, leave the group and end.

        It takes half of ``grace_s`` for a commit that the group does not take at once.
        """
        self._grace_s = grace_s / 2
        self._stopping.set()
        self._inbox.wake()
        if self._thread.ident is None:
            self._loop.tell_end()

    # --- the thread

    def _run(self) -> None:
        try:
            self._link.reach(self._consumer)
            self._consumer.subscribe(
                list(self._sources),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._taken_away,
            )
            self._loop.tell_open()
            while not self._stopping.is_set() and not self._lost:
                self._turn()
            if not self._lost:
                self._finish()
        except OpenError as problem:
            self._loop.tell_open(problem)
        except KafkaException as problem:
            self._lose(error_of(problem).str())
        finally:
            self._consumer.close()
            self._loop.tell_end()

    def _finish(self) -> None:
        """Commit what is settled; while the group rebalances, it takes no commits."""
        end = time.monotonic() + self._grace_s
        while True:
            self._settle_all()
            try:
                self._commit(wait=True)
                return
            except KafkaException as problem:
                if time.monotonic() > end or not _later(error_of(problem)):
                    log.warning("kafka.commit_failed", reason=error_of(problem).str())
                    return
            self._consumer.poll(_POLL_S)  # takes part; what is read is not given out any more

    def _turn(self) -> None:
        self._settle_all()
        broken = self._link.broken(self._consumer)
        if broken is not None:
            self._lose(broken)
            return
        now = time.monotonic()
        self._seek(now)
        if now >= self._next_commit:
            self._next_commit = now + _COMMIT_S
            self._commit()
        self._give_out()
        room = self._limits.in_flight - self._open
        if room > 0:
            self._read(room)
            self._give_out()
        else:
            self._wait_for_room(now)
        unsettled = sum(each.unsettled for each in self._all())
        self.withheld = max(0, unsettled - self._open)

    def _all(self) -> list[Partition[Message]]:
        return list(self._partitions.values())

    def _read(self, room: int) -> None:
        if self._paused:
            self._paused = False
            self._resume([each for each in self._all() if not each.paused])
        # One by one: what consume() gathers may be of partitions that were revoked meanwhile.
        message = self._consumer.poll(_POLL_S)
        while message is not None:
            self._keep(message)
            room -= 1
            message = self._consumer.poll(0) if room > 0 else None

    def _wait_for_room(self, now: float) -> None:
        for partition in self._all():
            partition.patient(now)
        if self._inbox.wait(_FULL_S):
            return
        # The group takes partitions away from who does not poll for minutes.
        self._paused = True
        self._consumer.pause([_at(each) for each in self._all()])
        message = self._consumer.poll(0)
        if message is not None:
            self._keep(message)

    def _keep(self, message: Message) -> None:
        """What was polled is a message, or an error."""
        problem = message.error()
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if problem is not None:
            self._told(problem, topic)
        elif topic is not None and number is not None and offset is not None:
            partition = self._partitions.get((topic, number))
            if partition is not None:
                partition.read(offset, message)
                if partition.began_anew:
                    self._lose(f"The topic {topic} was made anew.")

    def _told(self, problem: KafkaError, topic: str | None) -> None:
        if problem.fatal() or is_refusal(problem):
            self._lose(problem.str())
        elif topic is not None and topic in self._sources:
            self._unwell.add(topic)
            self._loop.post(self._on_status, "source", topic, False, problem.str())
        else:
            log.warning("kafka.error", reason=problem.str())

    # --- giving out

    def _give_out(self) -> None:
        for partition in self._all():
            batch: list[tuple[Token, Message]] = []
            while self._open < self._limits.in_flight:
                found = partition.next()
                if found is None:
                    break
                offset, message = found
                if self._skipped(message):
                    partition.finish(offset)
                    continue
                self._open += 1
                batch.append((Token(partition, offset), message))
            if batch:
                self._hand_over(self._sources[partition.topic], batch)
            self._hold_or_go_on(partition)

    def _hold_or_go_on(self, partition: Partition[Message]) -> None:
        """Do not read what there is no room for in the partition's own window."""
        if partition.stuck and not partition.paused:
            partition.paused = True
            self._consumer.pause([_at(partition)])
        elif partition.paused and not partition.stuck:
            partition.paused = False
            if not self._paused:
                self._resume([partition])

    def _skipped(self, message: Message) -> bool:
        """Whether a message is done without being handled."""
        if expired(message, time.time()):
            return True
        size, most = len(message.value() or b""), self._limits.message_bytes
        if size > most:
            text = f"A message of {size} bytes, more than {most}, was left out."
            self._loop.post(self._on_status, "source", message.topic(), True, text)
            return True
        return False

    def _hand_over(self, source: Source, batch: list[tuple[Token, Message]]) -> None:
        settles = source.qos != 0  # at least once, unless the document says otherwise
        if not settles:  # at most once: committed before anybody has seen it
            for token, _ in batch:
                token.settled = True
                token.partition.finish(token.offset)
            self._commit(wait=True)
        made = [
            delivery(message, source, token, self._generation, settles) for token, message in batch
        ]
        self._loop.post(self._deliver, made)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """On the event loop."""
        for each in deliveries:
            if not self._stopping.is_set():
                self._on_delivery(each)
            if not each.settles:
                self._inbox.put((each.token, Settlement.ACCEPT))

    # --- settling

    def _settle_all(self) -> None:
        now = time.monotonic()
        for token, settlement in self._inbox.take():
            self._open -= 1
            if not token.partition.alive:
                self.late += 1
            elif settlement is Settlement.REDELIVER:
                token.partition.give_back(token.offset, now)
            else:
                token.partition.finish(token.offset)

    def _seek(self, now: float) -> None:
        for partition in self._all():
            offset = partition.due(now)
            if offset is not None:
                try:
                    self._consumer.seek(TopicPartition(partition.topic, partition.number, offset))
                except KafkaException as problem:
                    log.info("kafka.seek_failed", reason=str(problem))  # it is due again
                    continue
                partition.sought(offset, now)
            elif partition.overdue(now, _MISSING_S):
                self._lose("A message that was given back has not come again.")

    def _commit(self, *, wait: bool = False) -> None:
        self._commit_of(self._all(), wait)

    def _commit_of(self, partitions: list[Partition[Message]], wait: bool) -> None:
        """Commit what is new. Raises KafkaException if it is waited for and fails."""
        offsets: list[TopicPartition] = []
        for partition in partitions:
            offset = partition.uncommitted()
            if offset is not None:
                offsets.append(TopicPartition(partition.topic, partition.number, offset))
                partition.committed(offset)
        if not offsets:
            return
        if not wait:
            self._consumer.commit(offsets=offsets, asynchronous=True)
            return
        try:
            for done in self._consumer.commit(offsets=offsets, asynchronous=False):
                if done.error is not None:
                    raise KafkaException(done.error)
        except KafkaException:
            for each in partitions:
                each.committed(None)
            raise

    def _committed(self, problem: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """What became of a commit; told in the thread, while it polls."""
        for each in offsets:
            failure = problem or each.error
            partition = self._partitions.get((each.topic, each.partition))
            if failure is not None and partition is not None:
                log.info("kafka.commit_failed", reason=failure.str())
                partition.committed(None)

    # --- the group's partitions come and go, while it is polled

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        window = WINDOW * self._limits.in_flight
        for each in partitions:
            key = (each.topic, each.partition)
            self._partitions[key] = Partition(each.topic, each.partition, window)
            if each.topic in self._unwell:
                self._unwell.discard(each.topic)
                self._loop.post(self._on_status, "source", each.topic, True, "")

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._settle_all()
        gone = self._forget(partitions)
        if self._lost:
            return
        try:
            self._commit_of(gone, wait=True)
        except KafkaException as problem:
            log.info("kafka.commit_failed", reason=str(problem))

    def _taken_away(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> list[Partition[Message]]:
        gone: list[Partition[Message]] = []
        for each in partitions:
            partition = self._partitions.pop((each.topic, each.partition), None)
            if partition is not None:
                partition.alive = False
                gone.append(partition)
        return gone

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._loop.post(self._on_lost, reason)

    def _resume(self, partitions: list[Partition[Message]]) -> None:
        if partitions:
            self._consumer.resume([_at(each) for each in partitions])


def _later(problem: KafkaError) -> bool:
    """Whether a commit may succeed a little later."""
    return problem.code() in _REBALANCING or problem.retriable()


def _at(partition: Partition[Message]) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)
