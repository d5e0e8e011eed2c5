"""A store with a damaged message goes to a broker as its salvage does: each other timer fires."""

from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from tests.interop.brokers import Brokers
from tests.interop.lives import now_ms
from tests.interop.test_broker import CONFIG, TOPIC
from timerstore import TimerStoreError
from timerstore.testing.damage import flip_bit

pytestmark = [pytest.mark.slow, pytest.mark.prove]


@pytest.mark.timeout(120, method="signal")
def test_a_broker_fires_all_but_the_damaged_one(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers]
) -> None:
    path, sound = tmp_path / "timers", tmp_path / "sound"
    with timerstore.open(path, config=CONFIG) as store:
        due_ms = now_ms() + 12_000
        ids = [store.put(b"%d" % i * 9, topic=TOPIC, at_ms=due_ms + i) for i in range(200)]
    flip_bit(path / "commitlog" / f"{0:020d}", int(ids[3][12:24], 16) + 100)
    store = timerstore.open(path, config=CONFIG)
    with store, pytest.raises(TimerStoreError, match=ids[3]):
        store.handover()
    timerstore.salvage(path, sound)
    with timerstore.open(sound, config=CONFIG) as store:
        store.handover()
    fired = set[str]()
    with rocketmq(tmp_path / "home") as brokers:
        brokers.start(sound)
        while len(fired) < len(ids) - 1:
            fired.update(each for each in brokers.ask("due", sound, TOPIC, 500) if each)
    assert fired == {f"{i}" * 9 for i in range(200) if i != 3}
