"""The vectors about entity tags and preconditions."""

from __future__ import annotations

from typing import Any

import pytest

from acks.errors import GatewayError
from acks.preconditions import check_tags, parse_preconditions, parse_tags, same_tag, tags_match
from tests.vectors import load

Json = Any


@pytest.mark.parametrize(("given", "expected"), load("entity-tag"))
def test_entity_tag(given: Json, expected: Json) -> None:
    if "compare" in given:
        weakly = given["compare"] == "weak"
        assert same_tag(given["a"], given["b"], weakly=weakly) is expected["equal"]
        if weakly == given["a"].startswith("W/"):
            # The kind of comparison follows the current tag.
            assert tags_match((given["b"],), given["a"]) is expected["equal"]
    elif expected["valid"]:
        assert parse_tags("if-match", given["tag"]) == (given["tag"],)
    else:
        with pytest.raises(GatewayError) as caught:
            parse_tags("if-match", given["tag"])
        problem = caught.value
        assert (problem.status, problem.code) == (expected["status"], expected["error"])
        assert problem.message == expected["message"]


@pytest.mark.parametrize(("given", "expected"), load("precondition"))
def test_precondition(given: Json, expected: Json) -> None:
    current = given.pop("currentEtag")
    checks = parse_preconditions(given)
    assert checks is not None
    if expected["passes"]:
        check_tags(checks, current, kind="modify")
        return
    with pytest.raises(GatewayError) as caught:
        check_tags(checks, current, kind="modify")
    assert (caught.value.status, caught.value.code) == (412, "things:precondition.failed")
