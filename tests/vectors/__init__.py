"""Input -> expected, extracted from Ditto's tests and sources; every vector runs by its id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(*areas: str) -> list[Any]:
    """The vectors of these areas as pytest parameters with their ids. Raises if there are none."""
    import pytest

    found = []
    for path in sorted(Path(__file__).parent.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            vector = json.loads(line)
            if vector["area"] in areas:
                found.append(pytest.param(vector["input"], vector["expected"], id=vector["id"]))
    assert found, areas
    return found
