"""Policy documents: what is valid, and what changes of their parts make of them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from acks.errors import GatewayError
from acks.policy import Policy
from acks.policy_document import (
    MAX_POLICY_BYTES,
    check_part,
    check_policy,
    check_result,
    delete_part,
    find_part,
    is_tombstone,
    not_found,
    parse_part,
    put_part,
    resolve_part,
    revision,
    tombstone,
)
from acks.resources import ABSENT

ME = "nginx:me"
ALL = {"grant": ["READ", "WRITE"], "revoke": []}
ENTRY: dict[str, Any] = {
    "subjects": {ME: {"type": "t"}},
    "resources": {"policy:/": ALL, "thing:/attributes": ALL},
}
POLICY: dict[str, Any] = {"policyId": "ns:p", "entries": {"mine": ENTRY}}


def entry(**fields: Any) -> dict[str, Any]:
    return {**deepcopy(ENTRY), **fields}


def refused(value: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        check_policy("ns:p", value, ME, 0)
    return caught.value


# --- parts


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("", ()),
        ("/", ()),
        ("/entries", ("entries",)),
        ("/entries/", ("entries",)),
        ("/entries/l", ("entries", "l")),
        ("/entries/l/subjects/", ("entries", "l", "subjects")),
        ("/entries/l/subjects/a:b", ("entries", "l", "subjects", "a:b")),
        ("/entries/l/subjects/a:b/c", ("entries", "l", "subjects", "a:b/c")),
        ("/entries/l/resources/thing:/", ("entries", "l", "resources", "thing:/")),
        ("/entries/l/resources/thing:", ("entries", "l", "resources", "thing:/")),
        ("/entries/l/resources/thing:/a/b/", ("entries", "l", "resources", "thing:/a/b")),
    ],
)
def test_parts_of_a_path(path: str, part: tuple[str, ...]) -> None:
    assert parse_part(path, path.split("/")[1:]) == part


@pytest.mark.parametrize(
    "path",
    ["/x", "/imports", "/entries//subjects", "/entries/l/importable", "/entries/l/x/y", "//"],
)
def test_paths_that_no_policy_has(path: str) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_part(path, path.split("/")[1:])
    assert caught.value.code == "gateway:resource.notfound"


def test_a_resource_of_an_unknown_kind_has_no_part() -> None:
    with pytest.raises(GatewayError) as caught:
        parse_part("", ["entries", "l", "resources", "car:", "wheel"])
    assert caught.value.code == "policies:entry.invalid"


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ((), "policies:policy.notfound"),
        (("entries",), "policies:policy.notfound"),
        (("entries", "l"), "policies:entry.notfound"),
        (("entries", "l", "subjects"), "policies:subjects.notfound"),
        (("entries", "l", "subjects", "a:b"), "policies:subject.notfound"),
        (("entries", "l", "resources"), "policies:resources.notfound"),
        (("entries", "l", "resources", "thing:/"), "policies:resource.notfound"),
    ],
)
def test_every_part_has_its_error(part: tuple[str, ...], code: str) -> None:
    problem = not_found("ns:p", part)
    assert problem.code == code
    assert "'ns:p'" in problem.message
    assert not part[-1:] or len(part) in (1, 3) or f"'{part[-1]}'" in problem.message


# --- validity


def test_what_is_stored_of_a_policy() -> None:
    given = {
        "policyId": "other:id",
        "_revision": 7,
        "imports": {},
        "entries": {
            "mine": {
                "subjects": {
                    "{{ request:subjectId }}": {"type": "me", "note": 1, "announcement": None},
                    "a:b": {"type": "t", "expiry": "2030-01-31T12:00:00Z"},
                },
                "resources": {"thing:/a/": {"grant": ["READ", "READ"]}},
                "importable": "never",
                "namespaces": [],
                "anything": 1,
            }
        },
    }
    assert check_policy("ns:p", given, ME, 0) == {
        "policyId": "ns:p",
        "entries": {
            "mine": {
                "subjects": {
                    ME: {"type": "me"},
                    "a:b": {"type": "t", "expiry": "2030-01-31T12:00:00Z"},
                },
                "resources": {"thing:/a": {"grant": ["READ"], "revoke": []}},
                "importable": "never",
            }
        },
    }


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "json.format.invalid"),
        ([], "json.format.invalid"),
        ({}, "json.field.missing"),
        ({"entries": None}, "json.format.invalid"),
        ({"entries": [1]}, "json.format.invalid"),
        ({"entries": {}}, "policies:entry.invalid"),
        ({"entries": {"l": 1}}, "json.format.invalid"),
        ({"entries": {"l": {"subjects": {}}}}, "json.field.missing"),
        ({"entries": {"l": entry(resources=None)}}, "json.field.missing"),
        ({"entries": {"l": entry(subjects=[])}}, "json.format.invalid"),
        ({"entries": {"": ENTRY}}, "policies:label.invalid"),
        ({"entries": {"a/b": ENTRY}}, "policies:label.invalid"),
        ({"entries": {"importedOne": ENTRY}}, "policies:label.invalid"),
        ({"entries": {"nsimported-a": ENTRY}}, "policies:label.invalid"),
        ({"entries": {"l" * 257: ENTRY}}, "policies:label.invalid"),
        ({"entries": {"l": entry(subjects={"me": {"type": "t"}})}}, "policies:subjectid.invalid"),
        ({"entries": {"l": entry(subjects={":": {"type": "t"}})}}, "policies:subjectid.invalid"),
        (
            {"entries": {"l": entry(subjects={"{{ x:y }}": {"type": "t"}})}},
            "policies:subjectid.invalid",
        ),
        ({"entries": {"l": entry(subjects={"a:b": {}})}}, "json.field.missing"),
        ({"entries": {"l": entry(subjects={"a:b": {"type": 1}})}}, "json.format.invalid"),
        ({"entries": {"l": entry(resources={"car:/": ALL})}}, "policies:entry.invalid"),
        ({"entries": {"l": entry(resources={"thing": ALL})}}, "policies:entry.invalid"),
        (
            {"entries": {"l": entry(resources={"thing:/a": ALL, "thing:/a/": ALL})}},
            "policies:entry.invalid",
        ),
        ({"entries": {"l": entry(resources={"thing:/": {}})}}, "json.field.missing"),
        ({"entries": {"l": entry(resources={"thing:/": []})}}, "json.format.invalid"),
        (
            {"entries": {"l": entry(resources={"thing:/": {"grant": ["FLY"]}})}},
            "policies:entry.invalid",
        ),
        (
            {"entries": {"l": entry(resources={"thing:/": {"grant": [{}]}})}},
            "policies:entry.invalid",
        ),
        ({"entries": {"l": entry(importable="always")}}, "policies:entry.invalid"),
    ],
)
def test_bad_policies_are_refused(value: Any, code: str) -> None:
    assert refused(value).code == code


@pytest.mark.parametrize(
    "value",
    [
        {"entries": {}, "imports": {"ns:q": {}}},
        {"entries": {"l": entry(namespaces=["a"])}},
        {"entries": {"l": entry(references=["x"])}},
        {"entries": {"l": entry(allowedAdditions=["subjects"])}},
    ],
)
def test_what_is_not_served_yet_is_refused_clearly(value: Any) -> None:
    problem = refused(value)
    assert problem.code == "policies:entry.invalid"
    assert "not supported yet" in (problem.description or "")


@pytest.mark.parametrize(
    "expiry", ["1970-01-01T00:00:00Z", "2030-01-01", "2030-01-01T00:00:00", "tomorrow", 5, {}, ""]
)
def test_bad_expiries_are_refused(expiry: Any) -> None:
    problem = refused(with_entry(subjects={"a:b": {"type": "t", "expiry": expiry}}))
    assert (problem.status, problem.code) == (400, "policies:subjectexpiry.invalid")


@pytest.mark.parametrize("expiry", ["9999-12-31T23:59:59-23:59", "2030-01-01T00:00:00.123456789Z"])
def test_unusual_expiries(expiry: str) -> None:
    value = {"type": "t", "expiry": expiry}
    assert check_part(("entries", "l", "subjects", "a:b"), value, ME, 0) == value


def test_the_requester_in_a_path() -> None:
    part = ("entries", "l", "subjects", "{{request:subjectId}}")
    assert resolve_part(part, ME) == ("entries", "l", "subjects", ME)
    with pytest.raises(GatewayError) as caught:
        resolve_part(("entries", "l", "subjects", "me"), ME)
    assert caught.value.code == "policies:subjectid.invalid"


# --- changes


def test_putting_parts_leaves_the_document_as_it_was() -> None:
    before = deepcopy(POLICY)
    for part, created in (
        (("entries", "new"), True),
        (("entries", "mine"), False),
        (("entries",), False),
        (("entries", "mine", "subjects", "a:b"), True),
        (("entries", "mine", "resources", "policy:/"), False),
    ):
        done = put_part(POLICY, part, {"v": 1})
        assert done.created is created
        assert done.document is not None
        assert find_part(done.document, part) == {"v": 1}
        assert before == POLICY


def test_deleting_parts() -> None:
    before = deepcopy(POLICY)
    done = delete_part(POLICY, ("entries", "mine", "subjects", ME))
    assert done.document is not None
    assert done.document["entries"]["mine"]["subjects"] == {}
    assert delete_part(POLICY, ()).document is None
    with pytest.raises(GatewayError) as caught:
        delete_part(POLICY, ("entries", "other"))
    assert caught.value.code == "policies:entry.notfound"
    assert before == POLICY
    assert find_part(POLICY, ("entries", "other", "subjects")) is ABSENT


def test_a_part_of_a_missing_entry_cannot_be_put() -> None:
    with pytest.raises(GatewayError) as caught:
        put_part(POLICY, ("entries", "other", "subjects", "a:b"), {"type": "t"})
    assert caught.value.code == "policies:entry.notfound"


# --- lockout


def check(
    document: dict[str, Any],
    *,
    allow: bool = False,
    part: tuple[str, ...] = (),
    before: dict[str, Any] | None = None,
) -> None:
    compiled = None if before is None else Policy(before)
    check_result(
        "ns:p", part, document, (ME, "x:y"), before=compiled, now_ms=0, allow_lockout=allow
    )


def with_entry(**fields: Any) -> dict[str, Any]:
    return {"policyId": "ns:p", "entries": {"mine": entry(**fields)}}


@pytest.mark.parametrize(
    "document",
    [
        with_entry(resources={"policy:/": {"grant": ["READ"], "revoke": []}}),
        with_entry(resources={"policy:/entries": ALL}),
        with_entry(resources={"policy:/": ALL, "policy:/a": {"grant": [], "revoke": ["WRITE"]}}),
        with_entry(subjects={"other:one": {"type": "t"}}),
        with_entry(subjects={ME: {"type": "t", "expiry": "2030-01-01T00:00:00Z"}}),
    ],
)
def test_nobody_locks_himself_out_by_accident(document: dict[str, Any]) -> None:
    check(document, allow=True)
    with pytest.raises(GatewayError) as caught:
        check(document)
    assert (caught.value.status, caught.value.code) == (403, "policies:policy.modificationinvalid")
    with pytest.raises(GatewayError) as caught:
        check(document, part=("entries", "mine", "subjects", ME))
    assert (caught.value.status, caught.value.code) == (403, "policies:entry.modificationinvalid")


def test_who_had_no_write_on_all_of_it_cannot_lose_it() -> None:
    others = with_entry(subjects={"other:one": {"type": "t"}})
    check(others, before=others)
    for before in (None, POLICY):
        with pytest.raises(GatewayError):
            check(others, before=before)
    with pytest.raises(GatewayError):  # somebody must have it nevertheless
        check(with_entry(resources={"policy:/entries": ALL}), before=others)


def test_a_tombstone_goes_on_from_the_policy_and_keeps_its_entries() -> None:
    left = tombstone({**POLICY, "_revision": 4})
    assert is_tombstone(left)
    assert not is_tombstone(POLICY)
    assert (revision(left), left["entries"]) == (5, POLICY["entries"])
    assert revision(tombstone(POLICY)) == 2  # a thing brought it along


def test_any_of_the_requesters_subjects_will_do() -> None:
    check(POLICY)
    check(with_entry(subjects={"x:y": {"type": "t"}}))


def test_a_policy_keeps_an_entry() -> None:
    with pytest.raises(GatewayError) as caught:
        check({"policyId": "ns:p", "entries": {}}, allow=True, part=("entries", "mine"))
    assert caught.value.code == "policies:entry.modificationinvalid"


def test_a_policy_is_not_too_large() -> None:
    big = with_entry(subjects={f"a:{'x' * 200}{n}": {"type": "t" * 800} for n in range(110)})
    with pytest.raises(GatewayError) as caught:
        check(big, allow=True)
    assert (caught.value.status, caught.value.code) == (413, "policies:policy.toolarge")
    assert f"'{MAX_POLICY_BYTES}'" in caught.value.message
