"""What is sound has no failure: RocketMQ's stores, stores that were made up, however they ended."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import naive
from tests.rigs.random_store import MadeUp
from tests.tiers import some
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden_stores(
    name: str,
    golden_unpacked: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    """No failure, and counts equal to the writer's list."""
    path, lines = golden_unpacked(name), golden_list(name)
    window = {"pending": 172_800}.get(name, 20)
    found = validate(path, roll_window_slots=window, split_bytes=50_000)
    assert found.ok and not found.failures, str(found)
    assert found.by_broker and found.was_open == (name == "crashed")
    (state,) = (line for line in lines if line["kind"] == "state")
    put = Counter(line["kind"] for line in lines)
    # What was due already when it was put went straight to its topic, and is no timer any more.
    straight = sum(line["kind"] == "timer" and not _waits(line) for line in lines)
    counts = found.counts
    assert counts["timers"] == put["timer"] - straight
    assert counts["deletes"] == sum(line["kind"] == "delete" and _waits(line) for line in lines)
    real = sum(line["count"] for line in lines if line["kind"] == "fired")
    assert counts["fired"] == real - put["plain"] - straight
    copies = counts["rolls"] + counts["fired"]
    assert counts["messages"] == sum("put_ms" in line for line in lines) + copies
    assert counts["pending"] - counts["in_levels"] == state["pending_all"]
    # No level was over.
    assert found["level_due"].checked == counts["in_levels"] == put["level"]
    assert counts["slots"] >= put["slot"]


@pytest.mark.parametrize("in_the_last_file", [True, False])
def test_a_broker_that_was_stopped_has_not_written_its_wheel(
    golden: Callable[[str], Path], in_the_last_file: bool
) -> None:
    """It links anew, as it opens, what stands in the last files of its timer log."""
    path = golden("pending")
    files = sorted((path / "timerlog").glob("0*"))
    first_offset = int(files[-1 if in_the_last_file else 0].name)
    wheel = np.fromfile(path / "timerwheel", fmt.SLOT)
    data = bytearray((path / "config" / "timercheck").read_bytes())
    check = naive.decode_timercheck(bytes(data))
    data[8:16] = int(files[-1].name).to_bytes(8, "big")  # so far it was flushed
    (path / "config" / "timercheck").write_bytes(data)
    ahead = (wheel["time"] >= check.read_ms // 1_000) & (wheel["last"] >= first_offset)
    chosen = np.flatnonzero(ahead & (wheel["first"] == wheel["last"]))[:3]
    assert len(chosen) == 3
    offsets = sorted(wheel["last"][chosen].tolist())
    wheel[chosen] = np.zeros(3, fmt.SLOT)
    wheel.tofile(path / "timerwheel")
    found = validate(path, roll_window_slots=172_800)
    assert found.ok == in_the_last_file
    places = found["unreached"].mended if in_the_last_file else found["unreached"].places
    assert places if in_the_last_file else [each.offset for each in places] == offsets


def _waits(line: dict[str, Any]) -> bool:
    return bool(line["stored_topic"] == fmt.TIMER_TOPIC.decode())


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(25), 5))
def test_stores_that_were_made_up(seed: int, tmp_path: Path) -> None:
    left = MadeUp(tmp_path, seed).leave()
    split_bytes = (300, 5_000, 1 << 26)[seed % 3]
    found = validate(left.path, split_bytes=split_bytes)
    assert found.ok and not found.failures, str(found)
    assert verify(left.path).ok
    if left.was_closed:
        assert found.counts["pending"] == left.pending
        assert found["pending_count"].checked == 1
        return
    whole = validate(left.path, upto="end", split_bytes=split_bytes)
    assert not whole.failures, str(whole)
    assert whole.counts["pending"] == left.pending


def test_a_store_that_is_open_is_read_up_to_its_checkpoint(tmp_path: Path) -> None:
    config = Config(durability="process", tuning=Tuning(wheel_slot_count=128, roll_window_slots=6))
    with TimerStore(tmp_path / "store", config=config, clock=ManualClock()) as store:
        store.put_many([b"flushed"] * 5, delay_ms=[0, 500, 3_000, 9_000, 90_000])
        store.core.clock.advance(timedelta(seconds=4))
        store.flush()
        store.put_many([b"not yet"] * 3, delay_ms=1_000)
        found = validate(tmp_path / "store")
        assert found.was_open and not found.failures, str(found)
        assert found.counts["pending"] == 2
        assert validate(tmp_path / "store", upto="end").counts["pending"] == 5


@pytest.mark.parametrize(("at", "is_sound"), [(40, True), (46, True), (48, False), (4_095, False)])
def test_flush_times_of_each_version(
    golden: Callable[[str], Path], at: int, is_sound: bool
) -> None:
    """From 5.5 on a broker writes six numbers into `checkpoint`, before that five."""
    path = golden("fired")
    data = bytearray((path / "checkpoint").read_bytes())
    data[at] = 1 if at != 40 else 0
    data[47] = 7
    (path / "checkpoint").write_bytes(data)
    found = validate(path, roll_window_slots=20)
    assert found["flush_times"].ok is is_sound, str(found)
    assert verify(path).ok is is_sound
