"""Which member of a group gets a signal, and who gets it when that one is gone."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from acks.declared import Assignments, Order, Weak, check_group, holder_of, is_assignable, why_taken
from acks.errors import GatewayError
from acks.journal import EntryMeta
from acks.rotation import Rotation

FAR = 1_000_000
KEY = ("c1", False)
PLACE = (3, "17-0")


def assignments(*members: str, limit: int = 100, group: str = "workers") -> Assignments:
    made = Assignments(limit)
    made.update({group: (["my:ack"], members)})
    return made


def assign(made: Assignments, number: int, deadline: int = FAR, sender: str = "") -> str | None:
    return made.assign((f"c{number}", False), ["x:y", "my:ack"], deadline, 0, sender).get("workers")


@pytest.mark.parametrize("name", ["abc", "a-b_c:9", "x" * 165])
def test_a_group_is_named_like_a_label(name: str) -> None:
    assert check_group(name, ["my:ack"]) == name
    assert check_group(None, []) == ""


@pytest.mark.parametrize(
    "name", ["", "ab", "x" * 166, "a b c", "a/b", "{{connection:id}}:abc", "abc\n"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(GatewayError) as refused:
        check_group(name, ["my:ack"])
    assert (refused.value.status, refused.value.code) == (400, "header.invalid")


def test_a_group_needs_labels() -> None:
    with pytest.raises(GatewayError) as refused:
        check_group("workers", [])
    assert "declared-acks" in (refused.value.description or "")
    assert refused.value.message == "The group 'workers' in 'ack-group' has no labels to share."


@pytest.mark.parametrize(
    ("labels", "shared", "reason"),
    [
        (["a:b", "my:ack"], ["my:ack"], "The group 'workers' has no label 'a:b', "),
        (["x:y"], ["a:b", "my:ack"], "The group 'workers' has no label 'x:y', "),
        (["my:ack"], ["my:ack", "x:y"], "The group 'workers' has more labels than these, "),
        (["my:ack"], ["my:ack"], "The label 'my:ack' has an owner outside the group 'workers'."),
        (["my:ack"], [], "The label 'my:ack' has an owner outside the group 'workers'."),
    ],
)
def test_who_may_not_join_is_told_what_differs(
    labels: list[str], shared: list[str], reason: str
) -> None:
    text = why_taken("workers", labels, shared, "my:ack")
    assert text.startswith(reason)
    assert "eclare" in text, "what to do about it"
    assert ("x:y" in text) == ("x:y" in labels), "labels of others are not told"


def test_members_are_named_by_holder_and_session() -> None:
    assert holder_of("n1/s1") == "n1"
    assert is_assignable("n1/s1")
    assert not is_assignable("spark-0123/query")


@pytest.mark.parametrize("assigned", [{}, {"workers": "n1/s1", "": "n2"}])
def test_an_entry_says_who_was_chosen(assigned: dict[str, str]) -> None:
    labels, readers = ("my:ack",), ("nginx:a",)
    meta = EntryMeta(
        "n:t", "created", "/", 1, "now", "c1", labels, "n1", 5, readers, assigned=assigned
    )
    text = json.dumps(meta.to_json())
    assert EntryMeta.from_json(json.loads(text)) == meta
    assert ('"g"' in text) == bool(assigned)


def test_what_is_still_owed_is_still_assigned() -> None:
    made = Assignments(10)
    made.update({"workers": (["my:ack", "my:other"], ["a/1"])})
    made.assign(KEY, ["my:ack", "my:other"], FAR, 0)
    assert not made.still(("c2", True), "workers", {"my:ack"})
    assert not made.still(KEY, "others", {"my:ack"})
    assert made.still(KEY, "workers", {"my:ack", "my:other"})
    assert made.still(KEY, "workers", {"my:other"})
    assert not made.still(KEY, "workers", {"my:ack"})
    assert not made.open


def test_each_member_gets_its_turn() -> None:
    made = assignments("a/1", "a/2", "b/1")
    assert [assign(made, n) for n in range(6)] == ["a/1", "a/2", "b/1"] * 2


def test_the_turn_goes_on_when_signals_are_done_at_once() -> None:
    made = assignments("a/1", "a/2")
    found = []
    for number in range(4):
        found.append(assign(made, number))
        made.acknowledged((f"c{number}", False), "my:ack")
    assert found == ["a/1", "a/2", "a/1", "a/2"]
    assert not made.open


def test_who_has_less_to_do_comes_first() -> None:
    made = assignments("a/1", "a/2")
    for number in range(4):
        assign(made, number)
    made.acknowledged(("c1", False), "my:ack")
    made.acknowledged(("c3", False), "my:ack")
    assert [assign(made, n) for n in (4, 5)] == ["a/2", "a/2"]


def test_labels_of_no_group_concern_nobody_here() -> None:
    made = assignments("a/1")
    assert made.assign(KEY, ["x:y"], FAR, 0) == {}
    assert not made.open


def test_groups_are_chosen_from_on_their_own() -> None:
    made = Assignments(10)
    made.update({"one": (["l:1", "l:2"], ["a/1"]), "two": (["l:3"], ["a/2"])})
    assert made.assign(KEY, ["l:1", "l:2", "l:3", "l:4"], FAR, 0) == {"one": "a/1", "two": "a/2"}
    made.acknowledged(KEY, "l:1")
    made.acknowledged(KEY, "l:3")
    assert KEY in made.open
    made.acknowledged(KEY, "l:2")
    assert not made.open


def test_a_sender_does_not_get_its_own_signal() -> None:
    made = assignments("a/1", "a/2")
    assert [assign(made, n, sender="a/1") for n in range(3)] == ["a/2"] * 3
    alone = assignments("a/1")
    assert assign(alone, 0, sender="a/1") is None


def test_a_signal_of_a_member_that_is_gone_goes_to_another() -> None:
    made = assignments("a/1", "b/1")
    assert assign(made, 1) == "a/1"
    assert made.written(KEY, PLACE) == []
    assert made.update({"workers": (["my:ack"], ["b/1"])}) == [
        Order(KEY, "workers", "b/1", PLACE, redelivered=True, tried=())
    ]
    assert made.update({"workers": (["my:ack"], ["b/1"])}) == []


def test_an_order_stands_while_the_signal_is_for_its_member() -> None:
    made = assignments("a/1", "b/1", "c/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    [first] = made.update({"workers": (["my:ack"], ["b/1", "c/1"])})
    assert made.stands(first)
    [second] = made.update({"workers": (["my:ack"], ["c/1"])})
    assert not made.stands(first)
    assert made.stands(second)
    made.acknowledged(KEY, "my:ack")
    assert not made.stands(second)


def test_what_was_acknowledged_is_not_given_to_another() -> None:
    made = assignments("a/1", "b/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    made.acknowledged(KEY, "my:ack")
    assert made.update({"workers": (["my:ack"], ["b/1"])}) == []


def test_a_signal_without_a_member_waits_for_one() -> None:
    made = assignments("a/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    assert made.update({}) == []
    assert made.update({"others": (["x:z"], ["b/1"])}) == []
    assert made.update({"workers": (["z:z"], ["b/1"])}) == [], "it has other labels now"
    [order] = made.update({"workers": (["my:ack"], ["b/2"])})
    assert (order.member, order.redelivered) == ("b/2", True)


def test_a_signal_waits_until_its_deadline_only() -> None:
    made = assignments("a/1")
    assign(made, 1, deadline=50)
    made.written(KEY, PLACE)
    made.update({})
    made.expire(49)
    assert KEY in made.open
    made.expire(50)
    assert not made.open
    assert made.update({"workers": (["my:ack"], ["b/2"])}) == []


def test_a_member_that_goes_before_the_write_is_replaced_after_it() -> None:
    made = assignments("a/1", "b/1")
    assign(made, 1)
    assert made.update({"workers": (["my:ack"], ["b/1"])}) == []
    assert made.update({"workers": (["my:ack"], ["b/2"])}) == []
    [order] = made.written(KEY, PLACE)
    assert (order.member, order.place, order.redelivered) == ("b/2", PLACE, True)
    assert made.written(KEY, PLACE) == []


def test_the_next_member_is_tried_when_one_passes() -> None:
    made = assignments("a/1", "a/2", "b/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    order = made.passed(KEY, "workers", ["a/1"], "not subscribed")
    assert order == Order(KEY, "workers", "a/2", PLACE, redelivered=False, tried=("a/1",))
    order = made.passed(KEY, "workers", ["a/2"], "filtered")
    assert order == Order(KEY, "workers", "b/1", PLACE, redelivered=False, tried=())
    assert made.passed(KEY, "workers", ["b/1"], None) == Weak(KEY, ("my:ack",), "filtered")
    assert not made.open


def test_only_who_has_a_signal_can_pass_it() -> None:
    made = assignments("a/1", "b/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    assert made.passed(KEY, "workers", ["b/1"], "no") is None
    assert made.passed(KEY, "nobody", ["a/1"], "no") is None
    assert made.passed(("c2", False), "workers", ["a/1"], "no") is None
    order = made.passed(KEY, "workers", ["a/1"], "no")
    assert isinstance(order, Order)
    assert order.member == "b/1"


def test_members_without_a_reason_leave_the_signal_waiting() -> None:
    made = assignments("a/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    assert made.passed(KEY, "workers", ["a/1"], None) is None
    assert made.update({"workers": (["my:ack"], ["a/1"])}) == [], "it has been asked"
    [order] = made.update({"workers": (["my:ack"], ["a/1", "a/2"])})
    assert (order.member, order.tried) == ("a/2", ("a/1",))


def test_a_pass_before_the_write_is_answered_after_it() -> None:
    made = assignments("a/1", "b/1")
    assign(made, 1)
    assert made.passed(KEY, "workers", ["a/1"], "no") is None
    [order] = made.written(KEY, PLACE)
    assert (order.member, order.redelivered) == ("b/1", False)


def test_a_signal_that_another_member_of_the_node_took_is_its_own() -> None:
    made = assignments("a/1", "a/2", "b/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    made.moved(KEY, "workers", "b/1", "a/2")
    made.moved(KEY, "workers", "a/1", "a/2")
    assert made.update({"workers": (["my:ack"], ["a/2", "b/1"])}) == []
    [order] = made.update({"workers": (["my:ack"], ["b/1"])})
    assert (order.member, order.redelivered) == ("b/1", True)


def test_a_member_that_is_not_known_yet_may_take_a_signal() -> None:
    made = assignments("a/1", "b/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    made.moved(KEY, "workers", "a/1", "a/9")
    assert made.update({"workers": (["my:ack"], ["a/9", "b/1"])}) == []
    [order] = made.update({"workers": (["my:ack"], ["b/1"])})
    assert order.member == "b/1"
    made = assignments("a/1", "b/1")
    assign(made, 1)
    made.written(KEY, PLACE)
    made.moved(KEY, "workers", "a/1", "a/9")
    [order] = made.update({"workers": (["my:ack"], ["a/1", "b/1"])})
    assert order.member == "b/1", "gone before it was known; a/1 has passed"


def test_a_group_that_was_not_known_is_taken_in_later() -> None:
    made = Assignments(10)
    assert made.adopt(KEY, ["my:ack"], FAR, 0, "workers", PLACE) is None
    assert made.adopt(KEY, ["my:ack"], FAR, 0, "workers", PLACE) is None
    orders = made.update({"workers": (["my:ack"], ["a/1", "b/1"])})
    assert orders == [Order(KEY, "workers", "a/1", PLACE, redelivered=False, tried=())]
    assert made.adopt(KEY, ["my:ack"], FAR, 0, "workers", PLACE) is None, "a/1 has it"
    other = ("c2", False)
    order = made.adopt(other, ["my:ack"], FAR, 0, "workers", PLACE)
    assert order is not None
    assert order.member == "b/1"


def test_requests_of_the_same_name_are_kept_apart() -> None:
    made = assignments("a/1", "b/1")
    made.assign(("c1", False), ["my:ack"], FAR, 0)
    made.assign(("c1", True), ["my:ack"], FAR, 0)
    made.acknowledged(("c1", True), "my:ack")
    assert list(made.open) == [("c1", False)]


def test_no_more_requests_are_known_than_allowed() -> None:
    made = assignments("a/1", limit=3)
    for number in range(10):
        assign(made, number, deadline=100 + number)
    assert list(made.open) == [("c7", False), ("c8", False), ("c9", False)]


def test_what_is_done_leaves_nothing_behind() -> None:
    made = assignments("a/1", "b/1")
    for number in range(20_000):
        assign(made, number)
        made.acknowledged((f"c{number}", False), "my:ack")
    assert not made.open
    assert not made._having
    assert len(made._deadlines) < 2_000


def test_a_request_may_be_opened_again() -> None:
    made = assignments("a/1", "b/1")
    assign(made, 1, deadline=10)
    assert assign(made, 1, deadline=90) == "b/1"
    made.expire(10)
    assert list(made.open) == [KEY]


def test_a_rotation_counts_down_to_nothing() -> None:
    rotation = Rotation()
    assert rotation.choose() is None
    rotation.replace(["a", "b"])
    rotation.add("a", -1)
    rotation.add("c", 1)
    assert [rotation.choose(), rotation.choose(), rotation.choose(("b",))] == ["b", "a", "a"]
    assert rotation.replace(["b", "c"]) == ["a"]
    assert (len(rotation), "a" in rotation, "c" in rotation) == (2, False, True)
    assert rotation.choose() == "c"


def test_whatever_happens_a_signal_is_with_a_member_that_is_there_or_waits() -> None:
    """Members come and go at random; each order is for somebody who is there."""
    rng = random.Random(4)
    names = [f"{node}/{n}" for node in "abc" for n in range(4)]
    made, there, place = Assignments(1_000), set[str](), 0
    having: dict[tuple[str, bool], str | None] = {}
    given: Counter[str] = Counter()

    def take(orders: list[Order]) -> None:
        for order in orders:
            assert order.member in there
            assert having[order.key] is None
            having[order.key] = order.member
            given[order.member] += 1

    for step in range(5_000):
        if rng.random() < 0.1:
            there = set(rng.sample(names, rng.randrange(len(names))))
            for key, member in having.items():
                having[key] = member if member in there else None
            take(made.update({"workers": (["my:ack"], sorted(there))} if there else {}))
            assert None not in having.values() or not there
        elif rng.random() < 0.5:
            key, place = (f"c{step}", False), place + 1
            member = made.assign(key, ["my:ack"], FAR, 0).get("workers")
            assert (member in there) if there else member is None
            if member is not None:
                having[key] = member
                take(made.written(key, (0, f"{place}-0")))
        elif having:
            key = rng.choice(list(having))
            made.acknowledged(key, "my:ack")
            del having[key]
    assert set(made.open) == set(having)
    assert set(given) == set(names)
