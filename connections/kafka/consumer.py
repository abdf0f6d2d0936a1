"""Reads from Kafka in a thread of its own, and commits what is settled.

librdkafka's consumer belongs to one thread at a time, and everything of a group's rebalancing
happens while it is polled. So one thread polls, seeks, pauses and commits; messages go to the event
loop, at most ``in_flight`` of them at a time, and settlements come back by a queue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from typing_extensions import override

from acks.settlement import Settlement
from connections.driver import Delivery, Limits, OnDelivery, OnLost, OnStatus
from connections.expiry import expired
from connections.kafka.errors import is_refusal
from connections.kafka.message import delivery
from connections.kafka.options import Options
from connections.kafka.partition import Partition, Token
from connections.kafka.reach import Link, error_of
from connections.kafka.threads import Inbox, Worker, library_log
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


class Reader(Worker):
    """One consumer of a group."""

    def __init__(
        self,
        options: Options,
        sources: Mapping[str, Source],
        generation: int,
        limits: Limits,
        tell: tuple[OnDelivery, OnLost, OnStatus],
    ) -> None:
        self._on_delivery, on_lost, self._on_status = tell
        super().__init__("kafka-reader", on_lost)
        self.late = 0  # settlements that met a partition that was revoked meanwhile
        self.withheld = 0  # messages not committed, but for those that are given out
        self._sources = sources
        self._generation = generation
        self._limits = limits
        self._inbox: Inbox[tuple[Token, Settlement]] = Inbox()
        # From here on everything is the thread's.
        self._partitions: dict[tuple[str, int], Partition[Message]] = {}
        self._open = 0
        self._link = Link(self._stopping, next(iter(sources)))
        self._unwell: set[str] = set()
        self._paused = False
        self._next_commit = 0.0
        self._grace_s = 0.0
        self._consumer = Consumer(
            {**options, "error_cb": self._link.problems.append, "on_commit": self._committed},
            logger=library_log,
        )

    def settle(self, token: Token, settlement: Settlement) -> None:
        """Tell the thread."""
        self._inbox.put((token, settlement))

    def stop(self, grace_s: float) -> None:
        """Have the thread commit what is settled, leave the group and end.

        It takes half of ``grace_s`` for a commit that the group does not take at once.
        """
        self._grace_s = grace_s / 2
        self._stop()
        self._inbox.wake()

    # --- the thread

    @override
    def _work(self) -> None:
        self._link.reach(self._consumer)
        self._consumer.subscribe(
            list(self._sources),
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._taken_away,
        )
        self._tell_open()
        while not self._stopping.is_set() and not self._lost:
            self._turn()
        if not self._lost:
            self._finish()

    @override
    def _clean_up(self) -> None:
        self._consumer.close()

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
            self._post(self._on_status, "source", topic, False, problem.str())
        else:
            log.warning("kafka.error", reason=problem.str())

    def _consumes(self, topic: str) -> None:
        """There is something of a topic; tell that it is well again, if it was not."""
        if topic in self._unwell:
            self._unwell.discard(topic)
            self._post(self._on_status, "source", topic, True, "")

    # --- giving out

    def _give_out(self) -> None:
        for partition in self._all():
            source = self._sources[partition.topic]
            batch: list[Delivery] = []
            while self._open < self._limits.in_flight:
                found = partition.next()
                if found is None:
                    break
                offset, message = found
                made = delivery(message, source, Token(partition, offset), self._generation)
                if self._skipped(made):
                    partition.finish(offset)
                    continue
                self._open += 1
                batch.append(made)
            if batch:
                self._consumes(partition.topic)
                self._hand_over(batch)
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

    def _skipped(self, made: Delivery) -> bool:
        """Whether a message is done without being handled."""
        if expired(made.headers, time.time()):
            return True
        size, most = len(made.payload), self._limits.message_bytes
        if size > most:
            text = f"A message of {size} bytes, more than {most}, was left out."
            self._post(self._on_status, "source", made.address, True, text)
            return True
        return False

    def _hand_over(self, batch: list[Delivery]) -> None:
        """Messages of one partition."""
        if not batch[0].settles:  # at most once: committed before anybody has seen it
            for each in batch:
                each.token.settled = True
                each.token.partition.finish(each.token.offset)
            self._commit(wait=True)
        self._post(self._deliver, batch)

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
            self._consumes(each.topic)

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

    def _resume(self, partitions: list[Partition[Message]]) -> None:
        if partitions:
            self._consumer.resume([_at(each) for each in partitions])


def _later(problem: KafkaError) -> bool:
    """Whether a commit may succeed a little later."""
    return problem.code() in _REBALANCING or problem.retriable()


def _at(partition: Partition[Message]) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)
