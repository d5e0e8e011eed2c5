"""Slots linked; the near wheel."""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.rig import COUNT, START_MS, play
from timerstore.timelog.jit.kernel import kernel
from timerstore.wheel.near import NearTimer, bucket_at, near_insert, near_pop, new_near_wheel
from timerstore.wheel.place import place_all
from timerstore.wheel.settings import Settings
from timerstore.wheel.slots import SlotArray, link_unit, new_slot_array

SLOTS = 1 << 17
CACHED = 1 << 12
"""So many slots fit in a core's own cache."""
SLOT_BYTES = 32
NOW = START_MS // 1_000
TIMES = 10


def _new_slots() -> SlotArray:
    return new_slot_array(np.zeros(2 * SLOTS * SLOT_BYTES, np.uint8), ())


def bench_place(benchmark: Any) -> None:
    """Find the slot of a timer, of a tenth of them by hops."""
    settings = Settings(
        precision_ms=1_000, slot_count=604_800, window_slots=172_800, hop_slots=172_799
    )
    ahead_ms = np.random.default_rng(1).integers(0, 20 * 86_400_000, TIMES * COUNT)
    due_ms, slots = START_MS + ahead_ms, np.zeros(TIMES * COUNT, np.int64)
    top = NOW + 2 * settings.slot_count
    play(
        benchmark,
        lambda: place_all(settings, NOW, NOW, top, due_ms, slots),
        count=len(due_ms),
    )


@kernel
def _link_many(wheel: Any, slots: Any) -> None:
    for i in range(len(slots)):
        link_unit(wheel, slots[i], 52 * i, 1)


def bench_link(benchmark: Any) -> None:
    """Link units to slots in no order."""
    wheel = _new_slots()
    slots = NOW + np.random.default_rng(1).integers(0, CACHED, TIMES * COUNT)
    play(benchmark, lambda: _link_many(wheel, slots), count=len(slots))


@kernel
def _near_many(near: Any, start_ms: int, count: int) -> int:
    taken = 0
    for i in range(count):
        ms = start_ms + i * 7 % 997
        near_insert(near, ms, NearTimer(ms, 329 * i, 329, ms // 1_000, 1, 0), False)
    for ms in range(start_ms, start_ms + 1_000):
        bucket = bucket_at(near, ms, 0)
        while near_pop(near, bucket):
            taken += 1
    return taken


def bench_near(benchmark: Any) -> None:
    """Put timers into the near wheel, take them in the order of due time."""
    near = new_near_wheel(1_000, 1 << 16)

    def stage() -> None:
        assert _near_many(near, START_MS, COUNT) == COUNT

    play(benchmark, stage)
