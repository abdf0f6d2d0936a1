"""Messages of Kafka as the gateway sees them."""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from connections.driver import Delivery, Publication
from connections.kafka.partition import Token
from connections.model import Source

CONTENT_TYPE = "content-type"


def delivery(message: Message, source: Source, token: Token, generation: int) -> Delivery:
    """A message that was read, for the gateway.

    Its headers are those it has (names in lower case), and ``kafka.topic``, ``kafka.key`` and
    ``kafka.timestamp`` (milliseconds since 1970).
    """
    topic = message.topic() or ""
    headers = text_headers(message)
    content_type = headers.get(CONTENT_TYPE)
    headers["kafka.topic"] = topic
    key = message.key()
    if key is not None:
        headers["kafka.key"] = key.decode(errors="replace")
    kind, timestamp = message.timestamp()
    if kind != TIMESTAMP_NOT_AVAILABLE:
        headers["kafka.timestamp"] = str(timestamp)
    return Delivery(
        source=source.index,
        address=topic,
        payload=message.value() or b"",
        headers=headers,
        content_type=content_type,
        identity=f"{topic}#{message.partition()}@{message.offset()}",
        token=token,
        generation=generation,
        settles=source.qos != 0,  # at least once, unless the document says otherwise
    )


def text_headers(message: Message) -> dict[str, str]:
    """The headers of a message as text; of several with the same name the last one counts."""
    pairs = message.headers() or []
    items = pairs.items() if isinstance(pairs, dict) else pairs
    return {name.lower(): _text(value) for name, value in items if value is not None}


def headers_of(publication: Publication) -> list[tuple[str, str | bytes | None]]:
    """The headers of a message to be sent, its content type among them."""
    headers = dict(publication.headers)
    if publication.content_type is not None:
        headers[CONTENT_TYPE] = publication.content_type
    return [(name, value.encode(errors="replace")) for name, value in headers.items()]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
