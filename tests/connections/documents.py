"""Documents of connections that are right, and as short as that allows."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def source(**more: Any) -> Json:
    """A source."""
    return {"addresses": ["in"], "authorizationContext": ["ditto:in"], **more}


def target(**more: Any) -> Json:
    """A target."""
    return {
        "address": "out",
        "topics": ["_/_/things/twin/events"],
        "authorizationContext": ["ditto:out"],
        **more,
    }


def document(**more: Any) -> Json:
    """A connection with one source and one target."""
    return {
        "connectionType": "mqtt",
        "connectionStatus": "closed",
        "uri": "tcp://broker:1883",
        "sources": [source()],
        "targets": [target()],
        **more,
    }
