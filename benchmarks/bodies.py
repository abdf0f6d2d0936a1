"""What the load generators send: JSON documents of given sizes, and whole requests as bytes."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

SMALL_BYTES, USUAL_BYTES, LARGE_BYTES = 200, 1_000, 50_000
TURNS = 4
"""Patches of one thing before they begin anew: every one changes the value of the last."""


def _text(value: object) -> str:
    # As short as the servers write it, so that all of them store the same bytes.
    return json.dumps(value, separators=(",", ":"))


def thing_id(number: int) -> str:
    """Id of the thing ``number``."""
    return f"bench:thing-{number}"


def _sensor(number: int) -> dict[str, object]:
    return {
        "serial": f"SN-{number:08d}",
        "location": {"latitude": 44.673856, "longitude": 8.261719, "site": "hall-7"},
        "temperature": 20.5 + number % 10,
        "on": number % 2 == 0,
        "note": "",
    }


def attribute(number: int) -> bytes:
    """The value of an attribute, about ``SMALL_BYTES`` bytes of JSON."""
    value = _sensor(number)
    value["note"] = "x" * max(0, SMALL_BYTES - len(_text(value)))
    return _text(value).encode()


def thing(number: int, size: int = SMALL_BYTES) -> bytes:
    """A thing of about ``size`` bytes: as many features as fit, a note makes up the rest."""
    attributes = _sensor(number)
    document: dict[str, object] = {"attributes": attributes}
    one = len(_text({"sensor-100": {"properties": _sensor(number)}}))
    count = (size - len(_text(document))) // one
    if count > 0:
        document["features"] = {
            f"sensor-{index}": {"properties": _sensor(number + index)} for index in range(count)
        }
    attributes["note"] = "x" * max(0, size - len(_text(document)))
    return _text(document).encode()


def patch(number: int, turn: int) -> bytes:
    """A merge patch that changes one property of a thing of ``USUAL_BYTES`` and more."""
    value = {"temperature": 30.5 + (number + turn) % TURNS}
    return _text({"features": {"sensor-1": {"properties": value}}}).encode()


@dataclass(frozen=True)
class Server:
    """Whom a request is for, and as whom it is made."""

    host: str
    port: int
    user: str
    password: str

    def request(
        self, method: str, path: str, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> bytes:
        """One whole request as bytes on the wire."""
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        fields = {"Host": f"{self.host}:{self.port}", "Authorization": f"Basic {credentials}"}
        fields |= headers or {}
        if content:
            fields["Content-Length"] = str(len(content))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {v}" for name, v in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + content
