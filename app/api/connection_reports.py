"""What the clients of a connection report, put together for the API (spec websocket-... 4.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from acks.signals import JsonObject
from app.store.connections import StoredConnection
from connections.ledger import INBOUND, OUTBOUND

MAX_LOGS = 1_000
"""Log entries in one answer, the newest."""
_WORST_FIRST = ("misconfigured", "failed", "unknown", "open", "closed")
_RECOVERIES = ("ongoing", "backOffLimitReached", "failed", "succeeded", "unknown")
_NOTHING: JsonObject = {"PT1M": 0, "PT1H": 0, "PT24H": 0, "lastMessageAt": None}
_KINDS = ("success", "failure")

Reports = Sequence[JsonObject]


def status_json(stored: StoredConnection, reports: Reports) -> JsonObject:
    """The status of a connection: of a client that is to run and does not report, it is unknown."""
    parts = _parts(reports, "status")
    wanted = stored.document["connectionStatus"]
    states = [part.get("liveStatus", "unknown") for part in parts]
    if wanted == "open" and len(parts) < stored.document["clientCount"]:
        states.append("unknown")
    since = [part["connectedSince"] for part in parts if part.get("connectedSince")]
    answer: JsonObject = {
        "connectionId": stored.id,
        "connectionStatus": wanted,
        "liveStatus": _first(_WORST_FIRST, states, "closed"),
        "recoveryStatus": _first(
            _RECOVERIES, [part.get("recoveryStatus", "unknown") for part in parts], "unknown"
        ),
    }
    answer["connectedSince"] = min(since, default=None)
    for name in ("clientStatus", "sourceStatus", "targetStatus"):
        answer[name] = [entry for part in parts for entry in part.get(name, [])]
    answer["sshTunnelStatus"] = []
    return answer


def metrics_json(stored: StoredConnection, reports: Reports) -> JsonObject:
    """The metrics of a connection: the sums over its clients, zero where there is nothing."""
    total: JsonObject = {}
    for part in _parts(reports, "metrics"):
        total = _sum(total, part)
    sources, targets = stored.document["sources"], stored.document["targets"]
    consumed = [address for source in sources for address in source["addresses"]]
    published = [target["address"] for target in targets]
    whole = total.get("connectionMetrics", {})
    return {
        "connectionId": stored.id,
        "containsFailures": total.get("containsFailures", False),
        "connectionMetrics": {
            "inbound": _measures(whole.get("inbound", {}), INBOUND),
            "outbound": _measures(whole.get("outbound", {}), OUTBOUND),
        },
        "sourceMetrics": _addresses(total.get("sourceMetrics", {}), consumed, INBOUND),
        "targetMetrics": _addresses(total.get("targetMetrics", {}), published, OUTBOUND),
    }


def logs_json(stored: StoredConnection, reports: Reports) -> JsonObject:
    """The logs of a connection, in the order of their time."""
    entries = [entry for report in reports for entry in report.get("logs", [])]
    entries.sort(key=lambda entry: str(entry.get("timestamp", "")))
    since = [report["enabledSince"] for report in reports if report.get("enabledSince")]
    until = [report["enabledUntil"] for report in reports if report.get("enabledUntil")]
    return {
        "connectionId": stored.id,
        "connectionLogs": entries[-MAX_LOGS:],
        "enabledSince": min(since, default=None),
        "enabledUntil": max(until, default=None),
    }


def _parts(reports: Reports, name: str) -> list[JsonObject]:
    return [part for report in reports if isinstance(part := report.get(name), dict)]


def _addresses(found: JsonObject, configured: Sequence[str], types: Sequence[str]) -> JsonObject:
    known = found.get("addressMetrics", {})
    names = dict.fromkeys((*configured, *known))
    return {"addressMetrics": {name: _measures(known.get(name, {}), types) for name in names}}


def _measures(found: JsonObject, types: Sequence[str]) -> JsonObject:
    """Type -> success and failure, all there are."""
    return {
        name: {kind: {**_NOTHING, **found.get(name, {}).get(kind, {})} for kind in _KINDS}
        for name in dict.fromkeys((*types, *found))
    }


def _first(order: Iterable[str], found: Sequence[str], default: str) -> str:
    """The first of ``order`` that is among the ``found``."""
    return next((one for one in order if one in found), default)


def _sum(one: Any, other: Any) -> Any:
    """Two values of metrics as one: numbers are added, of instants the later one counts."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys((*one, *other))
        return {key: _sum(one.get(key), other.get(key)) for key in keys}
    if isinstance(one, bool) or isinstance(other, bool):
        return bool(one or other)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one + other
    return max(str(one), str(other))
