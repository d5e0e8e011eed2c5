"""Units that a broker wrote after their time, because it had started late."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests import naive
from tests.rigs.patient import Folder
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.services.engine.rebuild import TIMERS
from timerstore.timelog.bytes import format as fmt

PRECISION_MS = 1_000
CONFIG = Config(tuning=Tuning(precision_ms=PRECISION_MS, roll_window_slots=172_800))


def made_late(path: Path) -> naive.Unit:
    """Have the first unit that waits alone in its slot written five seconds after its time."""
    read_ms = int.from_bytes((path / "config" / "timercheck").read_bytes()[:8], "big")
    slots = np.fromfile(path / "timerwheel", fmt.SLOT)
    alone = (slots["time"] * PRECISION_MS >= read_ms) & (slots["count"] == 1)
    alone &= slots["first"] == slots["last"]
    at = int(slots[alone]["last"][slots[alone]["time"].argmin()])
    log = Folder(path / "timerlog")
    unit = naive.decode_unit(log.read(at, fmt.UNIT_BYTES))
    assert not unit.is_roll
    unit = unit._replace(write_ms=unit.time_ms + 5_000, delta_ms=-5_000)
    log.write(at, naive.encode_unit(unit))
    return unit


def move_read_time(path: Path, read_ms: int) -> None:
    """Let the broker have passed all slots before a time."""
    with open(path / "config" / "timercheck", "r+b") as file:
        file.write(read_ms.to_bytes(8, "big"))


@pytest.mark.whole
@pytest.mark.parametrize("is_passed", [False, True])
def test_what_a_broker_linked_late_is_pending(
    is_passed: bool, golden: Callable[[str], Path]
) -> None:
    """The index is made anew only if the broker would never have come to a timer."""
    path = golden("pending")
    unit = made_late(path)
    if is_passed:
        move_read_time(path, unit.time_ms // PRECISION_MS * PRECISION_MS + PRECISION_MS)
    listed = timerstore.read(path, columns=["message_offset"])["message_offset"].to_pylist()
    assert unit.message_offset in listed
    report = verify(path)
    assert report.ok, str(report)
    clock = ManualClock(unit.time_ms, force=True)
    with TimerStore(path, config=CONFIG, clock=clock) as store:
        assert store.core.findings.by_broker
        assert store.core.findings.rebuilt == ([TIMERS] if is_passed else [])
        assert store.core.findings.pending_count == len(listed) == report.pending_count
