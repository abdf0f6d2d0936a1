"""Vectors of placeholder functions, and of the subjects that a token stands for."""

from __future__ import annotations

from typing import Any

import pytest

from app.jwt_tokens import subjects_of
from connections.placeholders.lookups import PREFIXES
from connections.placeholders.templates import parse_pipeline, parse_template
from tests.vectors import load


@pytest.mark.parametrize(("given", "expected"), load("fn.filter"))
def test_filter(given: dict[str, Any], expected: list[str]) -> None:
    pipeline = parse_pipeline(f"fn:filter{given['args']}", PREFIXES)
    context = given["context"]
    values = pipeline.resolve(
        lambda prefix, name: context.get(f"{prefix}:{name}", []), tuple(given["pipeline_input"])
    )
    assert list(values) == expected


@pytest.mark.parametrize(("given", "expected"), load("auth.jwt_subjects"))
def test_subjects_of_a_token(given: dict[str, Any], expected: list[str]) -> None:
    templates = [parse_template(text, frozenset({"jwt"})) for text in given["auth-subjects"]]
    assert subjects_of(given["issuer_key"], given["claims"], templates) == expected
