"""Requests that wait in this very process: ``python -m benchmarks.waiting SYSTEM '<Crowd>'``.

No HTTP and no connections, so that their number is not bound by the files a process may open.
``ackgate`` submits commands to a gateway object, ``straightforward`` runs the function that serves
a PUT as a task; both over a real store, with the environment of the baselines. Prints what
``benchmarks.expiry.measure`` returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import uvloop
from fastapi import HTTPException

from acks.aggregator import Outcome
from acks.changes import check_put
from acks.headers import Setter, http_options
from acks.signals import Command
from app.api.http import new_correlation_id
from app.main import calm_collector
from app.node import Node
from app.observe.log import configure
from app.settings import Settings
from benchmarks.baselines import straightforward
from benchmarks.bodies import thing, thing_id
from benchmarks.crowd import ACKS
from benchmarks.expiry import THINGS, Crowd, Expiry, measure

LONGEST_MS = 3_600_000
Result = dict[str, dict[str, float]]


async def gateway(crowd: Crowd) -> Result:
    """The gateway object of one process."""
    settings = Settings(users=f"{crowd.user}:{crowd.password}")
    configure(settings)
    node = Node(settings, crowd.url)
    await node.start()
    calm_collector()
    bodies = [thing(number) for number in range(THINGS)]
    subjects = (f"nginx:{crowd.user}",)

    async def some(numbers: range, expiry: Expiry) -> None:
        timeout = f"{expiry.timeout_ms()}ms"
        options = http_options(Setter.TWIN_MODIFY, ACKS, None, timeout, "documented", LONGEST_MS)

        def done(outcome: Outcome) -> None:
            expiry.answered(str(outcome.status))

        for number in numbers:
            name, value = thing_id(number % THINGS), orjson.loads(bodies[number % THINGS])
            command = Command(
                name, (), check_put(name, (), value), new_correlation_id(), options, subjects
            )
            node.gateway.submit(command, done)

    try:
        return await measure(crowd, some)
    finally:
        await node.stop()


async def tasks(crowd: Crowd) -> Result:
    """The straightforward app's own function, a task for each request."""
    bodies = [thing(number) for number in range(THINGS)]
    open_tasks: set[asyncio.Task[Any]] = set()

    async def some(numbers: range, expiry: Expiry) -> None:
        timeout = f"{expiry.timeout_ms()}ms"

        def done(task: asyncio.Task[Any]) -> None:
            open_tasks.discard(task)
            problem = task.exception()
            if isinstance(problem, HTTPException):
                expiry.answered(str(problem.status_code))
            else:
                expiry.answered(repr(problem))

        for number in numbers:
            value = straightforward.Thing.model_validate_json(bodies[number % THINGS])
            name = thing_id(number % THINGS)
            task = asyncio.create_task(
                straightforward.put_thing(name, value, crowd.user, ACKS, timeout, None)
            )
            open_tasks.add(task)
            task.add_done_callback(done)

    async with straightforward.lifespan(straightforward.app):
        return await measure(crowd, some)


RUNS: dict[str, Callable[[Crowd], Any]] = {"ackgate": gateway, "straightforward": tasks}


def main() -> None:
    """Entry point of the process."""
    crowd = replace(Crowd(**json.loads(sys.argv[2])), pid=os.getpid())
    print(json.dumps(uvloop.run(RUNS[sys.argv[1]](crowd))), flush=True)


if __name__ == "__main__":
    main()
