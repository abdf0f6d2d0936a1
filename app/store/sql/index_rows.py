"""What the records of the store amount to in rows of the search index (app/store/sql/schema.py)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from acks.policy_document import is_tombstone, revision
from acks.search_rules import granted_subjects, read_rules
from acks.search_terms import Place, Value, changed_terms, head_of
from acks.signals import JsonObject
from app.store.record import decode
from app.store.sql.database import Write

_TERM = 10  # bytes of a document for a row of it, about


class Change(NamedTuple):
    """A thing as it is in the store now: ``record`` is its bytes there, None if there are none.

    ``force``: what is indexed is replaced by anything else, an older revision, too: the store may
    have lost what is indexed, and written other things since.
    """

    thing_id: str
    record: bytes | None
    force: bool = False


class PolicyChange(NamedTuple):
    """A policy as it is in the store now: ``record`` is its text there, None if there is none.

    ``own``: it is of the shard that is written, so this replaces whatever is known. Else it only
    does so if it is newer: the owner of its shard may have written it already.
    """

    policy_id: str
    record: bytes | None
    own: bool = False


class Status(Enum):
    """What became of a change."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"  # this revision, or a newer one, was indexed already
    FAILED = "failed"  # this thing cannot be written


class Stored(NamedTuple):
    """A thing as it is in the store; without a document there is none."""

    thing_id: str
    revision: int = 0
    policy_id: str = ""
    created: str = ""
    modified: str = ""
    document: JsonObject | None = None
    text: bytes = b""


class Indexed(NamedTuple):
    """A thing as it is in the index."""

    num: int
    revision: int
    created: str
    modified: str
    document: bytes
    policy_id: str


class Rows:
    """What has to be written of one thing.

    ``num`` is None until a new thing gets one; ``paths`` are the numbers of the places, to be
    filled in. ``terms`` are pairs of what was at a place and what is.
    """

    __slots__ = ("changed", "num", "paths", "stored", "terms", "was")

    def __init__(self, stored: Stored, was: Indexed | None, changed: bool) -> None:
        self.stored = stored
        self.was = was
        self.changed = changed
        self.num = was.num if was else None
        self.paths: dict[Place, int] = {}
        self.terms: list[tuple[Place, tuple[Value, ...], tuple[Value, ...]]] = []

    @property
    def thing_id(self) -> str:
        """The thing's id."""
        return self.stored.thing_id

    @property
    def places(self) -> list[Place]:
        """Where terms are written or removed."""
        return [place for place, _, _ in self.terms]

    @property
    def size(self) -> int:
        """About how many rows have to be written or removed."""
        removed = self.was is not None and self.stored.document is None
        return len(self.was.document) // _TERM if removed and self.was else len(self.terms)

    @property
    def after(self) -> int | None:
        """The revision that is in the index afterwards; None for no thing."""
        if self.changed:
            return self.stored.revision if self.stored.document is not None else None
        return self.was.revision if self.was else None


def policy_named(change: Change) -> str:
    """The id of the policy that the thing of a change names; '' for none."""
    try:
        return str(decode(change.record)[0].policy_id) if change.record is not None else ""
    except (ValueError, KeyError, TypeError):
        return ""


def read_change(change: Change) -> Stored | str:
    """What is in a change; a sentence if its record is none of ours."""
    if change.record is None:
        return Stored(change.thing_id)
    try:
        twin, text = decode(change.record)
        if not twin.policy_id:
            return Stored(change.thing_id, twin.revision)
        document = orjson.loads(text)
        facts: tuple[object, ...] = (twin.revision, twin.policy_id, twin.created, twin.modified)
        if [type(fact) for fact in facts] != [int, str, str, str]:
            return "its record holds facts of other kinds"
        if not isinstance(document, dict):
            return "its document is no JSON object"
    except (ValueError, KeyError, TypeError) as problem:
        return f"its record cannot be read: {problem}"
    return Stored(
        change.thing_id,
        twin.revision,
        twin.policy_id,
        twin.created,
        twin.modified,
        document,
        text,
    )


def rows_of(stored: Stored, was: Indexed | None, force: bool) -> Rows:
    """What has to be written so that the index has the thing as it is stored.

    A thing made anew may begin with revision 1 again; then it was created at another time.
    """
    if stored.document is None:
        return Rows(stored, was, was is not None)
    if was is not None and was.created == stored.created:
        if force:
            same = (stored.revision, stored.modified) == (was.revision, was.modified)
            newer = not same or stored.text != was.document
        else:
            newer = stored.revision > was.revision
        if not newer:
            return Rows(stored, was, False)
    rows = Rows(stored, was, True)
    rows.terms = list(changed_terms(orjson.loads(was.document) if was else None, stored.document))
    return rows


# --- statements --------------------------------------------------------------------------------

