"""The process that keeps the search index (app/search/process.py starts it and speaks to it).

It ends when its standard input is closed, whatever else it is at: nobody would end it later.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import orjson
import structlog
import uvloop

from app.observe.log import configure
from app.search.acks import SearchAcks
from app.search.indexer import Indexer
from app.search.leases import Leases
from app.search.process import Orders
from app.search.reading import Reader
from app.search.shards import PROBLEMS, Means
from app.store.layout import store_id
from app.store.redis_client import Redis, RedisAddress, StoreUnavailable
from app.store.sql.database import Database, open_index
from app.store.sql.index_writer import IndexWriter

log = structlog.get_logger("app.search.child")  # here __name__ is "__main__"

SAY_S = 1.0
"""How often it says how it is, s."""
END_S = 2.5
"""How long it may take to end; then it just ends, s."""
NICE = 10
"""How much less it is worth than its gateway when both want the processor."""
AUTOGROUP = Path("/proc/self/autogroup")
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
"""Pause before the index is opened again, doubling, s."""


def main() -> None:
    """Read the orders from standard input, and index until that is closed."""
    orders = Orders.read(sys.stdin.buffer.readline())
    configure(orders)
    _be_nice()
    structlog.contextvars.bind_contextvars(process="indexer", worker=orders.worker, pid=os.getpid())
    uvloop.run(_serve(orders))


def _be_nice() -> None:
    """Take less of the processor than the gateway.

    Linux may weigh sessions against each other (autogroups, sched(7)): then a process's own
    niceness says nothing to the gateway, whose session is another one.
    """
    os.nice(NICE)
    with suppress(OSError):  # no such kernel, or no such option
        AUTOGROUP.write_text(str(NICE))


async def _serve(orders: Orders) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_watch, args=(loop, ended), name="search-parent", daemon=True).start()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    work = asyncio.create_task(_work(orders), name="search-work")
    waiting = asyncio.create_task(ended.wait(), name="search-end")
    await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        work.result()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def _watch(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Wait for the end of the parent; a thread, so that nothing can keep us from seeing it."""
    while os.read(0, 1024):
        pass
    loop.call_soon_threadsafe(ended.set)
    time.sleep(END_S)
    os._exit(1)


async def _work(orders: Orders) -> None:
    """Connect with store and index, index, and let go of everything in the end."""
    address = RedisAddress.parse(orders.redis_url)
    name = f"ackgate-index-{orders.indexer}"
    redis = Redis(address, name=name, reply_timeout=orders.store_timeout)
    reader = Reader(redis, address, name=f"{name}-journal")
    acks: SearchAcks | None = None
    database: Database | None = None
    try:
        await _connected(redis, reader, orders)
        database, leases, index = await _opened(redis, orders)
        acks = SearchAcks(
            redis, address,
            prefix=orders.prefix, shards=orders.shards, node=orders.indexer, link=orders.link,
            index=index,
        )  # fmt: skip
        await acks.start()
        means = Means(
            redis, database, IndexWriter(database), acks, orders.prefix, orders.shards,
            orders.interval,
        )  # fmt: skip
        await _index(Indexer(means, leases, reader))
    finally:
        if acks is not None:
            await acks.close()
        await reader.close()
        if database is not None:
            await database.close()
        await redis.close()


async def _index(indexer: Indexer) -> None:
    saying = asyncio.create_task(_say(indexer), name="search-says")
    try:
        await indexer.run()
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        await indexer.close()


async def _connected(redis: Redis, reader: Reader, orders: Orders) -> None:
    """Connect with the store, which may be away for a while."""
    for connection in (redis, reader):
        while True:
            try:
                await connection.start(orders.store_timeout)
                break
            except StoreUnavailable as problem:
                log.warning("search.store_unavailable", error=str(problem))


async def _opened(redis: Redis, orders: Orders) -> tuple[Database, Leases, str]:
    """Open the index, again and again if that is not possible for now; its leases and its name."""
    pause, said = FIRST_PAUSE, ""
    while True:
        database: Database | None = None
        try:
            store = await store_id(redis, orders.prefix)
            database = await open_index(
                orders.database, Path(orders.data_dir), readers=1, timeout=orders.index_timeout
            )
            leases = Leases(database, orders.indexer, orders.shards)
            index = await leases.prepare(store)
        except PROBLEMS as problem:
            if str(problem) != said:
                log.error("search.index_unavailable", error=str(problem))
            said = str(problem)
            _write({"problem": said})
        except BaseException:
            if database is not None:
                await database.close()
            raise
        else:
            log.info("search.index_opened", dialect=database.dialect.name)
            return database, leases, index
        if database is not None:
            await database.close()
        await asyncio.sleep(pause)
        pause = min(pause * 2, LAST_PAUSE)


async def _say(indexer: Indexer) -> None:
    while True:
        _write(indexer.says())
        await asyncio.sleep(SAY_S)


def _write(facts: dict[str, object]) -> None:
    """Say something to the parent; nothing if it does not listen: the next line says more."""
    try:
        os.set_blocking(1, False)
        os.write(1, orjson.dumps(facts) + b"\n")
    except OSError:
        return  # it is full, or the parent is gone and we are about to end


if __name__ == "__main__":
    main()
