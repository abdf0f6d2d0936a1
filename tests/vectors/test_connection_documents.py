"""The vectors about the documents of connections."""

from __future__ import annotations

import re
from typing import Any

import pytest

from acks.errors import GatewayError
from acks.fields import parse_fields
from connections.documents.hosts import check_host, literal_addresses
from connections.documents.reading import read_source, read_target
from connections.documents.topics import parse_topic
from connections.documents.uris import parse_uri
from connections.documents.validation import check_connection
from tests.connections.documents import document, source, target
from tests.vectors import load

Json = Any


def refuse(caught: GatewayError, expected: Json) -> None:
    """Assert that it is the expected error, as far as the vector says."""
    assert (caught.status, caught.code) == (expected["status"], expected["error"])
    assert caught.message == expected.get("message", caught.message)


@pytest.mark.parametrize(("given", "expected"), load("connection.uri"))
def test_uri(given: str, expected: Json) -> None:
    if expected["ok"]:
        uri = parse_uri(given)
        parts = {name: value for name, value in expected.items() if name != "ok"}
        assert {name: getattr(uri, name) for name in parts} == parts
        return
    with pytest.raises(GatewayError) as caught:
        parse_uri(given)
    refuse(caught.value, expected)


@pytest.mark.parametrize(("given", "expected"), load("connection.filtered_topic"))
def test_filtered_topic(given: str, expected: Json) -> None:
    if not expected.get("ok", True):
        with pytest.raises(GatewayError) as caught:
            parse_topic(given)
        refuse(caught.value, expected)
        return
    topic = parse_topic(given)
    fields = expected["extraFields"] or []
    selected = parse_fields(topic.extra_fields).pointers if topic.extra_fields else ()
    assert topic.path == expected["topic"]
    assert topic.namespaces == set(expected["namespaces"])
    assert topic.filter == (expected["filter"] or "")
    assert selected == tuple(tuple(field.strip("/").split("/")) for field in fields)


@pytest.mark.parametrize(("given", "expected"), load("connection.json"))
def test_json(given: Json, expected: Json) -> None:
    if given["kind"] == "source":
        kind = given.get("connectionType", "amqp-091")
        assert read_source(given["json"], "sources[0]", kind) == given["json"]
        return
    if given["kind"] == "target":
        assert read_target(given["json"], "targets[0]") == given["json"]
        return
    if "json" in given:
        wrong = document() | given["json"]
    else:
        wrong = document(
            clientCount=given["clientCount"],
            targets=[target(topics=one["topics"]) for one in given["targets"]],
        )
    with pytest.raises(GatewayError) as caught:
        check_connection(wrong, "C")
    refuse(caught.value, expected)


def built(given: Json) -> Json:
    """A document that is as the vector says, and right in everything else."""
    one: Json = document()
    for name, value in given.items():
        match name.split("."):
            case ["connectionId"] | ["blocked-hostnames"]:
                continue
            case ["source", field]:
                one["sources"] = [source(**{field: value})]
            case ["sources", field]:
                one["sources"] = [source(**{field: [label]}) for label in value]
            case ["target", field]:
                one["targets"] = [target(**{field: value})]
            case ["targets", field]:
                one["targets"] = [target(**{field: each}) for each in value]
            case ["uri", "host"]:
                one["uri"] = f"tcp://{value}:1883"
            case ["number_of_sources"]:
                assert re.fullmatch(r"> max \(4\)", value)
                one["sources"] = [source() for _ in range(5)]
            case ["number_of_targets"]:
                assert re.fullmatch(r"> max \(4\)", value)
                one["targets"] = [target() for _ in range(5)]
            case ["connectionType"]:
                one |= {"connectionType": value, "uri": "tcp://broker:9092"}
            case _:
                one[name] = value
    return one


@pytest.mark.parametrize(("given", "expected"), load("connection.validate"))
def test_validate(given: Json, expected: Json) -> None:
    blocked = frozenset({"some.host"} if "blocked-hostnames" in given else ())

    def check() -> None:
        _, connection = check_connection(built(given), given.get("connectionId", "C"))
        check_host(connection.uri, literal_addresses(connection.uri), blocked)

    if expected["accepted"]:
        check()
        return
    with pytest.raises(GatewayError) as caught:
        check()
    refuse(caught.value, expected)
