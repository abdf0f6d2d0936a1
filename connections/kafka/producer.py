"""Sends to Kafka; a thread of its own takes what the broker says about it."""

from __future__ import annotations

import asyncio

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from typing_extensions import override

from connections.driver import OnLost, Publication, Published
from connections.kafka.errors import not_stored
from connections.kafka.message import headers_of
from connections.kafka.options import Options, Place, place
from connections.kafka.reach import Link, error_of
from connections.kafka.threads import Worker, library_log
from connections.publishing import not_sent

_POLL_S = 0.2  # bounds how late the end of the thread is


class Writer(Worker):
    """One producer.

    At most ``most`` messages wait for their confirmation. With ``debug`` an issued ack says where
    the message went.
    """

    def __init__(self, options: Options, most: int, debug: bool, on_lost: OnLost) -> None:
        super().__init__("kafka-writer", on_lost)
        self._link = Link(self._stopping)
        self._most = most
        self._debug = debug
        self._waiting: set[asyncio.Future[Published]] = set()
        self._under_way = 0
        self._gone = ""  # why nothing is sent any more
        self._flush_s = 0.0
        self._producer = Producer(
            {**options, "error_cb": self._link.problems.append}, logger=library_log
        )

    def give_up(self, reason: str) -> None:
        """Send nothing more: the broker is lost. What waits is told so."""
        self._gone = self._gone or reason
        for future in list(self._waiting):
            _answer(future, not_sent(reason, 500))

    def stop(self, grace_s: float) -> None:
        """Have the thread wait for confirmations, at most ``grace_s``, and end."""
        self._flush_s = 0.0 if self._gone else grace_s
        self._gone = self._gone or "The connection is closed."
        self._stop()

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """As :meth:`connections.driver.Driver.publish`."""
        if self._gone:
            return not_sent(self._gone)
        if self._under_way >= self._most:
            return not_sent("Too many messages wait to be sent.")
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        try:
            where = place(publication.address)
            self._produce(where, publication, future)
        except ValueError as problem:
            return not_sent(f"{problem}.", 400)
        except BufferError:
            return not_sent("Too many messages wait to be sent.")
        except KafkaException as problem:
            return not_stored(error_of(problem))
        self._under_way += 1
        self._waiting.add(future)
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError:
            return not_sent(f"No confirmation arrived within {deadline_s:g} s.", 500)
        finally:
            self._waiting.discard(future)

    def _produce(
        self, where: Place, publication: Publication, future: asyncio.Future[Published]
    ) -> None:
        key = where.key
        if key is None and where.partition is None:
            key = publication.key
        raw = None if key is None else key.encode(errors="replace")
        sizes = (-1 if raw is None else len(raw), len(publication.payload))

        def reported(problem: KafkaError | None, message: Message) -> None:
            answer = self._stored(message, sizes) if problem is None else not_stored(problem)
            self._post(self._reported, future, answer)

        self._producer.produce(
            where.topic,
            publication.payload,
            raw,
            -1 if where.partition is None else where.partition,
            on_delivery=reported,
            headers=headers_of(publication),
        )

    def _stored(self, message: Message, sizes: tuple[int, int]) -> Published:
        if not self._debug:
            return Published(204)
        payload = {
            "timestamp": message.timestamp()[1],
            "serializedKeySize": sizes[0],
            "serializedValueSize": sizes[1],
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
        }
        return Published(200, payload, {"content-type": "application/json"})

    def _reported(self, future: asyncio.Future[Published], answer: Published) -> None:
        self._under_way -= 1
        _answer(future, answer)

    # --- the thread

    @override
    def _work(self) -> None:
        self._link.reach(self._producer)
        self._tell_open()
        while not self._stopping.is_set() and not self._lost:
            self._producer.poll(_POLL_S)
            broken = self._link.broken(self._producer)
            if broken is not None:
                self._lose(broken)
        self._stopping.wait()
        self._producer.flush(self._flush_s)

    @override
    def _clean_up(self) -> None:
        self._producer.purge()
        self._producer.poll(0)


def _answer(future: asyncio.Future[Published], answer: Published) -> None:
    if not future.done():
        future.set_result(answer)
