"""Which driver serves which kind of connection; libraries are loaded when they are needed."""

from __future__ import annotations

from importlib import import_module

from connections.driver import Driver, DriverFactory, Limits, OpenError
from connections.model import Connection, Kind

_DRIVERS: dict[Kind, tuple[str, str, str]] = {
    "mqtt": ("connections.mqtt.driver", "MqttDriver", "connections"),
    "mqtt-5": ("connections.mqtt.driver", "MqttDriver", "connections"),
    "amqp-091": ("connections.amqp.driver", "AmqpDriver", "connections"),
    "amqp-10": ("connections.amqp10.driver", "Amqp10Driver", "amqp10"),
    "kafka": ("connections.kafka.driver", "KafkaDriver", "connections"),
    "http-push": ("connections.http_push.driver", "HttpPushDriver", "connections"),
}
"""Kind -> module, class, and the extra that has its library."""


def factory(kind: str) -> DriverFactory:
    """What makes the drivers of a kind of connection.

    Raises OpenError (misconfigured) if there is no such kind, or if its library is not installed;
    the text names the extra to install.
    """
    found = _DRIVERS.get(kind)  # type: ignore[call-overload]  # any text may be asked for
    if found is None:
        raise OpenError("misconfigured", f"There is no driver for connections of type '{kind}'.")
    module, name, extra = found
    try:
        made: DriverFactory = getattr(import_module(module), name)
    except ImportError as problem:
        raise OpenError(
            "misconfigured",
            f"Connections of type '{kind}' need a library that is not installed "
            f"({problem.name or problem}): install ackgate[{extra}].",
        ) from None
    return made


def late(connection: Connection, client: int, generation: int, limits: Limits) -> Driver:
    """A driver of the connection's kind: the factory that loads libraries at the first opening.

    Raises OpenError as :func:`factory` does.
    """
    return factory(connection.kind)(connection, client, generation, limits)
