"""A Mosquitto of our own, and MQTT's side of the driver contract."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from typing_extensions import override

from app.store.embedded import ends_with_parent
from connections.model import Uri
from connections.mqtt.driver import MqttDriver
from tests.brokers.authority import Authority
from tests.brokers.peers import DEADLINE, EVERYTHING, Peer, Received, Tls
from tests.servers import free_port, wait_for, wait_for_sync

USER, PASSWORD = "gateway", "let me in"
FORBIDDEN = "forbidden/topic"  # nobody may publish to it
_numbers = count()
Version = Literal["mqtt", "mqtt-5"]


def binary(name: str) -> str | None:
    """Where a program of Mosquitto's is; Debian has servers in /usr/sbin."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class Mosquitto:
    """A broker process with its data in ``directory``: MQTT on ``port``, with TLS on ``tls_port``.

    ``mutual_port`` wants a certificate of ``authority`` from clients, too.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.port, self.tls_port, self.mutual_port = free_port(), free_port(), free_port()
        self.authority = Authority()
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None
        self._configure()

    @property
    def uri(self) -> Uri:
        """Where it listens, with good credentials."""
        return Uri("tcp", "127.0.0.1", self.port, user=USER, password=PASSWORD)

    def start(self) -> None:
        """Start it on the data that is there; returns when it takes connections."""
        program = binary("mosquitto")
        assert program is not None
        with (self.directory / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [program, "-c", str(self.directory / "conf")],
                stdout=log,
                stderr=log,
                preexec_fn=ends_with_parent(),  # noqa: PLW1509 - two plain system calls
            )
        wait_for_sync(self._listens, DEADLINE, "start of mosquitto")

    def stop(self) -> None:
        """End it in peace: it writes its sessions down."""
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGCONT)
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise

    def pause(self) -> None:
        """Its sockets stay open and nothing answers, until :meth:`resume`."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        assert self._child is not None
        if self._child.poll() is not None:
            text = (self.directory / "log").read_text(errors="replace")
            raise AssertionError(f"mosquitto ended: {text[-2000:]}")
        try:
            for port in (self.port, self.tls_port, self.mutual_port):
                socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    def _configure(self) -> None:
        place = self.directory
        authority = place / "ca.crt"
        authority.write_text(self.authority.pem)
        server = self.authority.issue(place)
        passwords = place / "passwords"
        program = binary("mosquitto_passwd")
        assert program is not None
        subprocess.run([program, "-c", "-b", str(passwords), USER, PASSWORD], check=True)
        (place / "rights").write_text(
            f"pattern readwrite #\npattern deny {FORBIDDEN}\ntopic readwrite #\n"
        )
        tls = f"cafile {authority}\ncertfile {server.certificate}\nkeyfile {server.key}\n"
        (place / "conf").write_text(
            "user root\n"  # it would give up rights on this directory, if it is started by root
            f"password_file {passwords}\nacl_file {place / 'rights'}\nallow_anonymous false\n"
            f"persistence true\npersistence_location {place}/\nmax_queued_messages 0\n"
            "log_dest stderr\nlog_type error\nlog_type warning\n"
            + "".join(f"{option}\n" for option in self._options)
            + f"listener {self.port} 127.0.0.1\n"
            + f"listener {self.tls_port} 127.0.0.1\n{tls}"
            + f"listener {self.mutual_port} 127.0.0.1\n{tls}require_certificate true\n"
        )


@contextmanager
def mosquitto(*options: str) -> Iterator[Mosquitto]:
    """A running broker in a directory of its own; the test is skipped where there is none."""
    if binary("mosquitto") is None or binary("mosquitto_passwd") is None:
        pytest.skip("mosquitto is not installed")
    with tempfile.TemporaryDirectory(prefix="ackgate-mqtt-", ignore_cleanup_errors=True) as place:
        broker = Mosquitto(Path(place), *options)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()


