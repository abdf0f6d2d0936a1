"""Killed with -9 again and again under load: every acknowledged write is there afterwards.

A round: start the gateway with its embedded store on the same data, let several clients write,
kill the store alone, so that the gateway has to start it again, then kill both, in
changing order and at changing moments. Each client owns its things and writes a counter; what it
got a success for is what must be found.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.store.embedded import EmbeddedServer
from tests.cluster.journal import assert_gap_free, revisions, twin
from tests.gateways import Gateway, RawHttp, alive, put_request
from tests.servers import redis_server, wait_for

KILLS = int(os.environ.get("KILLS", "60"))
"""Processes killed with -9: a third of them gateways, two thirds stores. `make soak` kills more."""
CLIENTS = 6
THINGS = 2
"""Things of each client."""
LARGE = 40_000
"""Bytes of every fifth write: a large append gives a kill time to fall into its middle."""
SUCCESS = {200, 201, 204}


@dataclass
class Load:
    """Clients that write without a pause and remember what was acknowledged."""

    gateway: Gateway
    acknowledged: dict[str, int] = field(default_factory=dict)
    successes: int = 0
    unknown: int = 0
    stopping: bool = False

    async def client(self, number: int) -> None:
        """Write counters into this client's things until told to stop."""
        things = [f"kill:c{number}-t{index}" for index in range(THINGS)]
        counters = dict.fromkeys(things, 0)
        while not self.stopping:
            try:
                async with RawHttp.open(self.gateway) as raw:
                    while not self.stopping:
                        name = things[random.randrange(THINGS)]
                        await self._write(raw, name, counters)
            except (OSError, EOFError, TimeoutError):
                self.unknown += 1
                await asyncio.sleep(0.01)

    async def _write(self, raw: RawHttp, name: str, counters: dict[str, int]) -> None:
        counters[name] += 1
        count = counters[name]
        filler = "x" * LARGE if count % 5 == 0 else ""
        if name not in self.acknowledged or count % 3 == 0:
            body = {"attributes": {"n": count, "filler": filler}}
            request = put_request(name, json.dumps(body).encode())
        else:
            request = put_request(name, str(count).encode(), path="/attributes/n")
        if count % 7 == 0:
            labels = "?requested-acks=twin-persisted,nobody&timeout=20ms"
            request = request.replace(b" HTTP/1.1", labels.encode() + b" HTTP/1.1", 1)
        await raw.send(request)
        status, _, answer = await raw.answer(15)
        if status == 424:
            status = json.loads(answer)["twin-persisted"]["status"]
        if status in SUCCESS:
            self.acknowledged[name] = count
            self.successes += 1
        else:
            assert status in (408, 503), answer  # 404: an acknowledged thing is lost
            self.unknown += 1
            await asyncio.sleep(0.002)

    async def more(self, number: int) -> None:
        """Wait for ``number`` more successes."""
        wanted = self.successes + number
        await wait_for(lambda: self.successes >= wanted, 30, f"{number} more writes")


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended with its parent a moment earlier
        os.kill(pid, signal.SIGKILL)


async def one_round(gateway: Gateway, load: Load, number: int) -> int:
    """Start, load, kill; returns the number of processes killed with -9."""
    await gateway.start_async()
    await load.more(20 + number % 7)
    killed = 0
    alone = gateway.store_pid()
    kill(alone)
    killed += 1
    await wait_for(lambda: not alive(alone), 10)
    await load.more(10)  # the gateway has started it again
    store = gateway.store_pid()
    await asyncio.sleep(random.random() * 0.01)  # no moment is like another
    if number % 2:
        kill(store)
        killed += 1
        gateway.kill9()
        return killed + 1
    gateway.kill9()
    killed += 1
    if alive(store):
        kill(store)  # it is on its way down already: the kernel told it
        killed += 1
    return killed


def check(load: Load, url: str) -> None:
    """Every acknowledged write is in the store, and every journal is without gaps."""
    found = revisions(url)
    assert_gap_free(found)
    assert len(load.acknowledged) == CLIENTS * THINGS
    for name, count in load.acknowledged.items():
        revision, document = twin(url, name)
        assert document["attributes"]["n"] >= count, f"{name}: {count} was acknowledged"
        assert len(found[name]) == revision


