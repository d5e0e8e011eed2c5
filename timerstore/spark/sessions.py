"""A Spark session that works on any machine, also without a Java; views of stores in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from timerstore.errors import InvalidArgumentError
from timerstore.spark.java import find_java, java_options
from timerstore.spark.source import TimerStoreDataSource
from timerstore.tables.schema import TABLES
from timerstore.values.sparkdaemon import MODULE

_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Times are UTC in every table; another zone would only shift what is printed.
    "spark.sql.session.timeZone": "UTC",
    # A large shuffle is divided so that a part fits in memory; of a small one parts are joined.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "32",
    # Nothing of this listens on the network.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    # A Python that begins in a folder with a wheel/ must not take that for the package.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}
JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:-DontCompileHugeMethods"
)
"""Only Java's first compiler. On two cores its second takes a third of all the time up to the
first answer, and is done when that is; what is read is decoded in Python's processes. With one
compiler Java has room for 48 MB of code alone, and compiles nothing more once that is full: after
some hundred queries. What Spark makes of a query with many columns are huge methods, which Java
would interpret."""


def session(
    *,
    master: str = "local[*]",
    app_name: str = "timerstore",
    config: Mapping[str, Any] | None = None,
) -> SparkSession:
    """Return a Spark session with the data source registered.

    One that runs is taken as it is, and only what can still change is set. Else one is started:
    UI off, all at the local address, few shuffle partitions, Python workers with this interpreter,
    a Java that starts fast, faster after `timerstore warmup --spark`; with the packaged Java if
    `JAVA_HOME` or `PATH` has none that is new enough. `config`: further settings, which win over
    these; for queries that keep Java itself busy for minutes
    {"spark.driver.extraJavaOptions": ""}. Raises NoJavaError.

    >>> spark = timerstore.spark.session()
    >>> spark.read.format("timerstore").option("table", "timers").load("timers/").count()
    """
    settings: dict[str, bool | float | int | str | None] = dict(_SETTINGS)
    settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 2))
    settings["spark.driver.extraJavaOptions"] = java_options(JAVA_OPTIONS)
    settings["spark.pyspark.python"] = settings["spark.pyspark.driver.python"] = sys.executable
    if master.startswith("local"):  # elsewhere this package may come along later
        settings["spark.python.daemon.module"] = MODULE
    settings |= {name: str(value) for name, value in (config or {}).items()}
    builder = SparkSession.builder.master(master).appName(app_name).config(map=settings)
    with _environment():
        spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession | None = None) -> None:
    """Let a session of your own read and write the format "timerstore"; by default the active one.

    It is needed if the session did not find the format by itself: the package is installed in
    place (`pip install -e`), or Spark's workers would run another Python than this one. Then they
    run this one from now on. Nothing else of the session changes.

    >>> timerstore.spark.register(spark)
    """
    spark = SparkSession.getActiveSession() if spark is None else spark
    if spark is None:
        raise InvalidArgumentError("There is no Spark session. Start one, or call session().")
    if isinstance(spark, SparkSession):
        context = spark.sparkContext
        chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains(
            "spark.pyspark.python"
        )
        if (context.master or "").startswith("local") and not chosen:
            context.pythonExec = sys.executable
    spark.dataSource.register(TimerStoreDataSource)


@contextmanager
def _environment() -> Iterator[None]:
    """Set what Spark's launcher reads from the environment, for as long as it starts."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if SparkSession.getActiveSession() is None:
        home = find_java()
        if home is not None:
            wanted["JAVA_HOME"] = str(home)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def views(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str],
    *,
    prefix: str = "",
    **options: Any,
) -> list[str]:
    """Make a temporary view of each table of a store, or of several; return their names.

    `path`: as `load` takes it. `prefix`: of the names, to tell stores apart. `options`: those of
    reading (docs/spark.md), for all views that know what they name: `where="due < '2027-02-01'"`
    reads no other day. A view shows its store as of its first use; call this again to see what came
    since.

    >>> timerstore.spark.views(spark, "timers/")
    >>> spark.sql("SELECT topic, count(*) FROM timers GROUP BY topic").show()
    """
    paths = os.fspath(path) if isinstance(path, str | os.PathLike) else list(path)
    names = []
    for table in TABLES:
        read = spark.read.format("timerstore").option("table", table)
        read.options(**options).load(paths).createOrReplaceTempView(prefix + table)
        names.append(prefix + table)
    return names
