"""When a policy's subjects expire, and when that is announced: the schedule beside a policy.

A stored policy has, beside its document, a list of *watches* in the field :data:`WATCHES`: one for
every subject that expires, and one for every deleted subject whose deletion is still announced.
Whoever writes a policy calls :func:`reschedule`; whoever finds one due calls :func:`step`, and
:func:`answered` when the acks of an announcement have come.

Sources: Ditto's HTTP API on announcements (published until acknowledged; one that was made before
the expiry, and acknowledged if it had to be, makes that of the deletion needless); spec
websocket-... 1.8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from acks.announcement_settings import AnnouncementSettings, read_announcement
from acks.error_kind import is_retryable
from acks.policy import expiry_ms
from acks.policy_document import WATCHES, is_tombstone
from acks.signals import JsonObject

GRACE_MS: Final = 4 * 3_600_000
"""How long after the expiry, or the deletion, a requested ack is awaited at most, ms."""
BACKOFF_MS: Final = 1_000
"""Pause after the first announcement that was not acknowledged; it doubles each time, ms."""
MAX_BACKOFF_MS: Final = 600_000
"""Longest pause: each attempt is an entry of the journal for each subject that nobody hears, ms."""
PUBLICATIONS: Final = 100
"""Announcements that one step makes at most; the rest is due still."""
MAX_DELETED_BYTES: Final = 400_000
"""What the watches of a policy's deleted subjects take at most, about; the oldest go first."""

QUIET, WAITING, ANNOUNCED, SETTLED, DELETED = (
    "quiet", "waiting", "announced", "settled", "deleted",
)  # fmt: skip
"""Stages of a watch: nothing is announced ahead of the expiry; something will be; it has been, but
acks are outstanding; it has been, that is all; the subject is gone, and that is announced."""

Unit = tuple[str, int, str]
"""A subject as it stands in an entry: its id, expiry (ms, 0 for none), announcement as JSON."""


class Watch(NamedTuple):
    """What is to become of one subject; stored as a JSON array in this order.

    ``due`` is when it has to be looked at again, ``delete_at`` what announcements say of a deleted
    subject (ms since the epoch); ``token`` is the correlation-id of the last one.
    """

    subject: str
    expiry: int
    announcement: JsonObject | None
    stage: str
    due: int
    attempts: int = 0
    delete_at: int = 0
    token: str = ""

    @property
    def unit(self) -> Unit:
        """The subject that it watches."""
        return self.subject, self.expiry, _text(self.announcement)

    @property
    def settings(self) -> AnnouncementSettings:
        """What its announcement means; none means nothing."""
        return read_announcement(self.announcement or {})


class Publication(NamedTuple):
    """An announcement to be published now; ``delete_at`` in ms since the epoch.

    Acks of ``labels``, if there are any, are awaited for ``wait_ms``.
    """

    subject: str
    delete_at: int
    labels: tuple[str, ...]
    wait_ms: int
    token: str


class Step(NamedTuple):
    """What to store in the place of a policy that was due, and what to publish with it.

    ``expired``: subjects have been deleted from the document, so this is another revision of it.
    """

    document: JsonObject
    expired: bool
    publications: tuple[Publication, ...]


def due_at(document: JsonObject) -> int | None:
    """When a stored policy has to be looked at again, in ms since the epoch; None for never."""
    return min((watch[4] for watch in document.get(WATCHES, ())), default=None)


# --- a policy is written -----------------------------------------------------------------------


def reschedule(
    before: JsonObject | None, after: JsonObject, now_ms: int, chance: float
) -> JsonObject:
    """The policy ``after``, which takes the place of ``before``, with its watches.

    ``chance``, from 0 to below 1, spreads announcements over their interval. A subject that is in
    no entry any more was deleted; one that has changed was not.
    """
    watches = _watches(before)
    units = dict.fromkeys(_units(after))
    known = {watch.unit: watch for watch in watches if watch.stage != DELETED}
    ahead = [known.get(unit) or _watch(unit, now_ms, chance) for unit in units if unit[1]]
    present = {unit[0] for unit in units}
    gone = [w for w in watches if w.stage == DELETED and w.subject not in present]
    deleted = dict.fromkeys(_units(before)) if before is not None else {}
    for subject in dict.fromkeys(unit[0] for unit in deleted if unit[0] not in present):
        own = (known.get(unit) or _deleted(unit) for unit in deleted if unit[0] == subject)
        gone += _farewell(own, now_ms)
    return _with_watches(after, [*_bounded(gone), *ahead])


def _watch(unit: Unit, now_ms: int, chance: float) -> Watch:
    subject, expiry, text = unit
    announcement = json.loads(text)
    watch = Watch(subject, expiry, announcement, QUIET, expiry)
    settings = watch.settings
    if settings.before_ms is None or expiry <= now_ms:
        return watch
    # Subjects of one policy do not come at one moment either.
    share = (chance + crc32(subject.encode()) / 2**32) % 1
    early = settings.before_ms + int(share * settings.spread_ms)
    return watch._replace(stage=WAITING, due=max(now_ms, expiry - early))


def _deleted(unit: Unit) -> Watch:
    """A watch for a subject that never expired."""
    return Watch(unit[0], unit[1], json.loads(unit[2]), QUIET, 0)


def _farewell(own: Iterable[Watch], now_ms: int) -> list[Watch]:
    """At most one watch for the announcement that a subject has been deleted."""
    for watch in own:
        if watch.stage != SETTLED and watch.settings.when_deleted:
            return [
                watch._replace(stage=DELETED, due=now_ms, attempts=0, delete_at=now_ms, token="")
            ]
    return []


