"""One MQTT client on the network: connected, kept alive, subscribing, publishing, acking."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from connections.driver import OpenError
from connections.mqtt.inbox import Incoming
from connections.mqtt.message import Message, incoming_of, properties_of
from connections.mqtt.options import Options
from connections.mqtt.wire import Engine
from connections.tls import refused

FAILURE = 0x80  # reason codes from here on are failures
_MOST_UNACKED = 65_535
# Reason codes of CONNACK, those of 3.1.1 in MQTT 5's numbers as paho gives them.
_CREDENTIALS = frozenset({0x86, 0x87, 0x8C})
_MISCONFIGURED = frozenset({0x81, 0x82, 0x84, 0x85, 0x90, 0x95, 0x99, 0x9A, 0x9B})

OnIncoming = Callable[[Incoming], None]
OnEnd = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the broker is, and who we are to it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    user: str | None
    password: str | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many messages may be unacked at a time, to us and from us."""

    incoming: int
    outgoing: int


class Unsent(Exception):
    """A publication that the broker has not confirmed; the text says why."""


class Link:
    """A client of the id ``client_id``.

    ``on_end`` is told, once, that an open link has ended without having been closed.
    """

    def __init__(
        self,
        client_id: str,
        options: Options,
        bounds: Bounds,
        on_incoming: OnIncoming,
        on_end: OnEnd,
    ) -> None:
        self._options = options
        self._bounds = bounds
        self._on_incoming = on_incoming
        self._on_end = on_end
        self._engine = engine = Engine(client_id, version=options.version, clean=options.clean)
        engine.max_inflight_messages_set(bounds.outgoing)
        engine.on_connect = self._connected
        engine.on_disconnect = self._disconnected
        engine.on_message = self._message
        engine.on_subscribe = self._subscribed
        engine.on_publish = self._published
        self._answer: asyncio.Future[bool] | None = None
        self._subscribing: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self._publishing: dict[int, asyncio.Future[ReasonCode]] = {}
        self._pulse: asyncio.TimerHandle | None = None
        self._open = False
        self._most_bytes: int | None = None  # of a packet, as the broker says
        self._most_qos = 2
        self._retains = True

    async def open(self, place: Place) -> bool:
        """Connect; whether the broker has kept the session. Raises OpenError."""
        engine, options = self._engine, self._options
        if place.user is not None:
            engine.username_pw_set(place.user, place.password)
        if (will := options.will) is not None:
            engine.will_set(will.topic, will.payload, will.qos, will.retain)
        self._answer = asyncio.get_running_loop().create_future()
        try:
            await engine.dial(place.host, place.port, place.tls)
            self._greet(place)
            kept = await self._answer
        except (OSError, ValueError) as problem:
            engine.abort()
            raise refused(problem, place.host) from problem
        except BaseException:
            self._open = False
            engine.abort()
            raise
        self._beat()
        return kept

    def _greet(self, place: Place) -> None:
        options = self._options
        if options.version == 4:
            self._engine.connect(place.host, place.port, options.keep_alive_s)
            return
        properties = properties_of(PacketTypes.CONNECT)
        properties.ReceiveMaximum = max(1, min(self._bounds.incoming, _MOST_UNACKED))
        if not options.clean:
            properties.SessionExpiryInterval = options.expiry_s
        self._engine.connect(
            place.host,
            place.port,
            options.keep_alive_s,
            clean_start=options.clean,
            properties=properties,
        )

    async def subscribe(self, wanted: Mapping[str, int]) -> dict[str, ReasonCode]:
        """Subscribe to addresses with their QoS; what the broker says to each.

        Raises OpenError, and ValueError for an address that is no topic filter.
        """
        if self._options.version == 4:
            code, number = self._engine.subscribe(list(wanted.items()))
        else:  # what is retained comes once, not at every opening
            handling = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
            code, number = self._engine.subscribe(
                [
                    (address, SubscribeOptions(qos, retainHandling=handling))
                    for address, qos in wanted.items()
                ]
            )
        if code != paho.MQTT_ERR_SUCCESS or number is None:
            raise OpenError("temporary", "The connection was closed meanwhile.")
        answer = asyncio.get_running_loop().create_future()
        self._subscribing[number] = answer
        try:
            codes = await answer
        finally:
            self._subscribing.pop(number, None)
        return dict(zip(wanted, codes, strict=True))

    def ack(self, mid: int, qos: int) -> None:
        """Tell the broker that a message is done."""
        self._engine.acknowledge(mid, qos)

    def publish(self, message: Message) -> asyncio.Future[ReasonCode]:
        """Send; the broker's answer, or Unsent. Keeps the order of the calls.

        Raises Unsent, and ValueError for a message that this broker cannot take.
        """
        if not self._open:
            raise Unsent("The connection is closed.")
        if self._engine.full:
            raise Unsent("The broker does not read what is sent.")
        if self._most_bytes is not None and message.length > self._most_bytes:
            raise ValueError(f"The broker takes at most {self._most_bytes} bytes.")
        qos = min(message.qos, self._most_qos)
        retain = message.retain and self._retains
        info = self._engine.publish(message.topic, message.payload, qos, retain, message.properties)
        if info.rc == paho.MQTT_ERR_QUEUE_SIZE:
            raise Unsent("Too many messages wait to be sent.")
        if info.rc != paho.MQTT_ERR_SUCCESS:
            raise Unsent("The connection is closed.")
        answer = asyncio.get_running_loop().create_future()
        self._publishing[info.mid] = answer
        return answer

    async def idle(self) -> None:
        """Wait until the broker has confirmed, or refused, what was sent."""
        while under_way := [one for one in self._publishing.values() if not one.done()]:
            await asyncio.wait(under_way)

    def abort(self) -> None:
        """Disconnect at once, without a word."""
        self._open = False
        self._end("The connection is closed.")
        self._engine.abort()

    async def close(self, grace_s: float) -> None:
        """Send what is on its way, say goodbye and disconnect, at most within ``grace_s``."""
        was_open, self._open = self._open, False
        if was_open:
            self._engine.flush()
            self._engine.disconnect()
            self._engine.flush()
            try:
                async with asyncio.timeout(grace_s):
                    await self._engine.ended()
            except TimeoutError:
                pass  # it is cut off below
            finally:
                self._end("The connection is closed.")
                self._engine.abort()
        else:
            self._engine.abort()

    def _beat(self) -> None:
        if self._open:
            self._engine.loop_misc()
            pause = max(0.25, min(5.0, self._options.keep_alive_s / 4))
            self._pulse = asyncio.get_running_loop().call_later(pause, self._beat)

    def _connected(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.ConnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        assert self._answer is not None
        if self._answer.done():
            return
        if code.value >= FAILURE:
            self._answer.set_exception(_refusal(code))
            return
        self._engine.at_most(getattr(properties, "ReceiveMaximum", _MOST_UNACKED))
        self._most_bytes = getattr(properties, "MaximumPacketSize", None)
        self._most_qos = getattr(properties, "MaximumQoS", 2)
        self._retains = bool(getattr(properties, "RetainAvailable", 1))
        self._open = True
        self._answer.set_result(flags.session_present)

    def _disconnected(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.DisconnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        problem = self._engine.problem
        reason = f"The broker has closed the connection: {problem or code}."
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_early_end(problem, reason))
        was_open, self._open = self._open, False
        self._end(reason)
        if was_open:
            self._on_end(reason)

    def _end(self, reason: str) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
        subscribing, self._subscribing = self._subscribing, {}
        publishing, self._publishing = self._publishing, {}
        for subscription in subscribing.values():
            if not subscription.done():
                subscription.set_exception(OpenError("temporary", reason))
        for publication in publishing.values():
            if not publication.done():
                publication.set_exception(Unsent(reason))

    def _message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        self._on_incoming(incoming_of(message))

    def _subscribed(
        self,
        client: paho.Client,
        userdata: Any,
        number: int,
        codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        answer = self._subscribing.get(number)
        if answer is not None and not answer.done():
            answer.set_result(codes)

    def _published(
        self,
        client: paho.Client,
        userdata: Any,
        number: int,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        answer = self._publishing.pop(number, None)
        if answer is not None and not answer.done():
            answer.set_result(code)


def _refusal(code: ReasonCode) -> OpenError:
    text = f"The broker refuses the connection: {code}."
    if code.value in _CREDENTIALS:
        return OpenError("credentials", text)
    return OpenError("misconfigured" if code.value in _MISCONFIGURED else "temporary", text)


def _early_end(problem: Exception | None, reason: str) -> OpenError:
    """The end before the broker's answer; by TLS if it wants a certificate of ours."""
    if isinstance(problem, ssl.SSLError):
        return OpenError("credentials", f"The broker refuses our certificate: {problem.reason}.")
    return OpenError("temporary", reason)
