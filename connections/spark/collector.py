"""Python's collector of cycles, kept still while a page is converted.

A page is thousands of small objects without a cycle. Walking through them again and again took
half of the time of a conversion.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no cycles inside the block; do not stay in it for long."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
