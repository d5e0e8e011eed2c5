"""Calls in a signal's handler, in the midst of another call that holds the key index's lock."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tests.small_store import SMALL
from tests.store_calls import calls_of
from timerstore import TimerStore, TimerStoreError, TooLateError

REFUSED = {"get_key", "cancel_key", "flush", "clean", "pause", "resume", "handover"}
# These say so themselves: whoever is inside has passed the gate, which this test does not.
ENDING = {"close", "abandon"}


@pytest.mark.timeout(60)
def test_no_call_waits_for_its_own_thread(tmp_path: Path) -> None:
    """Each works, or is refused with what to do; the other call goes on, and all work again."""
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        ids = store.put_many([b"a", b"b", b"c"], topic="t", delay_ms=60_000)
        store.cancel(store.put(b"warm", topic="t", delay=timedelta(days=1)))
        lock = store.core.engine.keys.lock
        with lock.guard():
            assert lock.is_mine()
            calls = calls_of(store, ids[0])
            calls["list"] = lambda: list(store.pending(topic="t", key="k"))
            calls["put a key"] = lambda: store.put(b"x", topic="t", key="k", if_absent=True)
            for name, call in calls.items():
                if name in REFUSED | {"list", "put a key"}:
                    with pytest.raises(TimerStoreError, match="another call of the same thread"):
                        call()
                elif name not in ENDING:
                    with suppress(StopIteration, TooLateError):  # not due, or cancelled
                        call()
        assert not lock.is_mine() and store.get(ids[1]) is not None and store.cancel(ids[2])
