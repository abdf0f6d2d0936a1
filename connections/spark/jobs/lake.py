"""Writing batches to a lake so that a batch that runs again leaves no row twice."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from connections.spark.jobs.frame import JobRefused, query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Format: TypeAlias = Literal["parquet", "delta"]

_DATE: Final = "date"


def write_batch(
    rows: DataFrame,
    path: str,
    batch_id: int,
    *,
    time: str = "timestamp",
    by: tuple[str, ...] = ("namespace",),
    form: Format = "parquet",
) -> None:
    """Append one batch's rows, partitioned by the date of the column ``time``, then ``by`` others.

    Parquet: a third partition ``batch`` holds the files of one batch alone, and is replaced as a
    whole when the batch runs again. It is named by query and batch, so that a second checkpoint
    never replaces the files of the first. Delta: its log refuses a batch that it has.
    """
    from pyspark.sql import functions as f

    query = query_id(rows)
    # One file for each partition: the rows of a batch come from several tasks.
    dated = rows.withColumn(_DATE, f.to_date(time)).repartition(_DATE, *by)
    if form == "delta":
        writer = dated.write.format("delta").mode("append")
        writer = writer.option("txnAppId", query).option("txnVersion", batch_id)
        writer.partitionBy(_DATE, *by).save(path)
        return
    named = dated.withColumn("batch", f.lit(f"{query[:8]}-{batch_id}"))
    writer = named.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(_DATE, *by, "batch").parquet(path)


def settings(form: Format) -> dict[str, str]:
    """The settings of Spark that a format needs. Raises JobRefused if it cannot be used here."""
    if form == "parquet":
        return {}
    try:
        release = version("delta-spark")
    except PackageNotFoundError:
        release = ""
    if not release or find_spec("delta") is None:
        raise JobRefused(
            "--format delta needs the package delta-spark, in a release for this PySpark "
            f"({version('pyspark')}); without it use --format parquet"
        )
    spark = ".".join(version("pyspark").split(".")[:2])
    return {
        "spark.jars.packages": f"io.delta:delta-spark_{spark}_2.13:{release}",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
