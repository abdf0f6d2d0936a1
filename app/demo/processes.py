"""The demo's child processes: started with a log file each, watched, and ended for certain."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from app.store.embedded import ends_with_parent

T = TypeVar("T")

LOOK_EVERY = 0.05  # seconds
TAIL = 30  # lines of a log in an error
ORPHANS = 5.0  # seconds for the children of a child that has ended
_ENV_PREFIX = "ACKGATE_"


class DemoFailed(Exception):
    """A step did not go as it must; the text says which, and ends with the log that may say why."""


def child_environment(**settings: str) -> dict[str, str]:
    """This process's environment, with ``settings`` as the only ones of ackgate."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(_ENV_PREFIX)}
    return outer | {f"{_ENV_PREFIX}{name.upper()}": value for name, value in settings.items()}


class Child:
    """A child process in a process group of its own, so that Ctrl-C reaches the demo alone."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]
    ) -> Self:
        """Run ``command`` in the folder of ``log``, with its output there.

        If this process is killed, the kernel ends the child (Linux).
        """
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env=env,
                start_new_session=True,
                preexec_fn=ends_with_parent(),
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self.exit_code
        if code is None:
            return "still running"
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def tail(self, lines: int = TAIL) -> str:
        """The end of its log, with a line that says whose it is."""
        with self.log.open(errors="replace") as file:
            end = deque((line.rstrip("\n")[:500] for line in file), lines)
        return "\n".join([f"the end of the log of {self.name}:", *(f"  | {line}" for line in end)])

    def failed(self, what: str) -> DemoFailed:
        """The error that tells what went wrong, with the end of this child's log."""
        return DemoFailed(f"{what}\n{self.tail()}")

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str, deadline: float) -> T:
        """Look again and again until there is an answer.

        ``what`` is what is waited for. Raises DemoFailed after ``deadline`` seconds or when the
        child has ended.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + deadline
        while True:
            if (found := await look()) is not None:
                return found
            if self.exit_code is not None:
                raise self.failed(f"{self.name} ended ({self.ending}) before {what}")
            if clock() > end:
                raise self.failed(f"{self.name}: not within {deadline:g} s: {what}")
            await asyncio.sleep(LOOK_EVERY)

    async def stop(self, deadline: float = 20.0) -> int:
        """SIGTERM, after ``deadline`` seconds SIGKILL, until its whole group is gone.

        Returns the exit code. May be called again.
        """
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(deadline):
                await self._process.wait()
            # What it started (Spark's Java) goes a moment later.
            async with asyncio.timeout(ORPHANS):
                while _group_lives(self._process):  # noqa: ASYNC110 - no event tells of a group's end
                    await asyncio.sleep(LOOK_EVERY)
        except TimeoutError:
            pass
        finally:
            # Late, or this wait is cancelled: nothing may be left behind.
            if _group_lives(self._process):
                os.killpg(self._process.pid, signal.SIGKILL)
        return await self._process.wait()


def _group_lives(process: Process) -> bool:
    """Whether the child or any process that it started in its group still runs."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
