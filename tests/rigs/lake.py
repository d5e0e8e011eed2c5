"""Holds what was published into a catalog of Iceberg or Delta against the files.

    python -m tests.rigs.lake delta JARS FOLDER       JARS: paths of jar files, with commas between

Iceberg and Delta have jars for one minor version of Spark each, and PySpark brings none of them.
"""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import timerstore
from tests.table_stores import eventful
from timerstore import pipeline

EXTENSIONS = {
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
}
CATALOGS = {
    "iceberg": ("lake", "org.apache.iceberg.spark.SparkCatalog"),
    "delta": ("spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"),
}


def session(form: str, jars: str, folder: Path) -> Any:
    """A session that has the catalog, and keeps its tables in a folder."""
    from pyspark.sql import SparkSession

    name, catalog = CATALOGS[form]
    settings = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": EXTENSIONS[form],
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        f"spark.sql.catalog.{name}": catalog,
    }
    if form == "iceberg":
        settings |= {
            f"spark.sql.catalog.{name}.type": "hadoop",
            f"spark.sql.catalog.{name}.warehouse": str(folder / "warehouse"),
        }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def sorted_rows(rows: Any) -> list[str]:
    """Rows as texts, in an order that does not depend on files."""
    return sorted(str(sorted(row.items())) for row in rows.to_pylist())


def check_same(spark: Any, into: str, out: Path) -> None:
    """Hold each table of the catalog against the files."""
    for name in pipeline.TABLES:
        files = pipeline.read(out, name)
        there = spark.table(f"{into}.{name}").select(*files.column_names).toArrow()
        mine, theirs = sorted_rows(files), sorted_rows(there.cast(files.schema))
        assert theirs == mine, (name, theirs[:1], mine[:1])
        print(name, len(files), "rows")


def main(form: str, jars: str, folder: Path) -> None:
    """Publish runs, one again with other rows, one that was interrupted."""
    out, into = folder / "tables", "lake.timers" if form == "iceberg" else "timers"
    stores = {"a/b": folder / "one", "two ü": folder / "two"}
    for path in stores.values():
        eventful(path, body=b"last", delay=timedelta(seconds=99))[0].close()
    spark = session(form, jars, folder)
    pipeline.run(stores, out, run="first")
    pipeline.run(stores, out, run="second", now_ms=1_900_000_000_000)
    assert pipeline.publish(spark, out, into, form=form) == ["first", "second"]
    check_same(spark, into, out)
    assert pipeline.publish(spark, out, into, form=form) == []

    with timerstore.open(stores["a/b"]) as store:
        store.put(b"one more", delay=timedelta(days=1_000))
    pipeline.run(stores, out, run="first")
    assert pipeline.publish(spark, out, into, form=form, run="first") == ["first"]
    check_same(spark, into, out)

    spark.sql(f"DELETE FROM {into}.runs WHERE run = 'second'")  # as if it had been interrupted
    assert pipeline.publish(spark, out, into, form=form) == ["second"]
    check_same(spark, into, out)
    spark.stop()
    print("published")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
