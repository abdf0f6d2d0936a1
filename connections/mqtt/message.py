"""Messages between paho's form and ours: headers are properties in MQTT 5, and nothing in 3.1.1.

Headers that are properties of their own: ``content-type``, ``reply-to`` (response topic) and
``correlation-id`` (correlation data); others are user properties. ``mqtt.topic``, ``mqtt.qos`` and
``mqtt.retain`` are told of what comes in, and overrule the target for what goes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from connections.driver import Publication
from connections.mqtt.inbox import Incoming
from connections.mqtt.options import FLAGS, LEVELS

_TOPIC, _QOS, _RETAIN = "mqtt.topic", "mqtt.qos", "mqtt.retain"
_CONTENT_TYPE, _REPLY_TO, _CORRELATION = "content-type", "reply-to", "correlation-id"
_APART = frozenset({_TOPIC, _QOS, _RETAIN, _CONTENT_TYPE, _REPLY_TO, _CORRELATION})
_LONGEST_TEXT = 65_535  # bytes
_HEAD = 9  # bytes of a packet beside topic, properties and payload, at most
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is to be sent. ``length`` is what its packet has at most, in bytes."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None
    length: int


def message_of(publication: Publication, default_qos: int, *, five: bool) -> Message:
    """A publication as a message of MQTT 5, or of 3.1.1.

    Raises ValueError for what cannot be sent: a topic with wildcards, a text that is no text.
    """
    headers = publication.headers
    topic = _text(headers.get(_TOPIC) or publication.address)
    if not topic or "+" in topic or "#" in topic:
        raise ValueError(f"The topic <{topic}> is not one to publish to.")
    qos = default_qos if publication.qos is None else publication.qos
    if _QOS in headers:
        qos = _choice(_QOS, headers[_QOS], LEVELS)
    retain = _choice(_RETAIN, headers[_RETAIN], FLAGS) if _RETAIN in headers else False
    properties = _properties(publication) if five else None
    length = _HEAD + len(topic.encode()) + len(publication.payload)
    if properties is not None:
        length += len(properties.pack())  # type: ignore[no-untyped-call]  # paho has types for most only
    return Message(topic, publication.payload, qos, retain, properties, length)


def _properties(publication: Publication) -> Properties | None:
    headers = publication.headers
    users = [(_text(name), _text(text)) for name, text in headers.items() if name not in _APART]
    content_type = publication.content_type or headers.get(_CONTENT_TYPE)
    reply_to, correlation = headers.get(_REPLY_TO), headers.get(_CORRELATION)
    if not users and content_type is None and reply_to is None and correlation is None:
        return None
    properties = properties_of(PacketTypes.PUBLISH)
    if content_type is not None:
        properties.ContentType = _text(content_type)
    if reply_to:
        if "+" in reply_to or "#" in reply_to:
            raise ValueError(f"The response topic <{reply_to}> is not one to publish to.")
        properties.ResponseTopic = _text(reply_to)
    if correlation is not None:
        properties.CorrelationData = _text(correlation).encode()
    if users:
        properties.UserProperty = users
    return properties


def _text(text: str) -> str:
    """A text that a packet can carry (MQTT 5, 1.5.4), else ValueError."""
    if "\0" in text or len(text.encode()) > _LONGEST_TEXT:  # a lone surrogate is a ValueError
        raise ValueError("A text is too long, or has characters that MQTT does not allow.")
    return text


def _choice(name: str, text: str, choices: dict[str, _T]) -> _T:
    if text not in choices:
        raise ValueError(f"The value <{text}> of the header <{name}> is not valid.")
    return choices[text]


def properties_of(packet: int) -> Properties:
    """No properties yet, of a kind of packet of MQTT 5."""
    return Properties(packet)  # type: ignore[no-untyped-call]  # paho has types for most only


def incoming_of(message: paho.MQTTMessage) -> Incoming:
    """A message as it came."""
    headers = {}
    content_type = None
    if (properties := message.properties) is not None:
        headers = {name.lower(): text for name, text in getattr(properties, "UserProperty", ())}
        content_type = getattr(properties, "ContentType", None)
        if content_type is not None:
            headers[_CONTENT_TYPE] = content_type
        if (reply_to := getattr(properties, "ResponseTopic", None)) is not None:
            headers[_REPLY_TO] = reply_to
        if (correlation := getattr(properties, "CorrelationData", None)) is not None:
            headers[_CORRELATION] = correlation.decode(errors="replace")
    headers[_TOPIC] = message.topic
    headers[_QOS] = str(message.qos)
    headers[_RETAIN] = "true" if message.retain else "false"
    return Incoming(
        message.mid, message.topic, bytes(message.payload), message.qos, headers, content_type
    )
