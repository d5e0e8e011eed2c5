"""RocketMQ, where it can run."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore.rocketmq
from tests.interop.brokers import Brokers, NoRocketMQError, classpath

TOPICS = [f"t{i}" for i in range(40)]
OTHERS = {"NORMAL": "of-normal", "DELAY": "of-delay"}
"""Topics that take no timers, or only timers."""
_unread = iter(TOPICS)


@pytest.fixture(scope="session", autouse=True)
def quiet_client() -> Iterator[None]:
    """Keep what its threads log out of the tests that this process runs later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("rocketmq-python-client"), "propagate", False)
        yield


@pytest.fixture(scope="session")
def rocketmq() -> Callable[[Path], Brokers]:
    """`rocketmq(home)`: a process of brokers, which has an empty folder for itself."""
    try:
        classpath()
    except NoRocketMQError as error:
        pytest.skip(str(error))
    return Brokers


@pytest.fixture
def topic() -> str:
    """One of the cluster's topics, which no other test reads or writes."""
    return next(_unread)


@pytest.fixture(scope="package")
def cluster(
    rocketmq: Callable[[Path], Brokers], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A client of a name server, a broker, a proxy, which are busy even if nobody asks them."""
    base = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch, rocketmq(base / "rocketmq") as brokers:
        patch.setenv("HOME", str(base))  # there the client's log goes
        (base / "broker").mkdir()
        brokers.ask("names")
        brokers.start(base / "broker", **ROOMY)
        brokers.ask("topics", base / "broker", *TOPICS)
        for kind, topic in OTHERS.items():
            brokers.ask("topics of", base / "broker", kind, topic)
        with timerstore.rocketmq.connect(brokers.proxy(), invisible=10) as made:
            patch.setattr(made, "_poll_s", 1)  # else each empty answer takes five seconds
            yield made


ROOMY = {
    "brokerName": "broker-a",
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "timerPrecisionMs": 1_000,
    "timerMaxDelaySec": 86_400 * 400,
    "mappedFileSizeCommitLog": 1 << 26,
}
