"""A Spark session that works on any machine, also where no Java is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from timerstore.spark.java import find_java
from timerstore.spark.source import TimerStoreDataSource

_SETTINGS: Final[dict[str, str]] = {
    # The tables skip what a filter does not want; PySpark asks data sources only if told so.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Times are UTC in every table; another zone would only shift what is printed.
    "spark.sql.session.timeZone": "UTC",
    # Nothing of this listens on the network.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    # A Python that begins in a folder with a wheel/ must not take that for the package.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}


def session(
    *,
    master: str = "local[*]",
    app_name: str = "timerstore",
    config: Mapping[str, Any] | None = None,
) -> SparkSession:
    """Return a Spark session with the data source registered.

    One that runs is taken as it is, and only what can still change is set. Else one is started:
    filter push-down on, UI off, all at the local address, few shuffle partitions, Python workers
    with this interpreter; with the packaged Java where `JAVA_HOME` or `PATH` has none that is new
    enough. `config`: further settings, which win over these. Raises NoJavaError.

    >>> spark = timerstore.spark.session()
    >>> spark.read.format("timerstore").option("table", "timers").load("timers/").count()
    """
    settings: dict[str, bool | float | int | str | None] = dict(_SETTINGS)
    settings["spark.sql.shuffle.partitions"] = str(2 * (os.cpu_count() or 2))
    settings["spark.pyspark.python"] = settings["spark.pyspark.driver.python"] = sys.executable
    settings |= {name: str(value) for name, value in (config or {}).items()}
    builder = SparkSession.builder.master(master).appName(app_name).config(map=settings)
    with _environment():
        spark = builder.getOrCreate()
    spark.dataSource.register(TimerStoreDataSource)
    return spark


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
