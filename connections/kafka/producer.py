"""Sends to Kafka; a thread of its own takes what the broker says about it."""

from __future__ import annotations

import asyncio
import threading

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connections.driver import OnLost, OpenError, Publication, Published
from connections.kafka.errors import not_sent, not_stored
from connections.kafka.message import headers_of
from connections.kafka.options import Options, Place, place
from connections.kafka.reach import Link, error_of
from connections.kafka.threads import Loop, library_log

_POLL_S = 0.2  # bounds how late the end of the thread is


class Writer:
    """One producer and its thread. Methods are called on the event loop.

    At most ``most`` messages wait for their confirmation. With ``debug`` an issued ack says where
    the message went.
    """

    def __init__(self, options: Options, most: int, debug: bool, on_lost: OnLost) -> None:
        self._stopping = threading.Event()
        self._loop = Loop(self._stopping)
        self._link = Link(self._stopping)
        self._most = most
        self._debug = debug
        self._on_lost = on_lost
        self._waiting: set[asyncio.Future[Published]] = set()
        self._under_way = 0
        self._gone = ""  # why nothing is sent any more
        self._flush_s = 0.0
        self._lost = False
        self._producer = Producer(
            {**options, "error_cb": self._link.problems.append}, logger=library_log
        )
        self._thread = threading.Thread(target=self._run, name="kafka-writer", daemon=True)

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

    def give_up(self, reason: str) -> None:
        """Send nothing more: the broker is lost. What waits is told so."""
        self._gone = self._gone or reason
        for future in list(self._waiting):
            _answer(future, not_sent(500, reason))

    def stop(self, grace_s: float) -> None:
        """Have the thread wait for confirmations, at most ``grace_s``, and end."""
        self._flush_s = 0.0 if self._gone else grace_s
        self._gone = self._gone or "The connection is closed."
        self._stopping.set()
        if self._thread.ident is None:
            self._loop.tell_end()

    async def publish(self, publication: Publication, deadline_s: float) -> Published:
        """As :meth:`connections.driver.Driver.publish`."""
        if self._gone:
            return not_sent(503, self._gone)
        if self._under_way >= self._most:
            return not_sent(503, "Too many messages wait to be sent.")
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        try:
            where = place(publication.address)
            self._produce(where, publication, future)
        except ValueError as problem:
            return not_sent(400, f"{problem}.")
        except BufferError:
            return not_sent(503, "Too many messages wait to be sent.")
        except KafkaException as problem:
            return not_stored(error_of(problem))
        self._under_way += 1
        self._waiting.add(future)
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError:
            return not_sent(500, f"No confirmation arrived within {deadline_s:g} s.")
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
            self._loop.post(self._reported, future, answer)

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

    def _run(self) -> None:
        try:
            self._link.reach(self._producer)
            self._loop.tell_open()
            while not self._stopping.is_set() and not self._lost:
                self._producer.poll(_POLL_S)
                broken = self._link.broken(self._producer)
                if broken is not None:
                    self._lose(broken)
            self._stopping.wait()
            self._producer.flush(self._flush_s)
        except OpenError as problem:
            self._loop.tell_open(problem)
        finally:
            self._producer.purge()
            self._producer.poll(0)
            self._loop.tell_end()

    def _lose(self, reason: str) -> None:
        self._lost = True
        self._loop.post(self._on_lost, reason)


def _answer(future: asyncio.Future[Published], answer: Published) -> None:
    if not future.done():
        future.set_result(answer)
