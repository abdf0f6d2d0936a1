"""Properties of the core that hold for every input."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acks.aggregator import Aggregator, http_answer
from acks.document import format_pointer, parse_pointer, put
from acks.errors import GatewayError
from acks.headers import (
    HeaderDefaults,
    Setter,
    check_zero_timeout,
    complete,
    parse_duration_ms,
    split_list,
)
from acks.pending import Pending
from acks.signals import Acknowledgement, Response
from acks.topic import event_topic, parse_topic

labels = st.lists(st.sampled_from(["aaa", "bbb", "ccc", "ddd"]), min_size=1, unique=True)
statuses = st.integers(100, 599)


def acks_for(names: list[str], codes: list[int]) -> list[Acknowledgement]:
    return [Acknowledgement(n, "ns:n", "c", s) for n, s in zip(names, codes, strict=False)]


@given(labels, st.lists(statuses, min_size=4, max_size=4), st.randoms())
def test_the_outcome_does_not_depend_on_the_order_of_acks(
    names: list[str], codes: list[int], random: Random
) -> None:
    def run(acks: list[Acknowledgement]) -> object:
        aggregator = Aggregator("ns:n", "c", tuple(names), 1000)
        outcomes = [o for o in map(aggregator.receive, acks) if o is not None]
        assert len(outcomes) == 1
        return http_answer(outcomes[0], True, {})

    acks = acks_for(names, codes)
    shuffled = list(acks)
    random.shuffle(shuffled)
    assert run(acks) == run(shuffled)


@given(
    labels,
    st.lists(
        st.tuples(st.sampled_from(["aaa", "bbb", "ccc", "x-x", "expire", "respond"]), statuses)
    ),
)
def test_at_most_one_outcome_per_key(names: list[str], steps: list[tuple[str, int]]) -> None:
    pending: Pending[str] = Pending()
    pending.open("c", Aggregator("ns:n", "c", tuple(names), 1000), 1.0, "waiter")
    outcomes = []
    for what, status in steps:
        if what == "expire":
            outcomes += pending.expire(2.0)
        elif what == "respond":
            done = pending.respond("c", Response(204, None, {}))
            outcomes += [done] if done else []
        else:
            done = pending.receive("c", Acknowledgement(what, "ns:n", "c", status))
            outcomes += [done] if done else []
    assert len(outcomes) <= 1
    assert ("c" in pending) == (not outcomes)


asked = st.none() | st.lists(
    st.sampled_from(["twin-persisted", "live-response", "search-persisted", "my-ack"]), unique=True
).map(tuple)


def refused(response_required: bool, acks: tuple[str, ...], timeout: int) -> bool:
    return timeout == 0 and (response_required or bool(acks))


@given(
    st.sampled_from(list(Setter)),
    asked,
    st.none() | st.booleans(),
    st.none() | st.sampled_from([0, 1, 60_000]),
    st.sampled_from(["documented", "ditto"]),
)
def test_no_defaulting_turns_a_valid_combination_into_an_error(
    setter: Setter,
    acks: tuple[str, ...] | None,
    response_required: bool | None,
    timeout: int | None,
    defaults: HeaderDefaults,
) -> None:
    done = complete(setter, acks, response_required, timeout, defaults)
    if refused(response_required is True, acks or (), 1 if timeout is None else timeout):
        return
    try:
        check_zero_timeout(done)
    except GatewayError as problem:
        raise AssertionError(f"{acks} {response_required} {timeout}") from problem


@given(st.lists(st.text(min_size=1), min_size=1).map(tuple))
def test_pointers_round_trip(path: tuple[str, ...]) -> None:
    assert parse_pointer(format_pointer(path)) == path


@given(
    st.from_regex(r"[a-z][a-z.]{0,8}", fullmatch=True).filter(lambda text: ".." not in text),
    st.text(st.characters(codec="ascii", exclude_characters="/", categories=["L", "N", "P"]),
            min_size=1),
    st.sampled_from(["created", "modified", "merged", "deleted"]),
)  # fmt: skip
def test_event_topics_round_trip(namespace: str, name: str, action: str) -> None:
    topic = parse_topic(event_topic(f"{namespace}:{name}", action))
    assert (topic.thing_id, topic.criterion, topic.action) == (
        f"{namespace}:{name}", "events", action,
    )  # fmt: skip


@given(st.integers(0, 10**9), st.sampled_from(["", "s", "ms", "m"]))
def test_durations_are_linear_in_their_unit(amount: int, unit: str) -> None:
    assert parse_duration_ms(f"{amount}{unit}") == amount * parse_duration_ms(f"1{unit}")


def duration_or_code(text: str) -> int | str:
    try:
        return parse_duration_ms(text)
    except GatewayError as problem:
        return problem.code


@given(st.text())
def test_lists_never_fail_and_durations_fail_cleanly(text: str) -> None:
    assert isinstance(split_list(text), list)
    assert duration_or_code(text) == "timeout.invalid" or parse_duration_ms(text) >= 0


@given(
    st.dictionaries(st.text(min_size=1), st.integers() | st.dictionaries(st.text(), st.integers())),
    st.lists(st.text(min_size=1), min_size=1).map(tuple),
    st.integers(),
)
def test_put_then_get(document: dict[str, Any], path: tuple[str, ...], value: int) -> None:
    before = repr(document)
    changed, _ = put(document, path, value)
    node: Any = changed
    for part in path:
        node = node[part]
    assert node == value
    assert repr(document) == before
