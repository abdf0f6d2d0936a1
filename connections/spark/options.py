"""The options of ``format("ackgate")``, read and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from acks.journal import DEFAULT_PREFIX
from connections.spark.store import resolve_url

_NAMES: Final = (
    "redisUrl",
    "prefix",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "readOn",
)


class OptionError(ValueError):
    """An option is unknown or has a value that cannot be used; the text names the valid ones."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user asked for. ``starting`` is "" where it was left to the default of the reader.

    ``url`` may hold a password, so it stays out of the text of this object.
    """

    url: str = field(repr=False)
    prefix: str = DEFAULT_PREFIX
    starting: str = ""  # "" | earliest | latest
    max_offsets: int = 10_000  # entries a trigger
    fail_on_loss: bool = True
    read_on: str = "driver"  # driver | executors


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a reader; names are case-insensitive, as everywhere in Spark.

    Raises :class:`OptionError`, and StoreError if there is no usable Redis address.
    """
    known = {name.lower(): name for name in _NAMES}
    unknown = sorted(name for name in given if name.lower() not in known)
    if unknown:
        raise OptionError(
            f"unknown option{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; "
            f"valid are: {', '.join(_NAMES)}"
        )
    values = {name.lower(): value for name, value in given.items()}

    def one_of(name: str, default: str, *choices: str) -> str:
        value = values.get(name.lower(), default).lower()
        if value not in choices and value != default:
            raise OptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    return ReadOptions(
        url=resolve_url(values.get("redisurl")),
        prefix=values.get("prefix", DEFAULT_PREFIX),
        starting=one_of("startingOffsets", "", "earliest", "latest"),
        max_offsets=_positive("maxOffsetsPerTrigger", values.get("maxoffsetspertrigger", "10000")),
        fail_on_loss=one_of("failOnDataLoss", "true", "true", "false") == "true",
        read_on=one_of("readOn", "driver", "driver", "executors"),
    )


def _positive(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise OptionError(f"{name} must be a whole number above 0, not {value!r}")
    return int(value)
