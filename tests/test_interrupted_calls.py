"""A signal's exception in the midst of a public call: no lock stays held, others still get in."""

import threading
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.interrupting import Interrupt, interrupted
from tests.small_store import SMALL
from tests.store_calls import ENDING, calls_of
from tests.tiers import PROVING
from timerstore import ManualClock, StoreClosedError, TimerStore, TimerStoreError
from timerstore.jit.kernel import INTERPRETED

pytestmark = pytest.mark.long

START_MS = 1_800_000_000_000


class Life:
    """A store that one thread calls and is interrupted in, and another one calls as well."""

    def __init__(self, path: Path) -> None:
        self.store = TimerStore(path, config=SMALL, clock=ManualClock(START_MS))
        self.id = self.new_timer()
        self.store.health(), self.store.find(self.id)  # an import must not be ended
        self.calls = calls_of(self.store, self.id) | {"acknowledge": self.acknowledge}

    def new_timer(self) -> str:
        return self.store.put(b"x", topic="t", key="k", delay=timedelta(days=1))

    def acknowledge(self) -> None:
        """Pull, then settle messages in each way."""
        self.store.put_many([b"a", b"b", b"c"], topic="now")
        batch = self.store.pull("now", max_count=3, timeout=0)
        for i, delivery in enumerate(batch):
            (delivery.ack, partial(delivery.ack_and_put, b"next", topic="t"), delivery.nack)[i]()
        batch.ack()

    def pass_through(self) -> None:
        """Take what the calls take, in a thread that holds nothing."""
        ended = threading.Event()

        def call() -> None:
            store, id = self.store, self.new_timer()
            store.count("t"), store.get_key("t", "k"), store.cancel(id), next(store.pending(), None)
            for group in ("default", "fresh"):
                store.pull("t", group=group, timeout=0).ack()
            store.flush()
            store.stats()
            ended.set()

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(30)
        assert ended.is_set(), "a lock is held by a call that has ended"


if not INTERPRETED:  # no signal ends a kernel half-way; it would end an interpreted one
    NAMES = [name for name in calls_of(None, "") if name not in ENDING]  # type: ignore[arg-type]

    @pytest.mark.tier("promise", only=("put",))
    @pytest.mark.timeout(300)
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("name", [*NAMES, "acknowledge"])
    def test_no_call_keeps_others_out_wherever_it_was_ended(tmp_path: Path, name: str) -> None:
        life, at, raised = Life(tmp_path / "s"), 0, True
        while raised:
            with suppress(Interrupt, TimerStoreError, StopIteration), interrupted(at) as count:
                life.calls[name]()
            raised = count.raised
            life.pass_through()
            at += 1 + at // (4 if not PROVING else 12)
        life.store.close()
        with pytest.raises(StoreClosedError):
            life.new_timer()
