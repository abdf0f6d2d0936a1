"""Comparisons with literals as SQL: types compare as in a document database.

A number is compared with numbers only, a text with texts, a boolean with booleans; null equals
null. Nothing is greater or less than null.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from acks.comparing import as_text
from acks.errors import error
from acks.search_terms import BOOLEAN, HEAD, NULL, NUMBER, TEXT, head_of, storable
from app.search.hints import Hints
from app.search.sql import FALSE, TRUE, Sql, all_of, listed, none_of
from app.store.sql.dialect import Dialect

MAX_PATTERN = 512
"""Characters of the pattern of ``like``: at each place of a text, so many may be compared."""
ORDERS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_FEW = 20
_LAST = "\U0010ffff"
_BEFORE_SURROGATES, _AFTER_SURROGATES = "\ud7ff", "\ue000"


class Terms(NamedTuple):
    """The columns of a row of ``term``."""

    alias: str
    hints: Hints
    kind: str
    number: str
    head: str
    whole: str

    @classmethod
    def of(cls, alias: str, hints: Hints, sought: bool = False) -> Terms:
        """The columns of the table ``alias``; ``sought``: its index by values shall find them."""
        sign, text_sign = ("", "") if sought else (hints.sign, hints.text_sign)
        return cls(
            alias,
            hints,
            f"{sign}{alias}.kind",
            f"{sign}{alias}.number",
            f"{text_sign}{alias}.head",
            f"coalesce({alias}.text, {alias}.head)",
        )


class Literals(NamedTuple):
    """The literals of one comparison, by type."""

    numbers: tuple[int | float, ...]
    texts: tuple[str, ...]
    booleans: tuple[bool, ...]
    null: bool

    @classmethod
    def of(cls, values: Iterable[str | int | float | bool | None]) -> Literals:
        """``values``, without those that are there twice."""
        numbers: dict[int | float, None] = {}
        texts: dict[str, None] = {}
        booleans: dict[bool, None] = {}
        null = False
        for value in values:
            if value is None:
                null = True
            elif isinstance(value, bool):
                booleans[value] = None
            elif isinstance(value, str):
                texts[value] = None
            else:
                numbers[value] = None
        return cls(tuple(numbers), tuple(texts), tuple(booleans), null)


def value_conditions(
    dialect: Dialect, terms: Terms, operator: str, literals: Literals
) -> list[Sql]:
    """Conditions on a term of which one has to hold; each can be found in an index by itself.

    ``ne`` is asked for as ``eq``. Raises ``rql.expression.invalid`` for a long pattern.
    """
    if operator in ("eq", "ne", "in"):
        return _equal(dialect, terms, literals)
    if literals.null:
        return []
    if operator in ORDERS:
        return _ordered(terms, ORDERS[operator], literals)
    pattern = as_text((*literals.texts, *literals.numbers, *literals.booleans)[0])
    return _like(dialect, terms, pattern, operator == "ilike")


def _equal(dialect: Dialect, terms: Terms, literals: Literals) -> list[Sql]:
    found = []
    if literals.numbers:
        found.append(all_of((_of(terms, NUMBER), listed(terms.number, literals.numbers))))
    if literals.texts:
        heads = [head_of(text) for text in literals.texts]
        found.append(all_of((_of_text(terms), text_among(dialect, terms.head, heads))))
    if literals.booleans:
        numbers = [int(value) for value in literals.booleans]
        found.append(all_of((_of(terms, BOOLEAN), listed(terms.number, numbers))))
    if literals.null:
        found.append(_of(terms, NULL))
    return found


def text_among(dialect: Dialect, column: str, texts: list[str]) -> Sql:
    """Whether ``column`` is one of ``texts``, of which there may be any number."""
    if len(texts) <= _FEW:
        return listed(column, texts)
    return Sql(dialect.among(column, "text"), (texts,))


def _ordered(terms: Terms, sign: str, literals: Literals) -> list[Sql]:
    if literals.texts:
        return [all_of((_of_text(terms), _text_order(terms, sign, storable(literals.texts[0]))))]
    if literals.booleans:
        limit = Sql(f"{terms.number} {sign} ?", (int(literals.booleans[0]),))
        return [all_of((_of(terms, BOOLEAN), limit))]
    limit = Sql(f"{terms.number} {sign} ?", (literals.numbers[0],))
    return [all_of((_of(terms, NUMBER), limit))]


def _text_order(terms: Terms, sign: str, text: str) -> Sql:
    if len(text) <= HEAD:
        return Sql(f"{terms.head} {sign} ?", (text,))
    # The head of a long text holds a digest, in digits and letters up to f.
    head = text[:HEAD]
    near = Sql(f"{terms.head} >= ?", (head,))
    if sign in ("<", "<="):
        near = Sql(f"{terms.head} < ?", (head + "g",))
    return all_of((near, Sql(f"{terms.whole} {sign} ?", (text,))))


def _like(dialect: Dialect, terms: Terms, pattern: str, ignore_case: bool) -> list[Sql]:
    check_pattern(pattern)
    plain, wild = split_pattern(pattern)
    beginning = TRUE
    if not ignore_case:
        if not wild:
            return [all_of((_of_text(terms), Sql(f"{terms.head} = ?", (head_of(plain),))))]
        beginning = text_range(terms.head, storable(plain)[:HEAD])
        if not wild.strip("*") and len(storable(plain)) <= HEAD:
            return [all_of((_of_text(terms), beginning))]
    near = all_of((_of_text(terms), beginning))
    # The index by values has no long texts: they are looked up apart, so that it answers alone for
    # the short ones.
    short = _fits(dialect, terms.head, pattern, ignore_case)
    fits = _fits(dialect, "z.text", pattern, ignore_case)
    long = Sql(
        f"EXISTS (SELECT 1 FROM term z WHERE z.thing = {terms.alias}.thing"
        f" AND z.path = {terms.alias}.path AND {terms.hints.text_sign}z.head = {terms.alias}.head"
        f" AND {fits.text}{terms.hints.fence})",
        fits.params,
    )
    return [
        all_of((near, Sql(f"length({terms.head}) <= {HEAD}"), short)),
        all_of((near, Sql(f"length({terms.head}) > {HEAD}"), long)),
    ]


def _fits(dialect: Dialect, column: str, pattern: str, ignore_case: bool) -> Sql:
    condition, param = dialect.like(column, pattern, ignore_case=ignore_case)
    return Sql(condition, (param,))


def check_pattern(pattern: str) -> None:
    """Raises ``rql.expression.invalid`` if ``pattern`` is too long."""
    if len(pattern) > MAX_PATTERN:
        reason = f"A pattern of a search has at most {MAX_PATTERN:,} characters."
        raise error("rql.expression.invalid", reason=reason)


def split_pattern(pattern: str) -> tuple[str, str]:
    """The beginning of ``pattern`` without wildcards, and the rest of it."""
    at = next((at for at, char in enumerate(pattern) if char in "*?"), len(pattern))
    return pattern[:at], pattern[at:]


def text_range(column: str, beginning: str) -> Sql:
    """Whether the text in ``column`` begins so."""
    if not beginning:
        return TRUE
    low = Sql(f"{column} >= ?", (beginning,))
    end = beginning.rstrip(_LAST)
    if not end:
        return low
    last = end[-1]
    following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1)
    return all_of((low, Sql(f"{column} < ?", (end[:-1] + following,))))


def _of(terms: Terms, kind: int) -> Sql:
    return Sql(f"{terms.kind} = {kind}")


def _of_text(terms: Terms) -> Sql:
    # All columns of the index up to the text's have to be named, so that it can be used.
    return Sql(f"{terms.kind} = {TEXT} AND {terms.number} = 0")


def column_condition(
    dialect: Dialect, column: str, operator: str, literals: Literals, number: bool
) -> Sql:
    """A comparison of a column of things, which holds a text or a ``number`` and is never null.

    Raises ``rql.expression.invalid`` for a long pattern.
    """
    values = literals.numbers if number else literals.texts
    if operator == "ne":
        return none_of(column_condition(dialect, column, "eq", literals, number))
    if operator in ("eq", "in"):
        if not values:
            return FALSE
        if number:
            return listed(column, literals.numbers)
        return text_among(dialect, column, [storable(text) for text in literals.texts])
    if operator in ORDERS:
        if not values:
            return FALSE
        value = values[0]
        param = storable(value) if isinstance(value, str) else value
        return Sql(f"{column} {ORDERS[operator]} ?", (param,))
    if number or literals.null:
        return FALSE
    pattern = as_text((*literals.texts, *literals.numbers, *literals.booleans)[0])
    check_pattern(pattern)
    near = TRUE
    if operator == "like":
        near = text_range(column, storable(split_pattern(pattern)[0]))
    return all_of((near, _fits(dialect, column, pattern, operator == "ilike")))
