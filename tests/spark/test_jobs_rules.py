"""Rules of the job ``validate``: the file, and what of an event a rule is about. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connections.spark.jobs.rules import ABSENT, Rule, RulesError, read_rules, without_nulls

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["attributes"],
    "additionalProperties": False,
    "properties": {
        "attributes": {
            "type": "object",
            "required": ["room", "level"],
            "minProperties": 2,
            "properties": {"level": {"type": "number", "maximum": 100}, "room": {"type": "string"}},
        },
        "features": {"type": "object"},
    },
}


def written(place: Path, rules: object, name: str = "rules.json") -> Path:
    file = place / name
    file.write_text(rules if isinstance(rules, str) else json.dumps(rules))
    return file


def reasons(path: str, value: Any, merged: bool = False, about: str = "") -> list[str]:
    pointer = tuple(path.split("/")[1:]) if path else ()
    rule = Rule("r", tuple(about.split("/")[1:]) if about else (), schema=SCHEMA)
    if merged:
        value = without_nulls(value)
    part = rule.part(pointer, value)
    return rule.reasons(part, max(0, len(pointer) - len(rule.path)), merged)


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml = """
    [[rules]]
    name = "cold"
    definition = "org.acme:lamp:*"
    path = "/attributes/celsius"
    sql = '''part > -274'''
    status = 409
    message = "too cold"

    [[rules]]
    name = "lamp"
    schema = {type = "object"}
    """
    rules: list[dict[str, Any]] = [
        {
            "name": "cold",
            "definition": "org.acme:lamp:*",
            "path": "/attributes/celsius",
            "sql": "part > -274",
            "status": 409,
            "message": "too cold",
        },
        {"name": "lamp", "schema": {"type": "object"}},
    ]
    one = read_rules(written(tmp_path, toml, "rules.toml"))
    assert one == read_rules(written(tmp_path, {"rules": rules}))
    assert one.rules[0] == Rule(
        "cold",
        ("attributes", "celsius"),
        "org.acme:lamp:*",
        "part > -274",
        None,
        409,
        "too cold",
    )
    assert one.ask_definition
    rules[1]["schema"] = {"type": "array"}
    assert read_rules(written(tmp_path, {"rules": rules})).fingerprint != one.fingerprint


def test_a_schema_may_be_a_file_beside_the_rules(tmp_path: Path) -> None:
    written(tmp_path, SCHEMA, "lamp.json")
    file = written(tmp_path, {"rules": [{"name": "lamp", "schema-file": "lamp.json"}]})
    [rule] = read_rules(file).rules
    assert rule.schema == SCHEMA


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("{", "cannot be read"),
        ([], "a list 'rules'"),
        ({"rules": []}, "a list 'rules'"),
        ({"rules": [{"name": "a", "sql": "true"}], "more": 1}, "and nothing else"),
        ({"rules": [{"sql": "true"}]}, "rule 1 needs a name"),
        ({"rules": [{"name": "a", "sql": "true"}, {"name": "a", "sql": "true"}]}, "two rules have"),
        ({"rules": [{"name": "a"}]}, "rule 'a': it needs one of sql, schema and schema-file"),
        ({"rules": [{"name": "a", "sql": "true", "schema": {}}]}, "rule 'a': it needs one of"),
        ({"rules": [{"name": "a", "sql": ""}]}, "rule 'a': sql must be a text"),
        ({"rules": [{"name": "a", "sql": "true", "when": 1}]}, "rule 'a': unknown key 'when'"),
        ({"rules": [{"name": "a", "sql": "true", "status": 500}]}, "rule 'a': status must be 400"),
        ({"rules": [{"name": "a", "sql": "true", "status": True}]}, "rule 'a': status must be 400"),
        ({"rules": [{"name": "a", "sql": "true", "path": "/a//b"}]}, "rule 'a': path: "),
        ({"rules": [{"name": "a", "schema": {"type": "thing"}}]}, "rule 'a': schema: /type: "),
        ({"rules": [{"name": "a", "schema": "x"}]}, "rule 'a': schema must be a JSON schema"),
        ({"rules": [{"name": "a", "schema-file": "no.json"}]}, "no.json cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, rules: object, text: str) -> None:
    with pytest.raises(RulesError, match=r"rules\.json: ") as caught:
        read_rules(written(tmp_path, rules))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("definition", "matches"),
    [
        ("org.acme:lamp:1.0.0", True),
        ("org.acme:lamp:2", True),
        ("org.acme:lamps:1", False),
        ("xorg.acme:lamp:1", False),
        ("orgXacme:lamp:1", False),
        (None, False),
    ],
)
def test_a_star_stands_for_any_text(definition: str | None, matches: bool) -> None:
    assert Rule("r", definition="org.acme:lamp:*", sql="true").is_for(definition) is matches
    assert Rule("r", sql="true").is_for(definition)


@pytest.mark.parametrize(
    ("about", "path", "value", "part"),
    [
        ("/a/b", "/a/b", 1, 1),  # at the path
        ("/a/b", "", {"a": {"b": None}}, None),  # above it
        ("/a/b", "/a", {"c": 1}, ABSENT),
        ("/a/b", "/a", 5, ABSENT),
        ("/a/b", "/a/b/c/d", 1, {"c": {"d": 1}}),  # below it
        ("/a/b", "/a/c", 1, ABSENT),  # beside it
        ("/a/b", "/a/b", ABSENT, ABSENT),  # deleted
        ("", "/a/b", 1, {"a": {"b": 1}}),
    ],
)
def test_the_part_of_an_event_that_a_rule_is_about(
    about: str, path: str, value: Any, part: Any
) -> None:
    rule = Rule("r", tuple(about.split("/")[1:]), sql="true")
    found = rule.part(tuple(path.split("/")[1:]), value)
    assert found is ABSENT if part is ABSENT else found == part


def test_a_whole_thing_is_checked_wholly() -> None:
    assert reasons("", {"attributes": {"room": "hall", "level": 5}}) == []
    assert reasons("", {}) == ["/: 'attributes' is a required property"]
    assert reasons("", {"attributes": {"room": "hall", "level": 500}}) == [
        "/attributes/level: 500 is greater than the maximum of 100"
    ]


def test_a_change_of_a_part_need_not_bring_the_rest() -> None:
    assert reasons("/attributes/level", 5) == []
    assert reasons("/attributes/level", 500) == [
        "/attributes/level: 500 is greater than the maximum of 100"
    ]
    assert reasons("/attributes", {"level": 5}) == [
        "/attributes: 'room' is a required property",
        "/attributes: {'level': 5} does not have enough properties",
    ]
    [strange] = reasons("/strange/place", 1)
    assert strange.startswith("/: Additional properties are not allowed ('strange' was unexpected")


def test_a_merge_need_not_bring_the_rest_at_any_depth() -> None:
    assert reasons("", {"attributes": {"level": 5, "room": None}}, merged=True) == []
    assert len(reasons("", {"attributes": {"level": 500}}, merged=True)) == 1
    assert without_nulls({"a": None, "b": {"c": None, "d": [None]}}) == {"b": {"d": [None]}}


def test_reasons_are_short_and_few() -> None:
    rule = Rule("r", schema={"items": {"type": "number"}})
    found = rule.reasons(["x" * 1000] * 100, 0, merged=False)
    assert len(found) == 5
    assert max(map(len, found)) == 200
