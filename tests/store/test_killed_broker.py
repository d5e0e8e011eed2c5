"""A broker that was killed while it fired what we had handed over: nothing fires again."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from tests import naive
from tests.as_broker import AsBroker
from tests.rigs.patient import Patient
from tests.services.test_cleaning import SECOND, SMALL, START_MS, open_small
from timerstore import ManualClock, verify
from timerstore.validation import validate

LARGER = dataclasses.replace(
    SMALL, commitlog_segment_bytes=1 << 17, consumequeue_segment_bytes=20_000
)


def _copy_of_broker(message: naive.Message, clock: ManualClock) -> naive.Message:
    """What a broker that writes no checksum fires: ours is a property like any other."""
    properties = {"__CRC32#": "1234567890", **message.properties}
    enqueued = {"TIMER_ENQUEUE_MS": str(message.stored_ms), "TIMER_DEQUEUE_MS": str(clock.now_ms)}
    return dataclasses.replace(
        message,
        topic=message.properties["REAL_TOPIC"],
        queue_id=0,
        properties=properties | enqueued,
        stored_ms=clock.now_ms,
        store_host=naive.BROKER_HOST,
        has_crc=False,
    )


@pytest.mark.usefixtures("any_wheel")
def test_what_a_killed_broker_fired_does_not_fire_again(tmp_path: Path) -> None:
    """Its copies of what we had moved name our source; a retry has its first one's id."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    store = open_small(path, clock, LARGER)
    ids = [store.put(b"%d" % i, delay=200 * SECOND) for i in range(8)]
    store.put(b"fails", delay=SECOND)
    clock.advance(2 * SECOND)
    (delivery,) = store.pull("default", timeout=0)
    delivery.nack(198 * SECOND)
    ids.append(delivery.id)
    store.put_many([b"x" * 1_000] * 150, topic="filler")
    clock.advance(SECOND)
    while len(batch := store.pull("filler", timeout=0)):
        batch.ack()
    store.clean()
    assert store.stats().cleaning.copied_count == len(ids)
    clock.advance(189 * SECOND)
    store.handover()
    clock.advance(10 * SECOND)

    patient = Patient(path)
    reached = AsBroker(path).fired(AsBroker(path).last)
    assert any("TIMER_ORIGIN" in message.properties for message in reached)
    by_broker = [m for m in reached if m.properties["REAL_TOPIC"] == "default"][:5]
    assert len(reached) == len(ids)
    for message in by_broker:
        patient.append(_copy_of_broker(message, clock))
        patient.reread()
    check = (path / "config" / "timercheck").read_bytes()
    (path / "config" / "timercheck").write_bytes(check[:40] + bytes(range(16)) + check[56:])
    (path / "abort").write_bytes(b"1")
    assert validate(path).ok, str(validate(path))

    with open_small(path, clock, LARGER) as store:
        clock.advance(60 * SECOND)
        assert store.count() == 0
        got: Counter[str] = Counter()
        while len(batch := store.pull("default", timeout=0, max_count=100)):
            got.update(each.id for each in batch)
    assert got == Counter(ids)
    assert validate(path).ok, str(validate(path))
    assert verify(path).ok, str(verify(path))
