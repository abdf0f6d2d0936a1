"""Structured logs: one line per event, with the correlation-id if one is bound, never a secret.

Everything goes one way, through the standard library's root logger: our own events, uvicorn's
messages and Python's warnings. There is no access log; sampled requests are ordinary events.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"
MAX_DEPTH = 6
"""Deeper values are shown as their masked text: a log line is no place for a document."""

_SECRET_KEY = re.compile(r"passw|secret|token|authorization|cookie|credential", re.IGNORECASE)
_SECRET_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    # redis://user:password@host
    (re.compile(r"(://[^\s/:@]*):\S*@"), rf"\1:{MASK}@"),
    # Authorization: Basic ..., also as part of a printed mapping
    (
        re.compile(r"""(authorization['"]?\s*[:=,]\s*b?['"]?)(\w+\s+)?[^\s'",]+""", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # A credential by itself. Base64 and tokens of real length hold a digit, an upper case letter
    # inside or "=", so that "basic authentication" stays readable.
    (
        re.compile(r"\b((?i:basic|bearer)\s+)(?=\S*(?:[0-9=]|[a-z][A-Z]))[\w+/=.~-]{6,}"),
        rf"\1{MASK}",
    ),
    # Of a query, e.g. of the upgrade request that a library logs when debugging
    (
        re.compile(r"\b((?:access_token|jwtToken|x-ditto-pre-authenticated)=)[^\s&'\"]+"),
        rf"\1{MASK}",
    ),
    # postgresql:///database?user=name&password=...
    (re.compile(r"([?&](?:ssl)?password=)[^\s&'\"]+"), rf"\1{MASK}"),
    # A JSON Web Token by itself: its first part is an object in Base64
    (re.compile(r"\beyJ[\w-]*\.[\w-]*\.[\w-]*"), MASK),
    # A bcrypt hash
    (re.compile(r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}"), MASK),
)


class LogSettings(Protocol):
    """Of the settings, what this needs (app/settings.py)."""

    @property
    def log_level(self) -> str:
        """Least severe level that is written."""

    @property
    def log_format(self) -> str:
        """``auto``, ``json`` or ``console``."""


class _Handler(logging.StreamHandler[Any]):
    """Our one handler; known by its class when it is replaced."""


def configure(settings: LogSettings) -> None:
    """Send all logs to standard error as the settings say. May be called again."""
    level = getattr(logging, settings.log_level.upper())
    console = settings.log_format == "console" or (
        settings.log_format == "auto" and sys.stderr.isatty()
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                # As text first, so that a secret in a traceback is masked too.
                structlog.processors.format_exc_info,
                mask,
                structlog.dev.ConsoleRenderer(colors=True) if console else _as_json,
            ],
        )
    )
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    _tame_uvicorn(level)
    # A traceback for each attempt while the database is away: the search says once that it is.
    _quieten("asyncpg.pool", level, logging.ERROR)


def mask(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """A structlog processor: hide passwords and tokens in keys and in text."""
    return {key: _masked(key, value, 0) for key, value in event.items()}


def mask_text(text: str) -> str:
    """``text`` without passwords of URLs, ``Authorization`` values and hashes."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _masked(key: object, value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        # A count or a flag such as tokens_left is no secret.
        return value
    if isinstance(key, bytes):
        key = key.decode("latin-1")
    if isinstance(key, str) and _SECRET_KEY.search(key):
        return MASK
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return mask_text(value)
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_text(name): _masked(name, item, depth + 1) for name, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return _masked_items(value, depth)
    return mask_text(str(value))


def _masked_items(
    items: list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any], depth: int
) -> Any:
    # ASGI headers are pairs: the first element names the second.
    if isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], str | bytes):
        return [_masked(None, items[0], depth + 1), _masked(items[0], items[1], depth + 1)]
    return [_masked(None, item, depth + 1) for item in items]


def _text(name: object) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)


def _as_json(logger: WrappedLogger, method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=str).decode()


def _tame_uvicorn(level: int) -> None:
    """Through our handler only; its start messages say less than ours, so only when debugging."""
    for name in ("httpx", "httpcore"):  # one line for every request of ours
        _quieten(name, level, logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.disabled = True


def _quieten(name: str, level: int, least: int) -> None:
    """Nothing below ``least`` of this library's logger, unless debugging."""
    logging.getLogger(name).setLevel(level if level <= logging.DEBUG else max(level, least))
