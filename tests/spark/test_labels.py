"""The lease of a label, against a real store and without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from acks.errors import GatewayError
from acks.journal import leases_key, owners_key
from connections.spark.labels import LabelLease, LabelLost, LabelTaken
from tests.servers import RedisServer, redis_server, wait_for_sync
from tests.spark.conftest import Store

LABEL = "spark:done"


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def lease(store: Store) -> Iterator[LabelLease]:
    made = LabelLease(store.url, store.prefix, [LABEL], ttl=0.6)
    yield made
    made.close()


def test_the_lease_outlives_its_time_while_it_is_renewed(store: Store, lease: LabelLease) -> None:
    def expiry() -> float:
        return float(store.redis.zscore(leases_key(store.prefix), lease.holder) or 0)

    first = expiry()
    wait_for_sync(lambda: expiry() > first + 600)
    lease.check()
    assert store.owner(LABEL) == f"{lease.holder}/query"


def test_a_lost_lease_is_claimed_anew(store: Store, lease: LabelLease) -> None:
    store.redis.delete(leases_key(store.prefix), owners_key(store.prefix))
    wait_for_sync(lambda: store.owner(LABEL) == f"{lease.holder}/query")
    lease.check()


def test_a_label_taken_meanwhile_is_reported(store: Store, lease: LabelLease) -> None:
    store.give_away(LABEL, "gw-1/s1")

    def taken() -> bool:
        try:
            lease.check()
        except LabelTaken as error:
            return error.owner == "gw-1/s1"
        return False

    wait_for_sync(taken)


def test_all_labels_or_none(store: Store, lease: LabelLease) -> None:
    with pytest.raises(LabelTaken) as refused:
        LabelLease(store.url, store.prefix, ["spark:free", LABEL])
    assert refused.value.label == LABEL
    assert store.owner("spark:free") is None


def test_queries_of_a_group_share_their_labels(store: Store) -> None:
    labels = ["spark:b", "spark:a"]
    one = LabelLease(store.url, store.prefix, labels, ttl=0.6, group="sparks")
    two = LabelLease(store.url, store.prefix, labels[::-1], ttl=0.6, group="sparks")
    try:
        one.check()
        two.check()
        for other, group in ((labels, ""), (labels[:1], "sparks"), (labels, "others")):
            with pytest.raises(LabelTaken, match="the group sparks"):
                LabelLease(store.url, store.prefix, other, group=group)
        one.close()
        with pytest.raises(LabelTaken):
            LabelLease(store.url, store.prefix, labels)
    finally:
        one.close()
        two.close()
    assert store.redis.exists(owners_key(store.prefix)) == 0
    with pytest.raises(GatewayError, match="ack-group"):
        LabelLease(store.url, store.prefix, labels, group="not a name")


def test_a_member_of_a_group_claims_a_lost_lease_anew(store: Store) -> None:
    lease = LabelLease(store.url, store.prefix, [LABEL], ttl=0.6, group="sparks")
    try:
        store.redis.delete(leases_key(store.prefix), owners_key(store.prefix))
        owners = owners_key(store.prefix)
        wait_for_sync(lambda: store.redis.hget(owners, LABEL) == b"/sparks")
        lease.check()
    finally:
        lease.close()


def test_a_released_lease_says_so(store: Store, lease: LabelLease) -> None:
    lease.close()
    assert store.owner(LABEL) is None
    with pytest.raises(LabelLost, match="released"):
        lease.check()


def test_without_the_store_the_lease_runs_out_and_comes_back(own_server: RedisServer) -> None:
    store = Store(own_server.url, "p")
    lease = LabelLease(own_server.url, "p", [LABEL], ttl=0.6)
    try:
        own_server.stop()
        ended = time.monotonic() + 0.6

        def lost() -> bool:
            try:
                lease.check()
            except LabelLost:
                return True
            return False

        wait_for_sync(lost, 20)
        assert time.monotonic() >= ended - 0.3
        own_server.start()
        wait_for_sync(lambda: not lost(), 20)
        assert store.owner(LABEL) == f"{lease.holder}/query"
    finally:
        lease.close()
        store.redis.close()
