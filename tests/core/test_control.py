"""Text commands of a WebSocket session: spec websocket-... 1.2."""

from __future__ import annotations

import pytest

from acks.control import Control, Wish, named_correlation_id, read_control, read_wish
from acks.errors import GatewayError
from acks.journal import ANNOUNCEMENT, COMMAND, EVENT, LIVE_EVENT, MESSAGE
from acks.rql import Comparison


def wish(text: str) -> Wish:
    control = read_control(text)
    assert control is not None
    return read_wish(control)


def refused(text: str) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        wish(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("START-SEND-EVENTS", "START-SEND-EVENTS", EVENT),
        ("START-SEND-EVENTSxyz", "START-SEND-EVENTS", EVENT),
        ("STOP-SEND-EVENTS?namespaces", "STOP-SEND-EVENTS", EVENT),
        ("START-SEND-MESSAGES", "START-SEND-MESSAGES", MESSAGE),
        ("START-SEND-LIVE-COMMANDS?x=y", "START-SEND-LIVE-COMMANDS", COMMAND),
        ("START-SEND-LIVE-EVENTS", "START-SEND-LIVE-EVENTS", LIVE_EVENT),
        ("STOP-SEND-LIVE-EVENTS", "STOP-SEND-LIVE-EVENTS", LIVE_EVENT),
        ("START-SEND-POLICY-ANNOUNCEMENTS", "START-SEND-POLICY-ANNOUNCEMENTS", ANNOUNCEMENT),
        ("JWT-TOKEN?jwtToken=a.b.c", "JWT-TOKEN", ""),
        ("JWT-TOKEN", "JWT-TOKEN", ""),
    ],
)
def test_commands_are_known_by_how_they_begin(text: str, name: str, kind: str) -> None:
    control = read_control(text)
    assert control is not None
    assert (control.name, control.kind) == (name, kind)


@pytest.mark.parametrize("text", ["", "{}", "start-send-events", "START-SEND-NOTHING", " START"])
def test_everything_else_is_json(text: str) -> None:
    assert read_control(text) is None


def test_parameters_are_decoded() -> None:
    text = "START-SEND-EVENTS?filter=eq(attributes/a%26b,1)&a+b=c%3Dd&&e=f=g&u=%C3%BC%2B%2%zz%ff&"
    assert read_control(text) == Control(
        "START-SEND-EVENTS",
        EVENT,
        {"filter": "eq(attributes/a&b,1)", "a b": "c=d", "e": "f=g", "u": "ü+%2%zz\ufffd"},
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("START-SEND-EVENTS?namespaces", "'namespaces' has no value"),
        ("START-SEND-EVENTS?namespaces=a&namespaces=a", "'namespaces' is given twice"),
        ("JWT-TOKEN?jwtToken", "'jwtToken' has no value"),
    ],
)
def test_parameters_that_are_none(text: str, reason: str) -> None:
    with pytest.raises(GatewayError) as caught:
        read_control(text)
    problem = caught.value
    assert (problem.status, problem.code) == (400, "gateway:websocket.command.invalid")
    assert reason in (problem.description or "")


def test_a_wish() -> None:
    found = wish(
        "START-SEND-EVENTS?namespaces=org.one,%20org.two,&filter=gt(attributes/n,1)"
        "&extraFields=attributes,features/lamp&unknown=1"
    )
    assert found.namespaces == {"org.one", "org.two"}
    assert found.filter == Comparison("gt", "attributes/n", (1,))
    assert found.extra_fields is not None
    assert found.extra_fields.pointers == (("attributes",), ("features", "lamp"))
    assert wish("START-SEND-MESSAGES?extraFields=&namespaces=") == Wish(frozenset(), None, None)


@pytest.mark.parametrize("kind", ["EVENTS", "MESSAGES", "LIVE-EVENTS", "POLICY-ANNOUNCEMENTS"])
@pytest.mark.parametrize(
    "names", ["1bad", "org.one,1bad,2bad", "org.one, 1bad", "org..two", "a b", "org:x", "*", "ü",
              "n" * 257],
)  # fmt: skip
def test_namespaces_that_are_none(kind: str, names: str) -> None:
    problem = refused(f"START-SEND-{kind}?namespaces={names}")
    assert (problem.status, problem.code) == (400, "gateway:websocket.command.invalid")
    assert f"START-SEND-{kind}" in problem.message
    wrong = "1bad" if "1bad" in names else names[:64]
    assert problem.description == f"'{wrong}' in the parameter 'namespaces' is no namespace."


def test_announcements_have_namespaces_alone() -> None:
    found = wish("START-SEND-POLICY-ANNOUNCEMENTS?namespaces=a.b&filter=bad(&extraFields=nothing")
    assert found == Wish(frozenset({"a.b"}), None, None)


@pytest.mark.parametrize("filter_", ["", "eq(", "eq(nothing,1)", "eq(a, 1)", "nonsense"])
def test_filters_that_are_none(filter_: str) -> None:
    problem = refused(f"START-SEND-EVENTS?filter={filter_}")
    assert (problem.status, problem.code) == (400, "rql.expression.invalid")


@pytest.mark.parametrize("fields", ["faetures", "attributes(", "attributes//a", "a" * 9000])
def test_extra_fields_that_are_none(fields: str) -> None:
    problem = refused(f"START-SEND-EVENTS?extraFields={fields}")
    assert (problem.status, problem.code) == (400, "things:field.selection.invalid")
    assert problem.message.startswith(f"Thing field selection <{fields[:20]}")
    assert len(problem.message) < 200


def test_the_correlation_id_of_an_erroneous_command() -> None:
    assert named_correlation_id("START-SEND-EVENTS?filter=&correlation-id=a%20b&x") == "a b"
    assert named_correlation_id("START-SEND-EVENTS?filter=") is None
