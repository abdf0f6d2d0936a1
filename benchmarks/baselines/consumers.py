"""A broker's messages consumed and acked at once, by the gateway's own client libraries.

python -m benchmarks.baselines.consumers mqtt <port> <address> <user> <password>
python -m benchmarks.baselines.consumers amqp <port> <address> <user> <password>
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import Any
from urllib.parse import quote

import aiormq
import paho.mqtt.client as paho
from aiormq.abc import DeliveredMessage
from paho.mqtt.enums import CallbackAPIVersion

PREFETCH = 100  # as the gateway's


def wait_for(port: int) -> None:
    """Until somebody listens there, for ten seconds."""
    for _ in range(200):
        with socket.socket() as probe:
            # Nothing is forwarded for it: the load has no consumer before one subscribes.
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("nobody listens")


def mqtt(port: int, address: str, user: str, password: str) -> None:
    """Until it is stopped: PUBACK as soon as a message is there."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "plain", clean_session=False, manual_ack=True)
    client.username_pw_set(user, password)

    def take(one: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        one.ack(message.mid, message.qos)

    client.on_message = take
    client.connect("127.0.0.1", port)
    client.subscribe(address, qos=1)
    client.loop_forever()


async def amqp(port: int, address: str, user: str, password: str) -> None:
    """Until it is stopped: basic.ack as soon as a message is there."""
    connection = await aiormq.connect(f"amqp://{user}:{quote(password)}@127.0.0.1:{port}/")
    channel = await connection.channel()
    await channel.basic_qos(prefetch_count=PREFETCH)

    async def take(message: DeliveredMessage) -> None:
        assert message.delivery_tag is not None
        await channel.basic_ack(message.delivery_tag, wait=False)

    await channel.basic_consume(address, take)
    await asyncio.Event().wait()


if __name__ == "__main__":
    kind, port, *rest = sys.argv[1:]
    wait_for(int(port))
    if kind == "mqtt":
        mqtt(int(port), *rest)
    else:
        asyncio.run(amqp(int(port), *rest))
