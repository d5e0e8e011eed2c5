"""Calls in a signal's handler, in the midst of another call that holds the services' locks."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tests.small_store import SMALL
from tests.store_calls import calls_of
from timerstore import TimerStore, TimerStoreError

# These take none of the locks.
WORK = {"put", "put_many", "put_json", "put_table", "count", "upcoming", "health", "consume"}
WORK |= {"pull", "dead_letters", "retry_dead_letters", "drop_dead_letters", "forget_group"}
# These say so themselves: whoever is inside has passed the gate, which this test does not.
ENDING = {"close", "abandon"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("held", ["all", "fire", "near", "wheel"])
def test_no_call_waits_for_its_own_thread(tmp_path: Path, held: str) -> None:
    """Each works, or is refused with what to do; the other call goes on, and all work again."""
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        ids = store.put_many([b"a", b"b", b"c"], topic="t", delay_ms=60_000)
        store.cancel(store.put(b"warm", topic="t", delay=timedelta(days=1)))
        locks = store.core.engine.locks
        with (locks if held == "all" else getattr(locks, held)).guard():
            assert locks.is_mine()
            for name, call in calls_of(store, ids[0]).items():
                if name in WORK:
                    with suppress(StopIteration):  # nothing is due yet
                        call()
                elif name not in ENDING:
                    with pytest.raises(TimerStoreError, match="another call of the same thread"):
                        call()
        assert not locks.is_mine() and store.get(ids[1]) is not None and store.cancel(ids[2])
