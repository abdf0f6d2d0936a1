"""JSON schemas of searches, for the OpenAPI document (spec websocket-... 6.4)."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SEARCH: Json = {
    "SearchResultThings": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/Thing"},
                "description": "What was found, as it is now; may be less than a page.",
            },
            "cursor": {
                "type": "string",
                "description": "Of the next page, if there is one: for the option `cursor`.",
            },
            "nextPageOffset": {
                "type": "integer",
                "minimum": 1,
                "description": "With the option `limit`: where the next page begins, if there is "
                "one.",
            },
        },
        "required": ["items"],
    },
}
