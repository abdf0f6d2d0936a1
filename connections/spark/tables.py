"""What can be read: streams of the store as tables. Each has a module with ``table(options)``.

A table does not fetch anything: it says where its entries lie (for pages.py) and what rows they
are. It travels to executors, so it can be pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from connections.spark.options import STREAMS, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

#: One entry as Redis gives it: stream id, and field name -> value.
Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]
#: Shard and entry.
Numbered: TypeAlias = tuple[int, Entry]


class Table(ABC):
    """One kind of streams with its columns."""

    #: The columns; they may depend on options.
    schema: StructType
    #: How many streams there are; None: one for each shard of the data.
    shards: int | None = None
    #: What its streams are called in messages to people.
    name: str = "the journal"

    @abstractmethod
    def key(self, prefix: str, shard: int) -> str:
        """Key of one of the streams."""

    @abstractmethod
    def batch(self, entries: Sequence[Numbered]) -> pa.RecordBatch:
        """The rows of these entries, with the columns of :attr:`schema`; an entry may be no row.

        Raises ValueError naming the bookmark if an entry does not follow its layout.
        """

    def narrowed(self, filters: Sequence[Filter], shards: int) -> tuple[Table, set[int]]:
        """What is left to read for rows that pass ``filters``, of ``shards`` streams.

        A table that leaves out rows which fail them, and the streams that may have others. Spark
        applies the filters itself, so leaving out nothing is right too.
        """
        return self, set(range(shards))


def open_table(options: ReadOptions) -> Table:
    """The table that the option ``stream`` names."""
    table: Table = import_module(STREAMS[options.stream]).table(options)
    return table
