"""What a Spark session finds by itself, installed as the module `pyspark_timerstore`.

PySpark looks once in each session for modules whose names begin with `pyspark_`, and registers
their `DefaultSource`. So `spark.read.format("timerstore")` works with nothing to register.
"""

from __future__ import annotations

from timerstore.spark.source import TimerStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
