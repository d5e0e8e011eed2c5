"""One Spark session for all tests of it."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """A session as users get it, with the data source registered."""
    import timerstore.spark

    session = timerstore.spark.session(config={"spark.sql.shuffle.partitions": 2})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
