"""The vectors about the options of a search."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError
from acks.search_options import Cursor, Limit, Option, Size, Sort, parse_options
from tests.vectors import load

Json = Any


def as_vector(option: Option) -> Json:
    match option:
        case Sort(keys):
            return {"sort": [[f"/{key[0]}", "DESC" if key[1] else "ASC"] for key in keys]}
        case Limit(offset, number):
            return {"limit": [offset, number]}
        case Cursor(text):
            return {"cursor": text}
        case Size(number):
            return {"size": number}


@pytest.mark.parametrize(("given", "expected"), load("search.option"))
def test_options(given: str, expected: Json) -> None:
    if expected["ok"]:
        assert list(map(as_vector, parse_options(given))) == expected["options"]
        return
    with pytest.raises(GatewayError) as problem:
        parse_options(given)
    assert (problem.value.code, problem.value.status) == (expected["error"], expected["status"])
