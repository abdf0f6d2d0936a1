"""NATS JetStream as a baseline: publish to a stored stream, then ask the subscriber.

``python -m benchmarks.baselines.jetstream responder URL`` answers each request;
``… requester '<Job as JSON>'`` keeps N in flight and prints ``Meter.result``. No HTTP, no rules:
what the messaging system itself can do from Python.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from dataclasses import asdict, dataclass
from time import perf_counter_ns

import nats
import uvloop
from nats.aio.msg import Msg

from benchmarks.bodies import thing
from benchmarks.meter import Meter

STREAM, EVENTS, ASK = "events", "events.bench", "ack.bench"
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Job:
    """What the requester does. Times in s; ``watch`` as in ``Meter``."""

    url: str
    in_flight: int
    warmup: float
    seconds: float
    watch: dict[str, list[int]]

    def to_json(self) -> str:
        """The job as the process's one argument."""
        return json.dumps(asdict(self))


async def responder(url: str) -> None:
    """Make the stream, answer requests until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await nats.connect(url, connect_timeout=5)
    await client.jetstream().add_stream(name=STREAM, subjects=[EVENTS])

    async def answer(message: Msg) -> None:
        await message.respond(b'{"status":200}')

    await client.subscribe(ASK, cb=answer)
    await client.flush()
    print("ready", flush=True)
    await stop.wait()
    await client.close()


async def requester(job: Job) -> dict[str, dict[str, float]]:
    """Keep ``in_flight`` requests going: each a durable publish, then a request and its reply."""
    client = await nats.connect(job.url, connect_timeout=5)
    stream = client.jetstream()
    meter = Meter(job.watch, ["200"])
    payload, going = thing(1), True

    async def one_after_the_other() -> None:
        while going:
            begin = perf_counter_ns()
            status = "200"
            try:
                await stream.publish(EVENTS, payload, timeout=TIMEOUT_S)
                await client.request(ASK, payload, timeout=TIMEOUT_S)
            except (nats.errors.Error, TimeoutError) as error:
                status = type(error).__name__
            if meter.open:
                meter.latencies.append(perf_counter_ns() - begin)
                meter.statuses[status] += 1

    gc.collect()
    gc.disable()
    tasks = [asyncio.create_task(one_after_the_other()) for _ in range(job.in_flight)]
    await asyncio.sleep(job.warmup)
    meter.start()
    await asyncio.sleep(job.seconds)
    meter.stop()
    going = False
    _, open_tasks = await asyncio.wait(tasks, timeout=TIMEOUT_S)
    await client.close()
    return meter.result(len(open_tasks))


def main() -> None:
    """Entry point of both roles."""
    role, argument = sys.argv[1:3]
    if role == "responder":
        uvloop.run(responder(argument))
    else:
        print(json.dumps(uvloop.run(requester(Job(**json.loads(argument))))), flush=True)


if __name__ == "__main__":
    main()
