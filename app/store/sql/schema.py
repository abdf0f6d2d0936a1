"""The tables of the search index, and the steps that bring an older index up to date.

=============  =====================================================================================
``meta``       key -> value: ``version`` of the schema, ``store``: id of the data it is made from
``counter``    name -> next free number; blocks of them are taken at a time (``thing``)
``shard``      one row per shard of the journal: ``owner`` and ``lease_until`` say who indexes it,
               ``fence`` counts the owners, ``bookmark`` is the journal entry up to which everything
               is indexed ('' for none), ``sweeps`` counts the times that rows were removed which
               nobody uses (app/store/sql/sweeping.py); the rest is the state of a rebuild
``indexer``    the processes that index, for a fair share of the shards
``thing``      one row per thing. ``document`` is its JSON as stored (not compressed), ``mark`` the
               rebuild that has seen it last
``path``       places of values: ``path`` is a pointer without its first slash
               (acks/search_terms.py: path_text). The first ``depth`` parts of it are where the
               policy decides: all of them, or those of the outermost array around the value. So a
               path can have several rows. ``wild`` is the path with ``*`` for the feature's id, and
               ``feature`` is that id; both are '' outside of features
``term``       what can be found of a thing: for each path the values there, ``ord`` counts them.
               ``kind`` is one of acks/search_terms.py; a number or boolean (0, 1) is in ``number``,
               a text in ``head`` or, if it is long, in ``text`` with the beginning in ``head``
               (head_of). What does not apply is 0, '' and NULL
``policy``     one row per policy that a thing names or that was changed. ``class`` is NULL if
               nobody may read: the policy is deleted, or not known yet (``revision`` is -1 then)
``class``      sets of READ rules on things; immutable, and no number is used twice. ``rules`` is a
               policy document with nothing else in it (acks/search_rules.py)
``class_subject``  the subjects to which a class grants anything (head_of the subject)
=============  =====================================================================================

Times are ms since the epoch, except ``created`` and ``modified``, which are texts as things show
them. ``thingId``, ``_namespace``, ``policyId``, ``_revision``, ``_created`` and ``_modified`` are
columns (see :data:`COLUMNS`), everything else that can be named in a filter is in ``term``: the
definition, too. Texts are stored as acks/search_terms.py's ``storable`` gives them, and are in the
order of their code points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from app.store.sql.database import IndexUnavailable, Row
from app.store.sql.dialect import Dialect

VERSION = 2

COLUMNS = {
    "thingId": "thing.thing_id",
    "policyId": "policy.policy_id",
    "_namespace": "thing.namespace",
    "_revision": "thing.revision",
    "_created": "thing.created",
    "_modified": "thing.modified",
}
"""Properties of a filter that are columns; ``policy`` is joined by ``num = thing.policy``."""

_TABLES = """
CREATE TABLE counter (name {text} NOT NULL PRIMARY KEY, next bigint NOT NULL);
INSERT INTO counter VALUES ('thing', 1);
INSERT INTO counter VALUES ('class', 1);
CREATE TABLE shard (
    shard integer PRIMARY KEY,
    fence bigint NOT NULL DEFAULT 0,
    bookmark {text} NOT NULL DEFAULT '',
    owner {text} NOT NULL DEFAULT '',
    lease_until bigint NOT NULL DEFAULT 0,
    rebuild_wanted bigint NOT NULL DEFAULT 0,
    rebuild_done bigint NOT NULL DEFAULT 0,
    rebuild_cursor {text} NOT NULL DEFAULT '',
    rebuild_seen bigint NOT NULL DEFAULT 0,
    rebuild_total bigint NOT NULL DEFAULT 0,
    rebuild_mark bigint NOT NULL DEFAULT 0,
    indexed bigint NOT NULL DEFAULT 0
);
CREATE TABLE indexer (id {text} NOT NULL PRIMARY KEY, alive_until bigint NOT NULL DEFAULT 0);
CREATE TABLE class (
    num {integer} PRIMARY KEY,
    digest {text} NOT NULL UNIQUE,
    rules {text} NOT NULL
);
CREATE TABLE class_subject (
    subject {text} NOT NULL,
    class bigint NOT NULL REFERENCES class (num) ON DELETE CASCADE,
    PRIMARY KEY (subject, class)
){clustered};
CREATE INDEX class_subject_class ON class_subject (class);
CREATE TABLE policy (
    num {serial},
    policy_id {text} NOT NULL UNIQUE,
    revision bigint NOT NULL DEFAULT -1,
    class bigint REFERENCES class (num)
);
CREATE INDEX policy_class ON policy (class, num);
CREATE TABLE thing (
    num {integer} PRIMARY KEY,
    thing_id {text} NOT NULL UNIQUE,
    shard integer NOT NULL,
    namespace {text} NOT NULL,
    policy bigint NOT NULL REFERENCES policy (num),
    revision bigint NOT NULL,
    created {text} NOT NULL,
    modified {text} NOT NULL,
    mark bigint NOT NULL,
    document {bytes} NOT NULL
);
CREATE INDEX thing_namespace ON thing (namespace, thing_id);
CREATE INDEX thing_policy ON thing (policy, thing_id);
CREATE INDEX thing_modified ON thing (modified, thing_id);
CREATE INDEX thing_created ON thing (created, thing_id);
CREATE INDEX thing_shard ON thing (shard, mark);
CREATE TABLE path (
    num {serial},
    path {text} NOT NULL,
    depth integer NOT NULL,
    feature {text} NOT NULL,
    wild {text} NOT NULL,
    UNIQUE (path, depth)
);
CREATE INDEX path_wild ON path (wild) WHERE wild <> '';
CREATE TABLE term (
    thing bigint NOT NULL,
    path bigint NOT NULL,
    ord integer NOT NULL,
    kind {small} NOT NULL,
    number {number} NOT NULL,
    head {text} NOT NULL,
    text {text},
    PRIMARY KEY (thing, path, ord)
){clustered};
CREATE INDEX term_value ON term (path, kind, number, head, thing);
"""

_SWEEPS = "ALTER TABLE shard ADD COLUMN sweeps bigint NOT NULL DEFAULT 0"

_WORDS = {
    "sqlite": {
        "text": "TEXT",
        "bytes": "BLOB",
        "integer": "INTEGER",
        "small": "INTEGER",
        # No affinity: an integer stays one, exact to its last digit, beside floats.
        "number": "BLOB",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "clustered": " WITHOUT ROWID",
    },
    "postgresql": {
        "text": 'text COLLATE "C"',
        "bytes": "bytea",
        "integer": "bigint",
        "small": "smallint",
        "number": "numeric",
        "serial": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "clustered": "",
    },
}

_META = "CREATE TABLE IF NOT EXISTS meta (key {text} NOT NULL PRIMARY KEY, value {text} NOT NULL)"
_STEPS = (_TABLES, _SWEEPS)

FIND_VERSION = "SELECT value FROM meta WHERE key = 'version'"
"""To be asked when :func:`meta_table` has been made; no row in an empty database."""
SET_VERSION = (
    f"INSERT INTO meta VALUES ('version', '{VERSION}') "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)


def meta_table(dialect: Dialect) -> str:
    """The first statement on any database: makes the table ``meta`` if it is not there."""
    return _META.format_map(_WORDS[dialect.name])


def upgrade(dialect: Dialect, found: Sequence[Row], where: str) -> list[str]:
    """The statements that bring a database to :data:`VERSION`, to be run in one transaction.

    ``found`` is what :data:`FIND_VERSION` has given. Raises IndexUnavailable if a later release
    made the index, which is said to be ``where``.
    """
    version = int(found[0][0]) if found else 0
    if version > VERSION:
        raise IndexUnavailable(
            f"{where}: the search index has version {version} of its tables, this release knows "
            f"{VERSION}: use the release that made it, or another search_index"
        )
    return [*chain.from_iterable(steps(dialect, version)), SET_VERSION]


def steps(dialect: Dialect, version: int) -> list[list[str]]:
    """For each version after ``version`` (0: an empty database), in order: its statements."""
    scripts = (step.format_map(_WORDS[dialect.name]) for step in _STEPS[version:])
    return [[part.strip() for part in text.split(";") if part.strip()] for text in scripts]
