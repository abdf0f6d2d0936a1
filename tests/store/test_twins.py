"""Changes of twins whose processing fails in a way that nobody foresaw."""

from __future__ import annotations

import asyncio
from typing import Any

from acks.errors import GatewayError
from acks.headers import AckOptions
from acks.signals import Command, Response
from app.store.policies import PolicyStore
from app.store.redis_client import Redis, RedisAddress
from app.store.twins import TwinStore
from tests.servers import RedisServer

OPTIONS = AckOptions((), True, 1000)
UNSPEAKABLE = "s:\ud800"
"""A subject that no JSON can hold: it would not get through authentication."""


async def test_a_defect_leaves_nobody_without_an_answer(own: RedisServer, prefix: str) -> None:
    redis = Redis(RedisAddress.parse(own.url), name="test", reply_timeout=2.0)
    await redis.start()
    twins = TwinStore(
        redis, PolicyStore(redis, prefix, 4), prefix=prefix, shards=4, node="node" * 4,
        max_thing_bytes=100_000, journal_entries=100, cache_bytes=1_000_000,
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(3)]
    subjects = ("s:1", UNSPEAKABLE, "s:1")
    for answer, subject in zip(answers, subjects, strict=True):
        value = {"thingId": "ns:t", "policyId": "ns:t"}
        command = Command("ns:t", (), value, "c", OPTIONS, (subject,))
        twins.submit(command, 0, answer.set_result)
    value = {"thingId": "ns:other", "policyId": "ns:other"}
    alone = loop.create_future()
    command = Command("ns:other", (), value, "c", OPTIONS, (UNSPEAKABLE,))
    twins.submit(command, 0, alone.set_result)
    try:
        async with asyncio.timeout(10):
            first, refused, third = await asyncio.gather(*answers)
            failed = await alone
    finally:
        await redis.close()
    assert isinstance(first, Response)
    assert isinstance(refused, GatewayError)
    assert isinstance(third, Response)
    assert isinstance(failed, GatewayError)
    assert failed.code == "gateway:internalerror"
