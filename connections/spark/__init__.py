"""Spark's side of ackgate: a source that reads the journal, a sink and ``foreachBatch`` for acks.

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
    from connections.spark.sink import AckSink
    from connections.spark.source import AckgateDataSource

__all__ = [
    "AckSink",
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
    "AckSink": "sink",
    "AckgateDataSource": "source",
    "Acknowledger": "acknowledger",
    "LabelLost": "labels",
    "LabelTaken": "labels",
    "Poison": "acknowledger",
    "acknowledge": "acknowledger",
    "spark_session": "session",
}


def register(spark: SparkSession) -> None:
    """Make ``format("ackgate")`` and ``format("ackgate-acks")`` known to a session.

    From then on the labels of its queries with the sink are kept while they run.
    """
    from connections.spark.keeper import keep_labels
    from connections.spark.sink import AckSink
    from connections.spark.source import AckgateDataSource

    spark.dataSource.register(AckgateDataSource)
    spark.dataSource.register(AckSink)
    keep_labels(spark)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
