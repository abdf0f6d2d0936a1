"""The options of ``format("ackgate")``, read and checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from acks.errors import GatewayError
from acks.journal import DEFAULT_PREFIX
from acks.labels import BUILT_IN, is_label, is_resolved
from acks.rql import EVENT_PREFIXES, parse_checked
from connections.spark.places import LATEST, Moment, Named, Place, parse_moment, parse_place
from connections.spark.store import resolve_url

_Read = TypeVar("_Read")
BATCH, STREAM = "batch", "stream"
EVENTS: Final = "events"
#: Kinds of streams that can be read, with the module whose ``table`` says how (tables.py).
STREAMS: Final = {EVENTS: "connections.spark.rows", "outcomes": "connections.spark.outcomes"}
AUTO, DRIVER, EXECUTORS = "auto", "driver", "executors"

#: Every option, and the kind of query it is for if it makes no sense in the other.
_NAMES: Final[dict[str, str | None]] = {
    "redisUrl": None,
    "prefix": None,
    "storeTimeout": None,
    "stream": None,
    "startingOffsets": None,
    "startingTimestamp": None,
    "endingOffsets": BATCH,
    "endingTimestamp": BATCH,
    "minPartitions": None,
    "maxOffsetsPerTrigger": STREAM,
    "failOnDataLoss": None,
    "readOn": STREAM,
    "filter": None,
    "namespaces": None,
    "variant": None,
    "ackLabels": STREAM,
    "ackGroup": STREAM,
    "weakAckLabels": STREAM,
}
_EVENTS_ONLY: Final = ("filter", "namespaces", "variant", "ackLabels", "ackGroup", "weakAckLabels")


class OptionError(ValueError):
    """An option is unknown, has a value that cannot be used, or contradicts another one."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user asked for; what was left out is None, empty, or the default here.

    ``url`` may hold a password, so it stays out of the text of this object.
    """

    url: str = field(repr=False)
    prefix: str = DEFAULT_PREFIX
    patience: float = 60.0  # s that a store which is away is waited for
    stream: str = EVENTS  # of STREAMS
    start: Place | None = None
    end: Place | None = None
    min_partitions: int = 1
    max_offsets: int = 10_000  # entries a trigger
    fail_on_loss: bool = True
    read_on: str = AUTO  # auto | driver | executors
    filter: str = ""  # RQL
    namespaces: frozenset[str] = frozenset()  # empty: all
    variant: bool = False
    ack_labels: tuple[str, ...] = ()
    ack_group: str = ""
    weak_labels: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()  # names of options that the user has set

    @property
    def acknowledges(self) -> bool:
        """Whether the source sends acks itself."""
        return bool(self.ack_labels or self.weak_labels)

    def check_for(self, kind: str) -> None:
        """Raise :class:`OptionError` for options that make no sense in a BATCH or STREAM query."""
        for name in sorted(self.given):
            if _NAMES[name] not in (None, kind):
                other = "spark.read" if kind == BATCH else "spark.readStream"
                raise OptionError(f"{name} is not for {other}")


class Given:
    """The options as the user wrote them; names are case-insensitive, as everywhere in Spark."""

    def __init__(self, given: Mapping[str, str], names: Iterable[str] = _NAMES) -> None:
        known = {name.lower(): name for name in names}
        unknown = sorted(name for name in given if name.lower() not in known)
        if unknown:
            raise OptionError(
                f"unknown option{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; "
                f"valid are: {', '.join(known.values())}"
            )
        self.values = {known[name.lower()]: value for name, value in given.items()}

    def text(self, name: str, default: str = "") -> str:
        """The option as it is."""
        return self.values.get(name, default)

    def read(self, name: str, parse: Callable[[str], _Read]) -> _Read | None:
        """The option as ``parse`` reads it, None if it was not given."""
        if name not in self.values:
            return None
        try:
            return parse(self.values[name])
        except ValueError as problem:
            raise OptionError(f"{name}: {problem}") from None

    def one_of(self, name: str, *choices: str) -> str:
        """One of the ``choices``, by default the first."""
        value = self.values.get(name, choices[0]).lower()
        if value not in choices:
            raise OptionError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def positive(self, name: str, default: int) -> int:
        """A whole number above 0."""
        value = self.values.get(name, str(default))
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise OptionError(f"{name} must be a whole number above 0, not {value!r}")
        return int(value)

    def words(self, name: str) -> tuple[str, ...]:
        """Comma-separated words, each once."""
        words = [word.strip() for word in self.values.get(name, "").split(",")]
        if name in self.values and "" in words:
            raise OptionError(f"{name} is a list of words separated by commas; one is empty")
        return tuple(dict.fromkeys(word for word in words if word))

    def exclude(self, one: str, other: str) -> None:
        """Refuse two options that contradict each other."""
        if one in self.values and other in self.values:
            raise OptionError(f"{one} and {other} contradict each other: set one of them")


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check the options of a reader.

    Raises :class:`OptionError`, and StoreError if there is no usable Redis address.
    """
    options = Given(given)
    start, end = _places(options)
    ack_labels, weak_labels = (
        read_labels(options, "ackLabels"),
        read_labels(options, "weakAckLabels"),
    )
    both = set(ack_labels).intersection(weak_labels)
    if both:
        raise OptionError(f"{min(both)} is in ackLabels, which sends weak acks too: leave it there")
    if "ackGroup" in options.values and not ack_labels:
        raise OptionError("ackGroup is the group of the ackLabels, and there are none")
    stream = options.one_of("stream", *STREAMS)
    for name in _EVENTS_ONLY:
        if stream != EVENTS and name in options.values:
            raise OptionError(f"{name} is for stream={EVENTS} only")
    read_on = options.one_of("readOn", AUTO, DRIVER, EXECUTORS)
    if read_on == DRIVER and "minPartitions" in options.values:
        raise OptionError("minPartitions and readOn=driver contradict each other")
    return ReadOptions(
        url=resolve_url(options.text("redisUrl")),
        prefix=options.text("prefix", DEFAULT_PREFIX),
        patience=float(options.positive("storeTimeout", 60)),
        stream=stream,
        start=start,
        end=end,
        min_partitions=options.positive("minPartitions", 1),
        max_offsets=options.positive("maxOffsetsPerTrigger", 10_000),
        fail_on_loss=options.one_of("failOnDataLoss", "true", "false") == "true",
        read_on=read_on,
        filter=options.read("filter", _rql) or "",
        namespaces=frozenset(options.words("namespaces")),
        variant=options.one_of("variant", "false", "true") == "true",
        ack_labels=ack_labels,
        ack_group=options.text("ackGroup"),
        weak_labels=weak_labels,
        given=frozenset(options.values),
    )


