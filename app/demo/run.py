"""The demo's course: start everything, tell the story, show the rows, stop everything."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import orjson

from app.demo.ingested import SparkJob
from app.demo.processes import Child, DemoFailed, child_environment
from app.demo.screen import Screen
from app.demo.story import ACTS, NOBODY, PERSISTED, SPARK, THING, WEBSOCKET, Teller, WrongAnswer
from app.demo.subscriber import subscriber
from app.store.embedded import EmbeddedServer, EmbeddedServerError

USER: Final = ("ditto", "ditto")  # the development user of ``serve --dev``
LONGEST: Final = 240.0  # seconds for everything, whatever happens
GATEWAY_WITHIN: Final = 30.0  # seconds
CLEAR_WITHIN: Final = 3.0  # seconds from SIGTERM to SIGKILL after a failure
INTERRUPTED: Final = 130


def main() -> int:
    """Run the demo in a temporary directory, which is removed; the exit code of the process.

    0: everything was as it must be; 1: something was not, and the text on the screen says what;
    130: stopped by Ctrl-C or a signal. Whatever happens, no process and no file is left.
    """
    try:
        return _run(Screen(sys.stdout))
    except BrokenPipeError:
        # Nobody reads any more (`ackgate demo | head`); Python's own flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(screen: Screen) -> int:
    try:
        with tempfile.TemporaryDirectory(
            prefix="ackgate-demo-", ignore_cleanup_errors=True
        ) as place:
            asyncio.run(_demo(Path(place), screen))
    except (DemoFailed, EmbeddedServerError) as problem:
        screen.error(str(problem))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        screen.error("interrupted; all processes are ended, the temporary directory is removed")
        return INTERRUPTED
    _farewell(screen)
    return 0


async def _demo(place: Path, screen: Screen) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with asyncio.timeout(LONGEST):
            await _course(place, screen)
    except TimeoutError as late:
        raise DemoFailed(f"the demo was not over within {LONGEST:g} s") from late


async def _course(place: Path, screen: Screen) -> None:
    screen.heading("ackgate demo")
    screen.prose(
        "A request names who has to confirm it, and is answered when all of them have. "
        "If one does not, the answer says who."
    )
    screen.heading("Starting")
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(_store(place, screen))
        stage = Stage(place, screen, store)
        stack.push_async_callback(stage.clear)
        await stage.set_up()
        await _acts(stage, screen)
        screen.heading("What Spark has written to Parquet")
        screen.prose("Revisions 1 and 2. Revision 3 was refused, so it is not there.")
        stage.spark.show_rows(screen, (1, 2))
        screen.heading("Stopping")
        await stage.shut_down()
    screen.step("store", "stopped")


async def _acts(stage: Stage, screen: Screen) -> None:
    """The three requests, with the subscriber at the other gateway. Raises DemoFailed."""
    request_gateway, subscriber_gateway = stage.addresses

    def subscriber_says(text: str) -> None:
        screen.step("subscriber", text)

    def spark_says() -> None:
        for line in stage.spark.news():
            screen.step("Spark", f"its log says: {line}")

    async with (
        subscriber(subscriber_gateway, WEBSOCKET, *USER, subscriber_says),
        httpx.AsyncClient(base_url=request_gateway, auth=USER, trust_env=False) as http,
    ):
        await stage.spark_ready()
        teller = Teller(screen, http, spark_says)
        async with stage.spark.followed(spark_says):
            for number, act in enumerate(ACTS, 1):
                try:
                    await teller.tell(act, f"demo-{number}")
                except WrongAnswer as wrong:
                    raise stage.blame(wrong) from wrong


@asynccontextmanager
async def _store(place: Path, screen: Screen) -> AsyncIterator[EmbeddedServer]:
    store = EmbeddedServer(place / "store")
    await store.start()
    screen.step("store", "started (Valkey or Redis); every write is on disk before it is confirmed")
    try:
        yield store
    finally:
        await store.stop()


class Stage:
    """The processes of the demo on top of the store: two gateways and the Spark job."""

    def __init__(self, place: Path, screen: Screen, store: EmbeddedServer) -> None:
        self._place = place
        self._screen = screen
        self._store = store
        self._gateways: list[Child] = []
        self.addresses: list[str] = []
        self.spark = SparkJob(place, store.url, SPARK)

    async def set_up(self) -> None:
        """Start the gateways and, as soon as they have laid out the store, the Spark job.

        Raises DemoFailed.
        """
        for number in (1, 2):
            command = [sys.executable, "-m", "app", "serve", "--port", "0", "--dev"]
            command += ["--redis-url", self._store.url]
            log = self._place / f"gateway{number}.log"
            # Both use one search index, not the user's.
            env = child_environment(log_format="json", data_dir=str(self._place / "data"))
            self._gateways.append(await Child.start(f"gateway {number}", command, log, env))
        uses = ("takes the requests", "serves the subscriber")
        for child, use in zip(self._gateways, uses, strict=True):
            address = await child.until(partial(_ready, child), "it is ready", GATEWAY_WITHIN)
            self.addresses.append(address)
            self._screen.step(child.name, f"ready at {address}; {use}")
        await self.spark.start()

    async def spark_ready(self) -> None:
        """Wait until the Spark job has declared its label. Raises DemoFailed."""
        async with self._screen.waiting("Spark", "waiting for its Java to start (5 to 30 s)"):
            await self.spark.ready()
        self._screen.step("Spark", f"the job runs and declares the label {SPARK}")

    def blame(self, wrong: WrongAnswer) -> DemoFailed:
        """``wrong`` with the log of the process that is most likely its cause."""
        children = self._children()
        culprits = {PERSISTED: 0, WEBSOCKET: 1, SPARK: 2}
        ended = [child for child in children if child.exit_code is not None]
        culprit = ended[0] if ended else children[culprits.get(wrong.label or PERSISTED, 0)]
        fate = f"; {culprit.name} has ended ({culprit.ending})" if ended else ""
        return culprit.failed(f"{wrong}{fate}")

    async def shut_down(self) -> None:
        """Stop the Spark job and the gateways; raises DemoFailed if one does not end in peace."""

        async def stop(child: Child) -> None:
            if (code := await child.stop()) != 0:
                raise child.failed(f"{child.name} did not stop cleanly: exit code {code}")
            self._screen.step(child.name, "stopped by SIGTERM, exit code 0")

        await asyncio.gather(*map(stop, self._children()))

    async def clear(self) -> None:
        """Stop whatever still runs, without a word; nobody waits for a Java that is starting."""
        await asyncio.gather(*(child.stop(CLEAR_WITHIN) for child in self._children()))

    def _children(self) -> list[Child]:
        return [*self._gateways, *([self.spark.child] if self.spark.child else [])]


async def _ready(child: Child) -> str | None:
    """The address of a gateway, as soon as it takes requests; it chose its port itself."""
    for line in child.log.read_bytes().splitlines():
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue  # not all of the line is written yet
        if event.get("event") == "gateway.starting":
            address: str = event["url"]
            break
    else:
        return None
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=2.0) as http:
        try:
            answer = await http.get("/health/ready")
        except httpx.TransportError:
            return None
    return address if answer.status_code == 200 else None


def _farewell(screen: Screen) -> None:
    screen.heading(
        f"Everything was as it must be, in {screen.elapsed():.0f} s. Nothing is left behind."
    )
    screen.prose("Try it yourself: run `make serve`, and in another terminal")
    curl = f"curl -u {':'.join(USER)}"
    for line in (
        f"thing=http://127.0.0.1:8080/api/2/things/{THING}",
        f"{curl} -X PUT $thing -H content-type:application/json \\",
        """     -d '{"attributes": {"room": "kitchen"}}'""",
        f"{curl} -X PUT $thing/attributes/room -H content-type:application/json -d '\"hall\"' \\",
        f"     -H requested-acks:{PERSISTED},{NOBODY} -H timeout:2s",
    ):
        screen.code(line)
