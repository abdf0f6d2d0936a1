"""Counts with windows, and the bounded log."""

from __future__ import annotations

from connections.ledger import LOGGED_FOR, MAX_ENTRIES, MAX_TEXT, Ledger, Meter, iso

NOW = 1_700_000_000.0


def counted(meter: Meter, at: float) -> dict[str, int]:
    meter.look(at)
    return {name: meter.to_json()[name] for name in ("PT1M", "PT1H", "PT24H")}


def test_a_meter_has_the_last_minute_hour_and_day() -> None:
    meter = Meter()
    moment = NOW
    for _ in range(3 * 3_600):  # one a second, looked at every five
        meter.total += 1
        moment += 1
        if moment % 5 == 0:
            meter.look(moment)
    windows = counted(meter, moment)
    assert 60 <= windows["PT1M"] <= 70
    assert 3_600 <= windows["PT1H"] <= 3_900
    assert windows["PT24H"] == 3 * 3_600
    assert counted(meter, moment + 120)["PT1M"] == 0
    assert counted(meter, moment + 120)["PT24H"] == 3 * 3_600
    assert counted(meter, moment + 3 * 86_400) == {"PT1M": 0, "PT1H": 0, "PT24H": 0}


def test_a_reset_begins_anew_but_totals_go_on() -> None:
    ledger = Ledger()
    row = ledger.row("inbound", "in")
    for _ in range(5):
        row.count("consumed", NOW)
    row.count("mapped", NOW, ok=False)
    assert ledger.metrics(NOW)["containsFailures"] is True
    ledger.reset()
    metrics = ledger.metrics(NOW)
    assert metrics["containsFailures"] is False
    consumed = metrics["connectionMetrics"]["inbound"]["consumed"]
    assert consumed == {"success": {"PT1M": 0, "PT1H": 0, "PT24H": 0, "lastMessageAt": None}}
    assert ledger.totals()["inbound", "consumed", True] == 5
    row.count("consumed", NOW + 1)
    consumed = ledger.metrics(NOW + 1)["connectionMetrics"]["inbound"]["consumed"]
    assert consumed["success"]["PT1M"] == 1


def test_addresses_are_added_up() -> None:
    ledger = Ledger()
    ledger.row("outbound", "a").count("published", NOW)
    ledger.row("outbound", "b").count("published", NOW + 5)
    ledger.row("outbound", "b").count("published", NOW, ok=False)
    metrics = ledger.metrics(NOW + 6)
    added = metrics["connectionMetrics"]["outbound"]["published"]
    assert (added["success"]["PT1H"], added["failure"]["PT1H"]) == (2, 1)
    assert added["success"]["lastMessageAt"] == iso(NOW + 5)
    assert metrics["targetMetrics"]["addressMetrics"]["a"]["published"]["success"]["PT1M"] == 1


def test_successes_are_logged_for_a_day_once_enabled() -> None:
    ledger = Ledger()
    ledger.log(NOW, "source", "consumed", True, "unseen")
    ledger.log(NOW, "source", "mapped", False, "seen", address="in", entity="ns:thing")
    ledger.enable(NOW)
    ledger.log(NOW + 1, "source", "consumed", True, "seen, too", correlation_id="c")
    shown = ledger.logs(NOW + 2)
    assert shown["enabledSince"] == iso(NOW)
    assert shown["logs"] == [
        {
            "correlationId": "<not-provided>",
            "timestamp": iso(NOW),
            "category": "source",
            "type": "mapped",
            "level": "failure",
            "message": "seen",
            "address": "in",
            "entityType": "thing",
            "entityId": "ns:thing",
        },
        {
            "correlationId": "c",
            "timestamp": iso(NOW + 1),
            "category": "source",
            "type": "consumed",
            "level": "success",
            "message": "seen, too",
        },
    ]
    assert not ledger.verbose(NOW + LOGGED_FOR)
    assert ledger.logs(NOW + LOGGED_FOR)["enabledUntil"] is None


def test_the_log_is_bounded_in_entries_and_in_text() -> None:
    ledger = Ledger()
    ledger.enable(NOW)
    for number in range(3 * MAX_ENTRIES):
        for ok in (True, False):
            text = f"{number} {'x' * 10_000}"
            ledger.log(NOW, "target", "published", ok, text, correlation_id=text, address=text)
    logs = ledger.logs(NOW)["logs"]
    assert len(logs) == 2 * MAX_ENTRIES
    assert logs[-1]["message"].startswith(f"{3 * MAX_ENTRIES - 1} ")
    assert max(len(entry["message"]) for entry in logs) == MAX_TEXT
    assert max(len(entry["correlationId"]) for entry in logs) < MAX_TEXT


def test_defects_go_to_the_process_log_now_and_then() -> None:
    ledger = Ledger()
    assert [ledger.alarming(NOW + second) for second in (0, 1, 9, 11, 12)] == [
        True,
        False,
        False,
        True,
        False,
    ]
