"""Running the gateway: one process, or a parent with several workers over one store."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Literal
from uuid import uuid4

import structlog
import uvicorn
import uvloop

from app.api.protocols import HttpProtocol
from app.api.ws_protocol import WebSocketProtocol
from app.node import Node
from app.observe.log import configure
from app.settings import Settings
from app.store.embedded import EmbeddedServer, EmbeddedServerError, ends_with_parent
from app.store.layout import LayoutMismatch
from app.store.redis_client import StoreUnavailable

log = structlog.get_logger(__name__)

STARTUP_FAILURE = 3
LOOK_EVERY = 0.2
"""Seconds between two looks of the parent at its workers and its store."""
GRACE = 5.0
"""Seconds beyond the drain timeout that a worker gets before it is killed."""


class StartupError(Exception):
    """The gateway cannot start; the text says why and what to do."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server, except that a signal first drains the gateway (flow 7)."""

    def __init__(self, config: uvicorn.Config, node: Node) -> None:
        super().__init__(config)
        self._node = node
        self._drain: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one ends at once."""
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._drain is not None:
            self.force_exit = self.should_exit = True
            return
        self._drain = asyncio.create_task(self._drained(), name="drain")

    async def _drained(self) -> None:
        try:
            await self._node.drain()
        finally:
            self.should_exit = True


def _config(node: Node, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        node.app,
        loop="uvloop",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_per_message_deflate=False,
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=30.0,
        ws_ping_timeout=30.0,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )


async def serve(
    settings: Settings,
    redis_url: str,
    listener: socket.socket,
    *,
    instance: str = "",
    worker: str = "0",
) -> None:
    """Serve on ``listener`` until a signal has drained the gateway.

    Raises StoreUnavailable or LayoutMismatch if the store is not there or not as it must be.
    """
    node = Node(settings, redis_url, instance=instance, worker=worker)
    try:
        await node.start()
        calm_collector()
        server = DrainingServer(_config(node, settings), node)
        await server.serve(sockets=[listener])
    finally:
        await node.stop()


def calm_collector() -> None:
    """Collect garbage rarely: the default looks through every cached twin again and again.

    What a request leaves behind is freed by reference counts; cycles are rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def bind(host: str, port: int) -> socket.socket:
    """Listen on ``host:port`` (0: a free one); raises StartupError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as problem:
        raise StartupError(
            f"cannot listen on {host}:{port}: {problem.strerror or problem}. Is another gateway "
            f"running there? Choose another one with --port."
        ) from problem


def run(settings: Settings) -> None:
    """Run the gateway as the settings say, until a signal ends it. Raises StartupError."""
    configure(settings)
    listener = bind(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    embedded = None
    if settings.redis_url is None:
        appendfsync: dict[str, Literal["always", "everysec", "no"]]
        appendfsync = {"fsync": "always", "everysec": "everysec", "none": "no"}
        embedded = EmbeddedServer(
            settings.data_dir,
            appendfsync=appendfsync[settings.durability],
            binary=settings.redis_server,
        )
    log.info(
        "gateway.starting",
        url=f"http://{host}:{port}",
        store="embedded" if embedded else "redis",
        data_dir=str(settings.data_dir) if embedded else None,
        workers=settings.workers,
    )
    try:
        if settings.workers == 1:
            uvloop.run(_run_single(settings, listener, embedded))
        else:
            _run_workers(settings, listener, embedded)
    except (StoreUnavailable, LayoutMismatch, EmbeddedServerError) as problem:
        raise StartupError(str(problem)) from problem


def _url(settings: Settings, embedded: EmbeddedServer | None) -> str:
    if embedded is not None:
        return embedded.url
    assert settings.redis_url is not None
    return settings.redis_url.get_secret_value()


async def _run_single(
    settings: Settings, listener: socket.socket, embedded: EmbeddedServer | None
) -> None:
    if embedded is not None:
        await embedded.start()
    try:
        await serve(settings, _url(settings, embedded), listener)
    finally:
        if embedded is not None:
            await embedded.stop()


def _run_workers(
    settings: Settings, listener: socket.socket, embedded: EmbeddedServer | None
) -> None:
    if embedded is not None:
        embedded.start_blocking()
    try:
        _Workers(settings, listener, embedded).run()
    finally:
        if embedded is not None:
            embedded.stop_blocking()


class _Workers:
    """The parent: keeps ``settings.workers`` processes and the embedded store alive.

    Workers are forked: this process has no threads and no event loop, so that is safe, and they
    share what it has imported.
    """

    def __init__(
        self, settings: Settings, listener: socket.socket, embedded: EmbeddedServer | None
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._embedded = embedded
        self._instance = uuid4().hex[:16]
        self._context = multiprocessing.get_context("fork")
        self._processes: dict[int, ForkProcess] = {}
        self._next_try: dict[int, float] = {}
        self._stopping = 0

    def run(self) -> None:
        """Start the workers and watch them until a signal; then let them drain."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for index in range(self._settings.workers):
            self._fork(index)
        while not self._stopping:
            time.sleep(LOOK_EVERY)
            self._look()
        self._finish()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping += 1

    def _fork(self, index: int) -> None:
        process = self._context.Process(
            target=_worker,
            args=(
                self._settings,
                _url(self._settings, self._embedded),
                self._listener,
                self._instance,
                str(index),
                ends_with_parent(),
            ),
        )
        # Until the child has put our handler away, a SIGTERM for it would be counted in its copy of
        # this object and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._processes[index] = process

    def _look(self) -> None:
        if self._embedded is not None:
            self._embedded.poll()
        now = time.monotonic()
        for index, process in list(self._processes.items()):
            if process.is_alive():
                continue
            if process.exitcode == STARTUP_FAILURE and not self._next_try:
                self._stopping += 1
                self._finish()
                raise StartupError("a worker could not start; its log says why")
            log.error("worker.died", worker=index, exit_code=process.exitcode)
            if now >= self._next_try.get(index, 0.0):
                self._next_try[index] = now + 1.0
                self._fork(index)

    def _finish(self) -> None:
        for process in self._processes.values():
            if process.is_alive():
                process.terminate()
        end = time.monotonic() + self._settings.drain_timeout + GRACE
        for process in self._processes.values():
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _worker(
    settings: Settings,
    redis_url: str,
    listener: socket.socket,
    instance: str,
    worker: str,
    end_with_parent: Callable[[], None],
) -> None:
    end_with_parent()
    # Ctrl-C reaches the whole terminal's process group; the parent tells us when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ends it at once while it starts: nothing is served yet. The server then drains instead.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    structlog.contextvars.bind_contextvars(worker=worker, pid=os.getpid())
    try:
        uvloop.run(serve(settings, redis_url, listener, instance=instance, worker=worker))
    except (StoreUnavailable, LayoutMismatch) as problem:
        log.error("worker.not_started", reason=str(problem))
        sys.exit(STARTUP_FAILURE)
