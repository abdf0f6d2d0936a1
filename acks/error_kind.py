"""What the catalogue says of one error."""

from __future__ import annotations

from dataclasses import dataclass

_RETRYABLE = frozenset({408, 424, 429})


def is_retryable(status: int) -> bool:
    """Whether trying again makes sense after ``status`` (seed: semantics of status codes)."""
    return status in _RETRYABLE or status >= 500


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One catalogue entry. ``message`` and ``description`` are ``str.format`` templates."""

    code: str
    status: int
    message: str
    description: str | None = None
    href: str | None = None

    @property
    def retryable(self) -> bool:
        """Whether a caller may expect success when it sends the same again."""
        return is_retryable(self.status)