def _places(options: Given) -> tuple[Place | None, Place | None]:
    """Where to start and to end."""
    options.exclude("startingOffsets", "startingTimestamp")
    options.exclude("endingOffsets", "endingTimestamp")
    start: Place | None = options.read("startingOffsets", parse_place)
    start = start or options.read("startingTimestamp", parse_moment)
    end: Place | None = options.read("endingOffsets", parse_place)
    end = end or options.read("endingTimestamp", parse_moment)
    if isinstance(end, Named) and end.name != LATEST:
        raise OptionError("endingOffsets=earliest leaves nothing to read")
    if isinstance(start, Moment) and isinstance(end, Moment) and start.ms > end.ms:
        raise OptionError("the start of the query lies after its end")
    return start, end


def _rql(text: str) -> str:
    try:
        parse_checked(text, EVENT_PREFIXES)
    except GatewayError as problem:
        raise ValueError(problem.description or problem.message) from None
    return text


def read_labels(options: Given, name: str) -> tuple[str, ...]:
    """Labels that a query can declare; raises :class:`OptionError`."""
    labels = options.words(name)
    for label in labels:
        if not is_label(label) or not is_resolved(label) or label in BUILT_IN:
            raise OptionError(f"{name}: {label!r} is no label that a query can declare")
    return labels