class MqttPeer(Peer):
    """Somebody else who talks to the broker, by another client library."""

    factory = MqttDriver
    can = EVERYTHING - {"dead letters"}
    invalid = "not/to/#"

    def __init__(self, broker: Mosquitto, version: Version, qos: int = 1) -> None:
        self.broker = broker
        self.kind = version
        self.qos: int = qos
        if version == "mqtt":
            self.can -= {"headers", "content-type"}
        self.uri = broker.uri
        self.refused = Uri("tcp", "127.0.0.1", broker.port, user=USER, password="secret but wrong")
        self.tls = Tls(
            Uri("ssl", "localhost", broker.tls_port, user=USER, password=PASSWORD),
            ca=broker.authority.pem,
            stranger=Authority().pem,
        )
        self.client_id = f"contract-{next(_numbers)}"
        self._five = version == "mqtt-5"
        self._stack = AsyncExitStack()
        self._client: aiomqtt.Client | None = None
        self._received: dict[str, deque[Received]] = defaultdict(deque)

    @override
    def defaults(self, uri: Uri) -> Mapping[str, str]:
        return {
            "clientId": self.client_id,
            "reconnectForRedelivery": "true",
            "reconnectForRedeliveryDelay": "1s",
        }

    @override
    async def address(self, name: str) -> str:
        return f"contract/{next(_numbers)}/{name}"

    @override
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        await self.publish(address, payload, headers, content_type, qos=self.qos)

    async def publish(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """As :meth:`send`, with all that MQTT has."""
        assert self._client is not None
        if headers or content_type:
            properties = properties or Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = list((headers or {}).items())
            if content_type:
                properties.ContentType = content_type
        await self._client.publish(
            address, payload, qos=qos, retain=retain, properties=properties, timeout=DEADLINE
        )

    @override
    async def receive(self, address: str) -> Received:
        received = self._received[address]
        await wait_for(lambda: received, DEADLINE, f"a message on {address}")
        return received.popleft()

    @override
    async def unsettled(self, address: str) -> int:
        """Whatever the session of the driver's client has, for all addresses at once."""
        barrier = f"barrier/{next(_numbers)}"
        found = 0
        async with asyncio.timeout(DEADLINE), self._connect(self.client_id) as client:
            await client.subscribe(barrier, qos=1)
            await client.publish(barrier, qos=1)
            async for message in client.messages:
                if message.topic.value == barrier:
                    return found
                found += 1
        raise AssertionError("the barrier never came")

    async def forget_session(self) -> None:
        """End the session of the driver's client, which throws it out."""
        async with self._connect(self.client_id, clean=True):
            pass

    @override
    async def restart(self) -> None:
        await self.close()
        await asyncio.to_thread(self.broker.stop)
        self.broker.start()  # a child of this thread: it ends with the thread that started it
        await self.start()

    @override
    async def start(self) -> None:
        """Connect, and receive what anybody publishes."""
        self._stack = AsyncExitStack()
        self._client = await self._stack.enter_async_context(self._connect(None))
        await self._client.subscribe("contract/#", qos=2)
        reading = asyncio.create_task(self._read(self._client))
        self._stack.push_async_callback(_end, reading)

    @override
    async def close(self) -> None:
        await self._stack.aclose()

    async def _read(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            headers = dict(getattr(message.properties, "UserProperty", ()))
            for name, text in (
                ("reply-to", getattr(message.properties, "ResponseTopic", None)),
                ("correlation-id", getattr(message.properties, "CorrelationData", None)),
                ("mqtt.qos", str(message.qos)),
                ("mqtt.retain", str(message.retain).lower()),
            ):
                if text is not None:
                    headers[name] = text if isinstance(text, str) else text.decode()
            self._received[message.topic.value].append(
                Received(
                    bytes(message.payload),
                    headers,
                    getattr(message.properties, "ContentType", None),
                )
            )

    @asynccontextmanager
    async def _connect(
        self, client_id: str | None, *, clean: bool = False
    ) -> AsyncIterator[aiomqtt.Client]:
        clean = clean or client_id is None
        properties = None
        if self._five and not clean:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 600
        async with aiomqtt.Client(
            "127.0.0.1",
            self.broker.port,
            username=USER,
            password=PASSWORD,
            identifier=client_id or f"peer-{next(_numbers)}",
            protocol=aiomqtt.ProtocolVersion.V5 if self._five else aiomqtt.ProtocolVersion.V311,
            clean_session=None if self._five else clean,
            clean_start=clean if self._five else 3,
            properties=properties,
            max_queued_incoming_messages=0,
        ) as client:
            yield client


async def mqtt_peer(mqtt: Mosquitto, request: pytest.FixtureRequest) -> AsyncIterator[MqttPeer]:
    """For a fixture; MQTT 5 where no parameter says otherwise."""
    async with MqttPeer(mqtt, getattr(request, "param", "mqtt-5")) as peer:
        yield peer


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
