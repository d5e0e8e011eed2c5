"""A small program that puts one key again and again, to be ended at each step."""

from datetime import timedelta

import timerstore
from tests.rigs.orders import config_of
from timerstore.testing import say

DAY = timedelta(days=1)


def work(path: str, durability: str) -> None:
    """Move one timer ahead; it may be called again."""
    with timerstore.open(path, config=config_of(durability)) as store:
        for number in range(12):
            id = store.put(b"%d" % number, key="k", debounce=timedelta(hours=1), at_most=DAY)
            timer = store.get(id)
            assert timer is not None
            say(timer.put_ms if timer.first_put_ms is None else timer.first_put_ms)
            if number % 4 == 3:
                store.flush()
