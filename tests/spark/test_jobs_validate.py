"""The job ``validate`` beside a real gateway: verdicts, their acks, duplicates, crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from acks.journal import journal_key, shard_of
from connections.spark.jobs.judging import check_sql
from connections.spark.jobs.rules import RulesError, read_rules
from connections.spark.rows import SCHEMA
from connections.spark.store import calls
from tests.servers import RedisServer
from tests.spark.jobs import Site, lake, site

LABEL = "spark:validated"
LAMP = "org.acme:lamp:1.0.0"
RULES = {
    "rules": [
        {
            "name": "cold",
            "path": "/attributes/celsius",
            "sql": "part >= -273.15",
            "message": "nothing is colder than -273.15",
        },
        {
            "name": "kept",
            "sql": "action <> 'deleted' AND NOT definition <=> 'org.acme:gone:1'",
            "status": 403,
        },
        {
            "name": "lamp",
            "definition": "org.acme:lamp:*",
            "schema": {
                "required": ["attributes"],
                "properties": {"attributes": {"required": ["room"]}},
            },
        },
        {
            "name": "level",
            "definition": "org.acme:lamp:*",
            "path": "/attributes/level",
            "schema": {"type": "number", "maximum": 100},
            "status": 409,
        },
    ]
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def here(tmp_path: Path, server: RedisServer) -> Iterator[Site]:
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    with site(tmp_path, server) as made:
        yield made


def options(here: Site) -> tuple[object, ...]:
    return (
        *("--rules", here.place / "rules.json"),
        *("--output", here.place / "good", "--rejects", here.place / "bad"),
    )


def verdict(here: Site, thing_id: str, path: str, value: object) -> tuple[int, Any]:
    answer = here.ask(LABEL, thing_id, path, value).result()
    return answer.status_code, answer.json() if answer.content else None


def broken(*rules: tuple[str, str]) -> dict[str, Any]:
    names = ", ".join(dict.fromkeys(name for name, _ in rules))
    reasons = [{"rule": name, "reason": reason} for name, reason in rules]
    return {"message": f"The event breaks {names}.", "broken": reasons}


def deliver_again(here: Site, thing_id: str, revision: int) -> None:
    """Append the entry of an event to the journal once more."""
    key = journal_key(here.prefix, shard_of(thing_id, 8))
    [entries] = calls(here.url, [("XRANGE", key, "-", "+")])
    for _, fields in entries:
        meta = json.loads(fields[b"m"])
        if (meta["id"], meta["r"]) == (thing_id, revision):
            calls(
                here.url, [("XADD", key, "*", *(part for pair in fields.items() for part in pair))]
            )
            return
    raise AssertionError("no such event")


def test_verdicts_and_their_acks(here: Site) -> None:
    job = here.job("validate", *options(here)).ready()
    lamp = "org.acme:lamp-1"
    assert verdict(here, lamp, "", {"definition": LAMP, "attributes": {"room": "hall"}})[0] == 200
    # The thing has its definition, the event has not.
    assert verdict(here, lamp, "/attributes/level", 50)[0] == 200
    reason = "/attributes/level: 500 is greater than the maximum of 100"
    assert verdict(here, lamp, "/attributes/level", 500) == (409, broken(("level", reason)))
    cold = ("cold", "nothing is colder than -273.15")
    assert verdict(here, lamp, "/attributes", {"celsius": -300}) == (
        422,
        broken(cold, ("lamp", "/attributes: 'room' is a required property")),
    )
    # A value that is no number does not end the job.
    assert verdict(here, lamp, "/attributes/celsius", "warm") == (422, broken(cold))
    gone = verdict(here, "org.acme:gone", "", {"definition": "org.acme:gone:1"})
    assert (gone[0], gone[1]["broken"][0]["rule"]) == (403, "kept")
    # Rules for lamps are not for others.
    assert verdict(here, "org.acme:other", "", {"attributes": {"level": 500}})[0] == 200
    assert job.terminate() == 0
    assert here.owner(LABEL) is None
    assert ": 1 event, 1 refused, " in job.log
    good, bad = lake(here.place / "good"), lake(here.place / "bad")
    assert [(row["thing_id"], row["revision"]) for row in good] == [
        (lamp, 1),
        (lamp, 2),
        ("org.acme:other", 1),
    ]
    assert [(row["revision"], row["definition"], row["broken"][0]["rule"]) for row in bad] == [
        (1, "org.acme:gone:1", "kept"),
        (3, LAMP, "level"),
        (4, LAMP, "lamp"),
        (5, LAMP, "cold"),
    ]


def test_an_event_delivered_again_is_known_and_acknowledged_again(here: Site) -> None:
    """In the same batch, in a later one, and after a crash between the work and the ack."""
    hold = here.place / "held"
    job = here.job("validate", *options(here), hold=hold).ready()
    first = here.ask(LABEL, "org.acme:one", "", {"attributes": {"celsius": 20}})
    job.wait_for(hold.exists, "work on a batch")
    assert not first.done()
    job.kill9()
    # The request still waits: its event is judged again, and acknowledged.
    refused = here.ask(LABEL, "org.acme:two", "", {"attributes": {"celsius": -300}})
    again = here.job("validate", *options(here)).ready()
    assert first.result().status_code == 200
    assert refused.result().status_code == 422
    for thing_id in ("org.acme:one", "org.acme:two"):
        deliver_again(here, thing_id, 1)
    again.wait_for(lambda: again.log.count(" again, ") >= 1, "events seen again")
    # A change after them, so that all before is done.
    assert verdict(here, "org.acme:last", "", {})[0] == 200
    assert again.terminate() == 0
    seen_again = [line for line in again.log.splitlines() if " again, " in line]
    assert sum(int(line.split(" again")[0].split()[-1]) for line in seen_again) == 2
    assert sum(line.count(" 1 refused,") for line in seen_again) == 1
    assert [row["thing_id"] for row in lake(here.place / "good")] == [
        "org.acme:last",
        "org.acme:one",
    ]
    assert [row["thing_id"] for row in lake(here.place / "bad")] == ["org.acme:two"]


def test_a_rule_that_spark_does_not_understand_is_named(here: Site) -> None:
    here.put("org.acme:one", "", {})
    rules = here.place / "rules.json"
    rules.write_text(json.dumps({"rules": [{"name": "the one", "sql": "colour = 'red'"}]}))
    job = here.job("validate", *options(here))
    assert job.ended() == 2
    assert f"ackgate: error: {rules}: rule 'the one': sql: " in job.log
    assert "Traceback" not in job.log


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("part >", "PARSE_SYNTAX_ERROR"),
        ("colour = 'red'", "colour"),
        ("count(*) > 1", "count"),
        ("thing_id", "STRING"),
        ("true) OR (true", "PARSE_SYNTAX_ERROR"),
    ],
)
def test_sql_is_checked_before_anything_is_judged(
    spark: SparkSession, tmp_path: Path, sql: str, text: str
) -> None:
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"rules": [{"name": "fine", "sql": "true -- yes"}]}))
    events = spark.createDataFrame([], SCHEMA)
    check_sql(spark, read_rules(file), events)
    file.write_text(json.dumps({"rules": [{"name": "the one", "sql": sql}]}))
    with pytest.raises(RulesError, match="rule 'the one': sql: ") as caught:
        check_sql(spark, read_rules(file), events)
    assert text in str(caught.value)
    assert events.columns == SCHEMA.fieldNames()
