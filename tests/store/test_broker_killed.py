"""A broker that is killed soon after a handover: what it wrote counts, without a checkpoint."""

from pathlib import Path

import pytest

import timerstore
from tests import naive
from tests.models.ledger import read_messages
from tests.rigs import broker
from tests.services.test_cleaning import SECOND, START_MS, drain, open_small
from timerstore import ManualClock, verify
from timerstore.validation import validate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("any_wheel")]


def _write(path: Path, offset: int, data: bytes) -> None:
    """Write into the only file of the commit log."""
    with open(path / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(offset)
        file.write(data)


def _handed_over(path: Path, clock: ManualClock) -> None:
    """Hand over a store of two timers of one slot; then a broker opens it, and is killed."""
    with open_small(path, clock) as store:
        store.put_many([b"first", b"second"], delay=20 * SECOND)
        store.handover()
    (path / "abort").write_text("1")


def _listed(path: Path) -> list[bytes]:
    """What readers say is pending; they agree that nothing is wrong."""
    for report in verify(path), validate(path):
        assert report.ok, str(report)
    found: list[bytes] = timerstore.read(path, columns=["body"])["body"].to_pylist()
    assert verify(path).pending_count == len(found)
    assert timerstore.read(path, "fired").num_rows == 2 - len(found)
    with timerstore.open(path, read_only=True) as store:
        assert [timer.body for timer in store.pending()] == found
    return found


def test_what_it_fired_before_its_first_checkpoint_is_fired(tmp_path: Path) -> None:
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    _handed_over(path, clock)
    *messages, last = read_messages(path)
    source = next(each for each in messages if each.body == b"second")
    properties = dict(source.properties)
    fired = broker.of_broker(properties["REAL_TOPIC"], b"second", properties)
    fired.offset, fired.stored_ms = last.offset + last.size_bytes, START_MS + 20_000
    _write(path, fired.offset, naive.encode_message(fired))
    assert _listed(path) == [b"first"]
    with open_small(path, clock) as store:
        assert store.core.findings.by_broker
        assert [timer.body for timer in store.pending()] == [b"first"]
        assert store.count() == 1
        clock.advance(60 * SECOND)
        assert (sorted(drain(store)), store.count()) == ([b"first", b"second"], 0)


def test_a_slot_that_leads_behind_the_log_is_walked_back(tmp_path: Path) -> None:
    """Without power the timer log and the wheel may be further than the commit log."""
    clock, path = ManualClock(START_MS, force=True), tmp_path / "s"
    _handed_over(path, clock)
    messages = read_messages(path)
    second = next(each for each in messages if each.body == b"second")
    last = messages[-1]
    _write(path, second.offset, bytes(last.offset + last.size_bytes - second.offset))
    with open_small(path, clock) as store:
        assert store.core.findings.by_broker and not store.core.findings.rebuilt
        assert [timer.body for timer in store.pending()] == [b"first"]
        assert store.count() == 1
        clock.advance(60 * SECOND)
        assert (drain(store), store.count()) == ([b"first"], 0)