def _bounded(gone: Sequence[Watch]) -> list[Watch]:
    kept: list[Watch] = []
    size = 0
    for watch in reversed(gone):
        size += len(json.dumps(watch))
        if size > MAX_DELETED_BYTES:
            break
        kept.append(watch)
    return kept[::-1]


# --- it is due ---------------------------------------------------------------------------------


def step(document: JsonObject, now_ms: int, token: str, room: int = PUBLICATIONS) -> Step | None:
    """What is due about a stored policy, None if nothing is, or nothing can be done now.

    ``token`` is a new correlation-id, from which those of the publications are made; ``room`` is
    how many of them may ask for acks. What there is no room for is due still.
    """
    watches: list[Watch] = []
    expired: list[Unit] = []
    publications: list[Publication] = []
    for watch in _watches(document):
        over = _is_over(watch, now_ms)
        silent = over and (watch.stage == SETTLED or not watch.settings.when_deleted)
        asks = not silent and bool(watch.settings.labels)
        full = len(publications) == PUBLICATIONS or (asks and room <= 0)
        if watch.due > now_ms or (full and not silent):
            watches.append(watch)
            continue
        if over:
            expired.append(watch.unit)
            if silent:
                continue
            watch = watch._replace(stage=DELETED, attempts=0, delete_at=watch.expiry)  # noqa: PLW2901
        room -= asks
        own = token if not publications else f"{token}-{len(publications)}"
        publication, left = _publish(watch, now_ms, own)
        publications.append(publication)
        watches += left
    if not expired and not publications:
        return None
    left_over = _without(document, frozenset(expired)) if expired else document
    return Step(_with_watches(left_over, watches), bool(expired), tuple(publications))


def _is_over(watch: Watch, now_ms: int) -> bool:
    """Whether a due subject is to be deleted now, after what was announced ahead of it."""
    if watch.stage == ANNOUNCED:
        return now_ms >= watch.expiry + GRACE_MS
    return watch.stage in (QUIET, SETTLED)


def _publish(watch: Watch, now_ms: int, token: str) -> tuple[Publication, list[Watch]]:
    """The announcement that is due, and what has to be watched after it."""
    settings = watch.settings
    leaving = watch.stage == DELETED
    moment = watch.delete_at if leaving else watch.expiry
    publication = Publication(watch.subject, moment, settings.labels, settings.wait_ms, token)
    end = moment + GRACE_MS
    again = now_ms + settings.wait_ms + _backoff(watch.attempts + 1)
    if not settings.labels:
        settled = watch._replace(stage=SETTLED, due=max(watch.expiry, now_ms))
        return publication, [] if leaving else [settled]
    if leaving and again >= end:
        return publication, []
    # A subject that nobody acknowledges goes when the grace is over, not a pause later.
    due = again if leaving else max(min(again, end), now_ms + settings.wait_ms)
    stage = DELETED if leaving else ANNOUNCED
    return publication, [
        watch._replace(stage=stage, due=due, attempts=watch.attempts + 1, token=token)
    ]


def _backoff(attempts: int) -> int:
    return min(BACKOFF_MS << min(attempts - 1, 10), MAX_BACKOFF_MS)


def answered(
    document: JsonObject, token: str, statuses: Iterable[int], now_ms: int
) -> JsonObject | None:
    """The policy after the acks of the announcement ``token`` came with ``statuses``.

    None if that changes nothing: it is not awaited any more, or is due again soon enough. An ack
    that says "not now" (408, 424, 429, 5xx) has it published again after a pause; any other one
    is final.
    """
    again = any(is_retryable(status) for status in statuses)
    watches = _watches(document)
    for position, watch in enumerate(watches):
        if not token or watch.token != token:
            continue
        if again:
            due = now_ms + _backoff(watch.attempts)
            if due >= watch.due:
                return None
            watches[position] = watch._replace(due=due)
        elif watch.stage == DELETED:
            del watches[position]
        else:
            due = max(watch.expiry, now_ms)
            watches[position] = watch._replace(stage=SETTLED, due=due, token="")
        return _with_watches(document, watches)
    return None


# --- documents ---------------------------------------------------------------------------------


def _watches(document: JsonObject | None) -> list[Watch]:
    return [Watch(*row) for row in document.get(WATCHES, ())] if document is not None else []


def _with_watches(document: JsonObject, watches: Sequence[Watch]) -> JsonObject:
    bare = {name: value for name, value in document.items() if name != WATCHES}
    return {**bare, WATCHES: [list(watch) for watch in watches]} if watches else bare


def _units(document: JsonObject) -> Iterator[Unit]:
    """The subjects of a policy in their order; of a deleted one there are none."""
    if is_tombstone(document):
        return
    for entry in document["entries"].values():
        for subject, value in entry["subjects"].items():
            yield _unit(subject, value)


def _unit(subject: str, value: Any) -> Unit:
    return subject, expiry_ms(value) or 0, _text(value.get("announcement"))


def _text(announcement: JsonObject | None) -> str:
    return json.dumps(announcement, sort_keys=True)


def _without(document: JsonObject, expired: frozenset[Unit]) -> JsonObject:
    """The policy without these subjects, in whatever entries they are."""
    entries = {}
    for label, entry in document["entries"].items():
        subjects = {
            subject: value
            for subject, value in entry["subjects"].items()
            if _unit(subject, value) not in expired
        }
        entries[label] = {**entry, "subjects": subjects}
    return {**document, "entries": entries}
