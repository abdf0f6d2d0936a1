"""Spark's side of ackgate: a source that reads the journal, and acks from ``foreachBatch``.

Importing this package loads neither PySpark nor redis; the names below do when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from connections.spark.acknowledger import Acknowledger, Poison, acknowledge
    from connections.spark.labels import LabelLost, LabelTaken
    from connections.spark.session import spark_session
    from connections.spark.source import AckgateDataSource

__all__ = [
    "AckgateDataSource",
    "Acknowledger",
    "LabelLost",
    "LabelTaken",
    "Poison",
    "acknowledge",
    "register",
    "spark_session",
]

_HOMES: Final = {
    "AckgateDataSource": "source",
    "Acknowledger": "acknowledger",
    "LabelLost": "labels",
    "LabelTaken": "labels",
    "Poison": "acknowledger",
    "acknowledge": "acknowledger",
    "spark_session": "session",
}


def register(spark: SparkSession) -> None:
    """Make ``format("ackgate")`` known to a session that was built elsewhere."""
    from connections.spark.source import AckgateDataSource

    spark.dataSource.register(AckgateDataSource)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
