"""Input -> expected; every vector runs by its id.

``acks-http.jsonl`` and ``ws-connections.jsonl`` are extracted from Ditto's tests and sources,
``own.jsonl`` and ``rules.jsonl`` say what our specification asks for beside them. Their
``{"ref": name}`` stand for the documents in ``shared.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(*areas: str) -> list[Any]:
    """The vectors of these areas as pytest parameters with their ids. Raises if there are none."""
    import pytest

    place = Path(__file__).parent
    shared = json.loads((place / "shared.json").read_text())

    def whole(value: dict[str, Any]) -> Any:
        return shared[value["ref"]] if value.keys() == {"ref"} else value

    found = []
    for path in sorted(place.glob("*.jsonl")):
        # Not by splitlines: JSON may hold more kinds of line ends.
        for line in path.read_text().split("\n"):
            if not line:
                continue
            vector = json.loads(line, object_hook=whole)
            if vector["area"] in areas:
                found.append(pytest.param(vector["input"], vector["expected"], id=vector["id"]))
    assert found, areas
    return found
