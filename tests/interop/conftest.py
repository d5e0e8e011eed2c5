"""RocketMQ, where it can run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.brokers import Brokers, NoRocketMQError, classpath


@pytest.fixture(scope="session")
def rocketmq() -> Callable[[Path], Brokers]:
    """`rocketmq(home)`: a process of brokers, which has an empty folder for itself."""
    try:
        classpath()
    except NoRocketMQError as error:
        pytest.skip(str(error))
    return Brokers