_NEW_POLICY = "INSERT INTO policy (policy_id) {rows} ON CONFLICT (policy_id) DO NOTHING"
_POLICY = "(SELECT num FROM policy WHERE policy_id = ?)"
_INSERT = (
    "INSERT INTO thing (num, thing_id, shard, namespace, policy, revision, created, modified, "
    f"mark, document) VALUES (?, ?, ?, ?, {_POLICY}, ?, ?, ?, ?, ?)"
)
_UPDATE = "UPDATE thing SET revision = ?, modified = ?, document = ? WHERE num = ?"
_UPDATE_ALL = (
    "UPDATE thing SET revision = ?, modified = ?, document = ?, created = ?, "
    f"policy = {_POLICY} WHERE num = ?"
)
_MARK = "UPDATE thing SET mark = ? WHERE num = ?"
_PUT_TERM = (
    "INSERT INTO term (thing, path, ord, kind, number, head, text) {rows} "
    "ON CONFLICT (thing, path, ord) DO UPDATE SET kind = excluded.kind, number = excluded.number, "
    "head = excluded.head, text = excluded.text"
)
_DROP_TERM = "DELETE FROM term WHERE thing = ? AND path = ? AND ord = ?"
_DROP_TERMS = "DELETE FROM term WHERE thing = ?"
_DROP_THING = "DELETE FROM thing WHERE num = ?"
_ORDER = (
    *(_NEW_POLICY, _INSERT, _UPDATE, _UPDATE_ALL, _MARK),
    *(_DROP_TERMS, _DROP_THING, _DROP_TERM, _PUT_TERM),
)
_TYPES = {
    _NEW_POLICY: ("text",),
    _PUT_TERM: ("bigint", "bigint", "integer", "smallint", "numeric", "text", "text"),
}
"""Of the statements for most of the rows."""

_CLASS_NUMBERS = "UPDATE counter SET next = next + ? WHERE name = 'class' RETURNING next"
_CLASS = (
    "INSERT INTO class (num, digest, rules) SELECT next - ?, ?, ? FROM counter "
    "WHERE name = 'class' ON CONFLICT (digest) DO NOTHING"
)
_CLASS_SUBJECT = (
    "INSERT INTO class_subject (subject, class) SELECT ?, num FROM class WHERE digest = ? "
    "ON CONFLICT (subject, class) DO NOTHING"
)
_PUT_POLICY = (
    "INSERT INTO policy (policy_id, revision, class) "
    "VALUES (?, ?, (SELECT num FROM class WHERE digest = ?)) ON CONFLICT (policy_id) DO UPDATE "
    "SET revision = excluded.revision, class = excluded.class"
)
_ADD_POLICY = _PUT_POLICY + " WHERE policy.revision < excluded.revision"


def thing_writes(changed: Sequence[Rows], shard: int, mark: int) -> list[Write]:
    """The statements that write things of a shard; see :meth:`IndexWriter.apply` for ``mark``."""
    rows: dict[str, list[tuple[Any, ...]]] = {}

    def add(sql: str, *row: Any) -> None:
        rows.setdefault(sql, []).append(row)

    for one in changed:
        stored, was = one.stored, one.was
        if stored.document is None:
            add(_DROP_TERMS, one.num)
            add(_DROP_THING, one.num)
            continue
        head = (stored.revision, stored.modified, stored.text)
        if was is None:
            add(_NEW_POLICY, stored.policy_id)
            namespace = stored.thing_id.partition(":")[0]
            add(
                _INSERT,
                *(one.num, stored.thing_id, shard, namespace, stored.policy_id),
                *(stored.revision, stored.created, stored.modified, mark, stored.text),
            )
        elif was.policy_id != stored.policy_id or was.created != stored.created:
            add(_NEW_POLICY, stored.policy_id)
            add(_UPDATE_ALL, *head, stored.created, stored.policy_id, one.num)
        else:
            add(_UPDATE, *head, one.num)
        if was is not None and mark:
            add(_MARK, mark, one.num)
        for place, before, after in one.terms:
            path = one.paths[place]
            for at, value in enumerate(after):
                if at >= len(before) or before[at] != value:
                    add(_PUT_TERM, one.num, path, at, *value)
            for at in range(len(after), len(before)):
                add(_DROP_TERM, one.num, path, at)
    if _NEW_POLICY in rows:
        # In one order for everybody, so that nobody waits for one who waits for him.
        rows[_NEW_POLICY] = sorted(set(rows[_NEW_POLICY]))
    return [
        Write(sql, rows[sql], many=True, types=_TYPES.get(sql, ())) for sql in _ORDER if sql in rows
    ]


def policy_writes(policies: Sequence[PolicyChange]) -> list[Write]:
    """The statements that write policies and their classes.

    The numbers of classes are counted in the transaction: whoever sees one sees all below it.
    """
    classes: dict[str, tuple[str, set[str]]] = {}
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for policy in sorted(policies, key=lambda one: one.policy_id):
        number, rules = _read_policy(policy.record)
        digest = None
        if rules is not None:
            text = orjson.dumps(rules).decode()
            digest = blake2b(text.encode(), digest_size=16).hexdigest()
            classes[digest] = (text, granted_subjects(rules))
        sql = _PUT_POLICY if policy.own else _ADD_POLICY
        rows.setdefault(sql, []).append((policy.policy_id, number, digest))
    writes = []
    if classes:
        ordered = sorted(classes.items())
        writes = [
            Write(_CLASS_NUMBERS, (len(ordered),)),
            Write(
                _CLASS, [(at, d, text) for at, (d, (text, _)) in enumerate(ordered, 1)], many=True
            ),
            Write(
                _CLASS_SUBJECT,
                [(head_of(s), d) for d, (_, subjects) in ordered for s in sorted(subjects)],
                many=True,
            ),
        ]
    return writes + [Write(sql, found, many=True) for sql, found in rows.items()]


def _read_policy(record: bytes | None) -> tuple[int, JsonObject | None]:
    """Revision and READ rules of a policy's text; no rules for a deleted or unreadable one."""
    if record is None:
        return 0, None
    try:
        document = orjson.loads(record)
        number = revision(document)
        return number, None if is_tombstone(document) else read_rules(document)
    except (ValueError, TypeError, AttributeError):
        return 0, None
