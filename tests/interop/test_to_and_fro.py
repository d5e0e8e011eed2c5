"""Random stores are handed to RocketMQ 5.3.3, opened here again, handed over a second time.

The broker is stopped, or killed. Timers have hopped never, once, or many times when they are handed
over; logs were cleaned, files used again. One store begins with the broker. One is handed over by
the command, the others by a program, after a clean close or a kill. Each timer comes once, none
that either side cancelled, none early; groups, what was sent back, what waits in a delay level go
on.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.brokers import Brokers
from tests.interop.lives import Life, now_ms, settings
from tests.tiers import SEED, how_many

pytestmark = pytest.mark.slow

STORES = how_many("INTEROP_STORES", 2, 8)
"""The seed of the first store."""


def go_on(brokers: Brokers, lives: list[Life], *, kill: bool) -> None:
    """Have a broker go on with each store for a while."""
    for life in lives:
        life.wait()
    for life in lives:
        brokers.start(life.path, **settings(life.config))
        life.act_with(brokers, 10)
    time_ms = now_ms() + 4_000
    for life in lives:
        life.act_with(brokers, 10)
    for life in lives:
        life.fired_until(time_ms)
    if not kill:
        brokers.stop(*(life.path for life in lives))


@pytest.mark.tier("prove", only=("stopped",))
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_each_timer_comes_once(
    tmp_path: Path, rocketmq: Callable[[Path], Brokers], kill: bool
) -> None:
    first = SEED + STORES * kill
    lives = [Life(tmp_path / f"{seed}", seed) for seed in range(first, first + STORES)]
    for life in lives[1:]:
        life.live(now_ms() - 60_000, now_ms(), 40)
    for life in lives[1:-1]:
        life.hand_over()
    lives[-1].hand_over_by_command()
    for phase in range(2):
        with rocketmq(tmp_path / f"home-{phase}") as brokers:
            go_on(brokers, lives, kill=kill)
        for life in lives:
            life.is_sound()
            life.live(now_ms(), now_ms() + 2_000, 20)
            if phase == 0:
                life.hand_over()
    for life in lives:
        life.end()
