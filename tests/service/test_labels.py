"""``GET /api/2/acks/labels``: who owns which declared label."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.gateways import Gateway, Subscriber, check_error, http, new_id, new_label, thing

LABELS = "/api/2/acks/labels"


@pytest.fixture
async def operator(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway, "devops") as client:
        yield client


async def test_an_operator_sees_who_owns_what(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    alone, shared, group = new_label(), new_label(), new_label()
    async with (
        Subscriber.open(gateway, alone, user="user2"),
        Subscriber.open(gateway, shared, group=group),
        Subscriber.open(gateway, shared, group=group, user="user2"),
    ):
        answer = await operator.get(LABELS)
        assert answer.status_code == 200
        body = answer.json()
        assert body["more"] is False
        labels = {one["label"]: one for one in body["labels"]}
        assert [one["label"] for one in body["labels"]] == sorted(labels)
        [owner] = labels[alone]["owners"]
        assert owner["subjects"] == ["nginx:user2"]
        assert 0 < owner["leaseMs"] <= 6000
        assert "group" not in labels[alone]
        assert labels[shared]["group"] == group
        owners = labels[shared]["owners"]
        assert {owner["node"] for owner in owners} == {owner["node"]}
        assert len({owner["session"] for owner in owners}) == 2
        assert sorted(owner["subjects"] for owner in owners) == [["nginx:ditto"], ["nginx:user2"]]

        for wanted in ([alone], [shared, alone, alone], ["nobody:has"]):
            answer = await operator.get(LABELS, params={"label": wanted})
            found = [one["label"] for one in answer.json()["labels"]]
            assert found == sorted({alone, shared} & set(wanted))
    answer = await operator.get(LABELS, params={"label": [alone, shared]})
    assert answer.json() == {"labels": [], "more": False}


async def test_others_do_not(gateway: Gateway, client: httpx.AsyncClient) -> None:
    check_error(await client.get(LABELS), 403, "gateway:authorization.missing")
    check_error(await client.get("/api/2/acks/l%61bels"), 403, "gateway:authorization.missing")
    async with http(gateway, None) as nobody:
        check_error(await nobody.get(LABELS), 401, "gateway:authentication.failed")


@pytest.mark.parametrize("label", ["no good", "ab", "", "x" * 166])
async def test_what_is_no_label_is_said(operator: httpx.AsyncClient, label: str) -> None:
    answer = await operator.get(LABELS, params={"label": ["my:ack", label]})
    problem = check_error(answer, 400, "acknowledgement:label.invalid")
    assert problem["message"] == f"Acknowledgement label <{label}> is invalid."


async def test_it_can_only_be_read(operator: httpx.AsyncClient) -> None:
    check_error(await operator.put(LABELS, json={}), 405, "gateway:method.notallowed")


async def test_no_accepted_request_has_its_address(client: httpx.AsyncClient) -> None:
    name = new_id()
    headers = {"prefer": "respond-async", "correlation-id": "labels"}
    answer = await client.put(thing(name), json={}, headers=headers)
    problem = check_error(answer, 400, "header.invalid")
    assert problem["invalidHeaderKey"] == "correlation-id"
    assert (await client.get(thing(name))).status_code == 404
    del headers["prefer"]
    assert (await client.put(thing(name), json={}, headers=headers)).status_code == 201


async def test_the_metrics_count_labels_and_groups(
    gateway: Gateway, operator: httpx.AsyncClient
) -> None:
    def figure(text: str, name: str) -> float:
        line = next(one for one in text.splitlines() if one.startswith(f"ackgate_{name}{{"))
        return float(line.rpartition(" ")[2])

    names = ("labels_owned", "label_groups", "redeliveries_total", "group_passes_total")
    before = {name: figure((await operator.get("/metrics")).text, name) for name in names}
    one, two, group = new_label(), new_label(), new_label()
    params = {"requested-acks": one, "timeout": "5s"}
    async with (
        Subscriber.open(gateway, one, two, group=group, start="START-SEND-MESSAGES"),
        Subscriber.open(gateway, one, two, group=group, ack=lambda *_: {"status": 200}),
    ):
        async with http(gateway) as client:
            for _ in range(2):
                assert (await client.put(thing(new_id()), json={}, params=params)).is_success
        text = (await operator.get("/metrics")).text
        assert figure(text, "labels_owned") == before["labels_owned"] + 4
        assert figure(text, "label_groups") == before["label_groups"] + 1
        assert figure(text, "group_passes_total") > before["group_passes_total"]
        assert figure(text, "redeliveries_total") == before["redeliveries_total"]
