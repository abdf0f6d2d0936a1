"""The options that all jobs share, and what they mean to Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec

import click

from acks.journal import DEFAULT_PREFIX

P = ParamSpec("P")

_DURATION: Final = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(click.ParamType[int]):
    """A time like ``500ms``, ``5s``, ``10m``, ``1h``, ``1d``; its value is in ms."""

    name = "duration"

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time in ms; ends the command if it is none, or shorter than allowed."""
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not a time like 500ms, 5s, 10m, 1h or 1d", param, ctx)
        ms = int(match[1]) * _MS[match[2]]
        if ms < self._least_ms:
            self.fail(f"{value!r} is too short: at least {self._least_ms / 1000:g}s", param, ctx)
        return ms


class Pair(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE``; its value is a tuple."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Name and value; ends the command if there is no name."""
        if isinstance(value, tuple):
            return value[0], value[1]
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the user asked of a job, apart from what it does.

    ``redis_url`` None: from the environment. It may hold a password, so it stays out of texts.
    """

    checkpoint: str
    starting_offsets: str
    trigger_ms: int = 0
    redis_url: str | None = field(default=None, repr=False)
    prefix: str = DEFAULT_PREFIX
    max_events: int = 10_000
    source: tuple[tuple[str, str], ...] = ()
    once: bool = False
    ready_file: Path | None = None
    master: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    tuned: bool = True


@dataclass(frozen=True, slots=True)
class Owned:
    """The label that a job acknowledges with; ``group`` "": it is the only one that does."""

    label: str
    group: str = ""


def label_options(default: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for the label, which a command gets as one :class:`Owned`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--label", default=default, show_default=True, help="Label to acknowledge with."
        )
        @click.option("--group", default="", help="Share the label with the queries of this group.")
        @wraps(command)
        def wrapped(label: str, group: str, **options: Any) -> None:
            command(owned=Owned(label, group), **options)

        return wrapped

    return decorate


def job_options(
    *, starting: str, trigger: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the shared options to a command, which gets them as one :class:`JobOptions`.

    ``starting`` and ``trigger`` are this job's defaults.
    """
    given = (
        click.option(
            "--checkpoint", required=True, metavar="DIR",
            help="Folder in which Spark keeps how far the job is; one for each job.",
        ),
        click.option(
            "--redis-url", metavar="URL",
            help="The gateway's store; better the environment's ACKGATE_REDIS_URL, which no "
            "process list shows.",
        ),
        click.option(
            "--prefix", default=DEFAULT_PREFIX, show_default=True, envvar="ACKGATE_PREFIX",
            help="First part of every store key, as the gateway has it.",
        ),
        click.option(
            "--starting-offsets", default=starting, show_default=True, metavar="PLACE",
            help="Where to start without a checkpoint: earliest, latest, or as in docs/spark.md.",
        ),
        click.option(
            "--trigger", "trigger_ms", type=Duration(), default=trigger, show_default=True,
            help="Shortest time between two batches; 0s: as soon as there is something.",
        ),
        click.option(
            "--max-events", type=click.IntRange(1), default=10_000, show_default=True,
            help="Most entries of one batch.",
        ),
        click.option(
            "--source-option", "source", type=Pair(), multiple=True,
            help="Any other option of the source (docs/spark.md), e.g. namespaces=org.example.",
        ),
        click.option(
            "--once", is_flag=True, help="Catch up with what is there now, then end."
        ),
        click.option(
            "--ready-file", type=click.Path(dir_okay=False, path_type=Path),
            help="File that is created when the job runs.",
        ),
        click.option(
            "--spark-master", "master", metavar="URL",
            help="Where Spark runs: local[*] (all cores here) or spark://host:7077. Under "
            "spark-submit that says it.",
        ),
        click.option(
            "--conf", type=Pair(), multiple=True, help="Any setting of Spark, e.g. "
            "spark.driver.memory=2g.",
        ),
        click.option(
            "--tuned/--untuned", default=True, show_default=True,
            help="Settings for small, frequent batches on one machine, or Spark's own.",
        ),
    )  # fmt: skip
    names = {*JobOptions.__dataclass_fields__}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(**options: Any) -> None:
            shared = {name: value for name, value in options.items() if name in names}
            rest = {name: value for name, value in options.items() if name not in names}
            command(options=JobOptions(**shared), **rest)

        for option in reversed(given):
            wrapped = option(wrapped)
        return wrapped

    return decorate
