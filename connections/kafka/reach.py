"""Whether a broker of Kafka is there: asked at the opening, and whenever connections break."""

from __future__ import annotations

import threading
import time
from collections import deque

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from connections.driver import OpenError
from connections.kafka.errors import is_refusal, refusal

REACH_S = 10.0
"""How long a broker may take to answer at the opening."""
CONFIRM_S = 2.0
"""For how long a broker has to be unreachable until it is called lost."""
_ASK_S = 0.3  # for one question
_PAUSE_S = 0.1  # between questions
_KEPT = 20  # errors until they are looked at


class Link:
    """A client's way to its broker. For the client's thread, but for ``stopping``.

    ``problems`` takes what librdkafka tells; ``topic`` is what it is asked about (all, if None).
    """

    def __init__(self, stopping: threading.Event, topic: str | None = None) -> None:
        self.problems: deque[KafkaError] = deque(maxlen=_KEPT)
        self._stopping = stopping
        self._topic = topic

    def reach(self, client: Consumer | Producer) -> None:
        """Wait for the first answer. Raises OpenError, also when it is to stop."""
        end = time.monotonic() + REACH_S
        while not self._stopping.is_set():
            problem = self._asked(client)
            if problem is None:
                return
            client.poll(0)  # errors are told while it is polled
            refused = refusal(self.problems or [problem])
            over = self._all_down() or time.monotonic() > end
            if over or refused.cause != "temporary":
                raise refused
        raise OpenError("temporary", "The connection was closed.")

    def broken(self, client: Consumer | Producer) -> str | None:
        """Why the broker is lost, None if it is not.

        A connection may break and come back; one that is idle gets closed by the broker. So it is
        asked for CONFIRM_S.
        """
        if not self.problems:
            return None
        down = self._all_down()
        problems = list(self.problems)
        self.problems.clear()
        for problem in problems:
            if problem.fatal() or is_refusal(problem):
                return str(refusal([problem]))
        end = time.monotonic() + CONFIRM_S
        while down and not self._stopping.is_set():
            if self._asked(client) is None:
                return None
            if time.monotonic() > end:
                return str(refusal(problems))
            self._stopping.wait(_PAUSE_S)
        return None

    def _asked(self, client: Consumer | Producer) -> KafkaError | None:
        try:
            client.list_topics(self._topic, timeout=_ASK_S)
        except KafkaException as problem:
            return error_of(problem)
        return None

    def _all_down(self) -> bool:
        return any(each.code() == KafkaError._ALL_BROKERS_DOWN for each in self.problems)


def error_of(problem: KafkaException) -> KafkaError:
    """What an exception of librdkafka carries."""
    found = problem.args[0]
    assert isinstance(found, KafkaError)
    return found
