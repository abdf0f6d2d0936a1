"""The documents in docs/connections.md are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from connections.documents.reading import read_document
from connections.documents.validation import connection_of

PAGE = Path(__file__).parents[2] / "docs" / "connections.md"
EXAMPLES = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_valid(text: str) -> None:
    connection = connection_of(read_document(json.loads(text), "example-1"))
    assert connection.open
    assert connection.targets
