"""What errors of Kafka mean: for opening a connection, and for a message that was not stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from confluent_kafka import KafkaError

from connections.driver import Cause, OpenError, Published
from connections.publishing import not_sent

# Errors of the broker after which the same message may succeed: those that Kafka's own clients
# count as retriable (spec websocket-... 4.5).
_AGAIN = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._PURGE_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_CREDENTIALS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
_MISCONFIGURED = frozenset({KafkaError.UNSUPPORTED_SASL_MECHANISM, KafkaError.ILLEGAL_SASL_STATE})


def not_stored(problem: KafkaError) -> Published:
    """The issued ack for a message that Kafka did not take.

    500 if it may be sent again, 503 if too many messages wait, else 400 (spec 4.5).
    """
    code = problem.code()
    if code == KafkaError._QUEUE_FULL:
        return not_sent("Too many messages wait to be sent.")
    again = code in _AGAIN or problem.retriable()
    lost = problem.fatal() or code in _CREDENTIALS
    return replace(not_sent(problem.str(), 500 if again else 400), lost=lost)


def is_refusal(problem: KafkaError) -> bool:
    """Whether the broker does not take this user."""
    return problem.code() in _CREDENTIALS


def refusal(problems: Iterable[KafkaError]) -> OpenError:
    """Why a connection could not be opened, by all that was told meanwhile."""
    known = list(problems)
    for problem in known:
        if is_refusal(problem):
            text = f"The broker refused the credentials: {_short(problem)}."
            if "mechanism" in text.lower():
                return OpenError("misconfigured", text)
            return OpenError("credentials", text)
        if problem.code() in _MISCONFIGURED:
            return OpenError("misconfigured", f"The broker refused: {_short(problem)}.")
        if problem.code() == KafkaError._SSL:
            trust = "certificate" in problem.str()
            cause: Cause = "misconfigured" if trust else "temporary"
            return OpenError(cause, f"TLS failed: {_short(problem)}.")
    reason = f": {_short(known[0])}" if known else ""
    return OpenError("temporary", f"The broker cannot be reached{reason}.")


def _short(problem: KafkaError) -> str:
    """The text without what librdkafka says about its own states."""
    return problem.str().partition(" (after ")[0].rstrip(".")
