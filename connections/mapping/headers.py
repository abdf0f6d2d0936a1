"""Header mapping of sources, targets and reply targets: names and texts with placeholders."""

from __future__ import annotations

from collections.abc import Mapping

from connections.placeholders.lookups import read_template
from connections.placeholders.templates import Lookup, Template

HeaderMapping = Mapping[str, Template]


def parse_header_mapping(mapping: Mapping[str, str]) -> HeaderMapping:
    """Read a ``headerMapping``; names become lower case. Raises PlaceholderError."""
    return {name.lower(): read_template(text) for name, text in mapping.items()}


def map_headers(mapping: HeaderMapping, lookup: Lookup) -> dict[str, str]:
    """The headers it makes; what is not resolved is left out, of several values the first counts.

    On the way in they go over the headers of the envelope (``envelope["headers"]``).
    """
    found = {name: template.resolve(lookup) for name, template in mapping.items()}
    return {name: values[0] for name, values in found.items() if values}
