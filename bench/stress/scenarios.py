"""The scenarios: settings, who puts, who consumes, what goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stress import load
from stress.load import Act, Work, cancelling, columns, lists, objects, singles
from timerstore import Config, Tuning


@dataclass(frozen=True)
class Scenario:
    """One scenario; what is 0 or None does not happen."""

    what: str
    config: Config
    putters: tuple[Act, ...] = (lists,)
    consumers: tuple[Act, ...] = (columns,)
    script: Callable[[Work], None] | None = None
    """In place of both: one thread, on a clock that is moved."""
    timers: int = 1 << 31
    ahead_ms: int = 100
    kill_s: tuple[float, float] | None = None
    """The process is killed after so long, drawn between these."""
    step_s: tuple[float, float] | None = None
    """Each so many seconds the clock is set by up to so many, forward or back."""
    stall_s: tuple[float, float] | None = None
    """Each so many seconds consumers stop for so many."""


_HOPPING = Config(
    durability="process",
    tuning=Tuning(precision_ms=100, roll_window_slots=8, wheel_slot_count=1_024),
)

SCENARIOS: Final = {
    "small": Scenario(
        "a hundred million timers through a store of 512 MiB",
        Config.small(512 << 20, durability="process"),
        timers=100_000_000,
    ),
    "hops": Scenario(
        "timers that hop each 0.7 s until they are due, ten million hops and more",
        _HOPPING,
        ahead_ms=30_000,
    ),
    "days": Scenario(
        "thousands of timers in one millisecond, then an empty day, on a clock that is moved",
        Config(durability="process"),
        script=load.days,
    ),
    "threads": Scenario(
        "eight putting and eight consuming threads",
        Config(durability="process"),
        putters=(lists, *4 * (singles,), *3 * (cancelling,)),
        consumers=(*4 * (columns,), *4 * (objects,)),
        ahead_ms=5_000,
    ),
    "stalled": Scenario(
        "consumers stop for a minute, again and again, while timers fire",
        Config(durability="process"),
        putters=(lists, singles),
        consumers=(columns, objects),
        ahead_ms=1_000,
        stall_s=(120, 60),
    ),
    "clock": Scenario(
        "the clock is set forward or back by up to ten seconds, each five seconds",
        Config(durability="process"),
        putters=(lists, singles, cancelling),
        consumers=(columns, objects),
        ahead_ms=5_000,
        step_s=(5, 10),
    ),
    "everything": Scenario(
        "all of it at once in a small store, killed every few seconds",
        Config.small(
            96 << 20,
            durability="process",
            tuning=Tuning(precision_ms=100, roll_window_slots=8, wheel_slot_count=1_024),
        ),
        putters=(lists, *3 * (singles,), *2 * (cancelling,)),
        consumers=(*2 * (columns,), *2 * (objects,)),
        ahead_ms=4_000,
        kill_s=(2, 8),
        step_s=(7, 3),
        stall_s=(30, 5),
    ),
}