@pytest.mark.slow
@pytest.mark.timeout(60 + 3 * KILLS)
async def test_every_acknowledged_write_survives_all_kills(tmp_path: Path) -> None:
    # No entry may be trimmed: the test looks at all of them.
    gateway = Gateway(tmp_path, journal_max_entries="10000000", log_level="warning")
    load = Load(gateway)
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    try:
        killed = number = 0
        while killed < KILLS:
            killed += await one_round(gateway, load, number)
            number += 1
            failed = [task for task in clients if task.done()]
            assert not failed, failed[0].exception()
        await gateway.start_async()
        await load.more(20)
    finally:
        load.stopping = True
        gateway.stop()
        await asyncio.gather(*clients, return_exceptions=True)
    for task in clients:
        task.result()
    print(f"{killed} kills in {number} rounds, {load.successes} acknowledged writes, "
          f"{load.unknown} with unknown outcome")  # fmt: skip
    server = EmbeddedServer(tmp_path / "data")
    await server.start()
    try:
        check(load, server.url)
    finally:
        await server.stop()
    assert not gateway.events("request.failed")


@pytest.mark.slow
async def test_a_killed_store_of_several_gateways_loses_nothing(tmp_path: Path) -> None:
    """Gateways that stay must not believe in what a killed store no longer has."""
    with redis_server() as store:
        one, two = (
            Gateway(tmp_path, redis_url=store.url, log_level="warning", store_timeout="2s")
            for _ in range(2)
        )
        loads = [Load(one), Load(two)]
        one.start()
        two.start()
        clients = [
            asyncio.create_task(load.client(number))  # both write to the same things
            for load in loads
            for number in range(2)
        ]
        try:
            for _ in range(10):
                for load in loads:
                    await load.more(20)
                store.kill9()
                store.start()
            for load in loads:
                await load.more(20)
        finally:
            for load in loads:
                load.stopping = True
            await asyncio.gather(*clients, return_exceptions=True)
            one.stop()
            two.stop()
        for task in clients:
            task.result()
        found = revisions(store.url)
        assert_gap_free(found)
        for name, list_of in found.items():
            assert twin(store.url, name)[0] == len(list_of)
        assert sum(map(len, found.values())) >= sum(load.successes for load in loads)


@pytest.mark.parametrize("lost", [1, 20, 300])
async def test_a_kill_in_the_middle_of_an_append(tmp_path: Path, lost: int) -> None:
    """What a torn last append looks like: the file ends inside a command nobody was told of."""
    gateway = Gateway(tmp_path, journal_max_entries="10000000", log_level="warning")
    load = Load(gateway)
    gateway.start()
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    try:
        await load.more(200)
        store = gateway.store_pid()
        kill(store)
        gateway.kill9()
    finally:
        load.stopping = True
        gateway.stop()
        await asyncio.gather(*clients, return_exceptions=True)
    await wait_for(lambda: not alive(store), 10)
    (aof,) = (tmp_path / "data" / "appendonlydir").glob("*.incr.aof")
    text = aof.read_bytes()
    # Begin the last complete transaction once more, and stop in its middle.
    start = text.rindex(b"*1\r\n$5\r\nMULTI\r\n")
    torn = text[start:][:-lost]
    assert torn
    aof.write_bytes(text + torn)
    gateway.start()
    again = Load(gateway)
    clients = [asyncio.create_task(again.client(100))]
    await again.more(10)
    again.stopping = True
    await asyncio.gather(*clients)
    gateway.stop()
    server = EmbeddedServer(tmp_path / "data")
    await server.start()
    try:
        found = revisions(server.url)
        assert_gap_free(found)
        for name, count in load.acknowledged.items():
            revision, document = twin(server.url, name)
            assert document["attributes"]["n"] >= count
            assert len(found[name]) == revision
    finally:
        await server.stop()
