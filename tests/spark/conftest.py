"""One Spark session for the whole run: starting one takes seconds."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    import timerstore.spark

    session = timerstore.spark.session(master="local[2]")
    yield session
    session.stop()
