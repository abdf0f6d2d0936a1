"""The examples of docs/connections/mapping.md do what the page says."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connections.mapping.mappers import Message
from connections.mapping.payloads import map_incoming, map_outgoing, mappers_of
from connections.placeholders.functions import FUNCTIONS
from connections.placeholders.lookups import PREFIXES, Scope, text_headers

PAGE = (Path(__file__).parents[2] / "docs" / "connections" / "mapping.md").read_text()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEADERS = {"mqtt.topic": "acme/in"}


def examples(title: str) -> list[Any]:
    """The JSON blocks of a section, in their order."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [json.loads(text) for text in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]


def mapped_in(definitions: Any, payload: bytes) -> Any:
    mappers = mappers_of(tuple(definitions), definitions)
    mapped = map_incoming(mappers, Message(payload, None, HEADERS), Scope("C", NOW, HEADERS))
    assert mapped.problems == ()
    [envelope] = mapped.envelopes
    return envelope


def test_json_comes_in() -> None:
    definitions, payload, expected = examples("JsonTemplate, incoming")
    assert mapped_in(definitions, json.dumps(payload).encode()) == expected


def test_json_goes_out() -> None:
    definitions, envelope, expected = examples("JsonTemplate, outgoing")
    mappers = mappers_of(tuple(definitions), definitions)
    scope = Scope("C", NOW, text_headers(envelope), envelope)
    [message] = map_outgoing(mappers, envelope, scope).messages
    assert json.loads(message.payload) == expected
    assert message.headers == {"kind": "modified"}
    assert message.content_type == "application/json"


def test_raw_messages_come_in() -> None:
    definitions, expected = examples("RawMessage")
    assert mapped_in(definitions, b"Hey") == expected


def test_the_page_names_every_placeholder_and_function() -> None:
    table = PAGE.partition("\n## Placeholders\n")[2]
    assert [prefix for prefix in sorted(PREFIXES) if f"`{prefix}:" not in table] == []
    assert [name for name in FUNCTIONS if f"`fn:{name}(" not in table] == []
