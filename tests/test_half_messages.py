"""Halves of transactions in a delay level of a broker's store: dropped, as a broker does."""

from pathlib import Path

from tests.calls.pending.test_foreign import SECOND, SMALL, START_MS
from tests.rigs import broker
from timerstore import ManualClock, TimerStore, read, verify
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate

HALF = fmt.HALF_TOPIC.decode()


def test_no_half_of_a_transaction_is_delivered(tmp_path: Path) -> None:
    path = tmp_path / "s"
    messages = [broker.at_level("t", b"%d" % i, 1, f"key-{i}") for i in range(3)]
    messages.insert(1, broker.at_level(HALF, b"not committed", 1, "half"))
    for message in messages:
        message.born_ms = message.stored_ms = START_MS
    broker.write_store(path, messages, 1 << 16)
    clock = ManualClock(START_MS, force=True)
    with TimerStore(path, config=SMALL, clock=clock) as store:
        assert store.count() == 3 == len(list(store.pending()))
        clock.advance(5 * SECOND)
        assert store.count() == 0
        batch = store.pull("t", timeout=0, max_count=10)
        assert batch.bodies.to_pylist() == [b"0", b"1", b"2"]
        assert HALF not in store.stats().topics
        assert store.health().ok
    assert verify(path).ok
    assert validate(path).ok, str(validate(path))
    assert read(path, "timers").num_rows == 0
