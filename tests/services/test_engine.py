"""What the engine makes when kernels ask for it."""

import gc
import weakref
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from timerstore.timelog.writing.compose import Staged, compose


@pytest.mark.slow
def test_names_that_begin_as_ours_do_are_kept(tmp_path: Path) -> None:
    """Over rolls and firing: these begin with the first eight bytes of names that are dropped."""
    names = ["TIMER_ORDER", "TIMER_END", "TIMER_REMINDER", "REAL_TOPAZ", "RETRY_TOPAZ"]
    properties = {name: name.lower() for name in [*names, "TIMER_ROOM", "REAL_QIDS"]}
    clock = timerstore.ManualClock(1_700_000_000_000)
    with timerstore.open(tmp_path / "store", clock=clock) as store:
        store.put(b"x", topic="orders", delay=timedelta(days=5), properties=properties)
        clock.advance(timedelta(days=6))
        (delivery,) = store.consume("orders", timeout=0)
        assert delivery.properties == properties


def test_what_is_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    """Whoever staged it: the appender says so, and nothing was appended."""
    config = timerstore.Config(tuning=timerstore.Tuning(commitlog_segment_bytes=2048))
    clock = timerstore.ManualClock(1_700_000_000_000)
    with timerstore.open(tmp_path / "store", config=config, clock=clock) as store:
        message = compose(b"t", bytes(2048), b"", born_ms=1)
        entry = Staged(message, store.core.engine.queues.row(b"t"), 0, -1, 0)
        with pytest.raises(
            timerstore.InvalidArgumentError, match="larger than a segment, which has 2048"
        ):
            store.putting.append_staged(entry, clock.now_ms)
        assert store.core.engine.commitlog.end == 0


def test_a_signal_while_steps_are_waited_for_lets_nothing_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was dropped stays mapped until a later call has waited to its end."""
    config = timerstore.Config(tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 16))
    clock = timerstore.ManualClock(1_700_000_000_000)
    with timerstore.open(tmp_path / "store", config=config, clock=clock) as store:
        for _ in range(120):
            store.put(bytes(10_000), topic="orders", delay=timedelta(hours=1))
        engine = store.core.engine
        log = engine.commitlog
        owners = [weakref.ref(log.existing(number).owner) for number in log.numbers]

        def interrupted() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(engine, "wait_for_steps", interrupted)
            for number in log.numbers:
                log.retire(number)
            with pytest.raises(KeyboardInterrupt):
                engine.let_go()
        gc.collect()
        assert all(owner() is not None for owner in owners)
        engine.let_go()
        gc.collect()
        assert sum(owner() is not None for owner in owners) < len(owners)
