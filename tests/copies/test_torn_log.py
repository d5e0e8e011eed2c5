"""A log that a kill has torn is copied before it is opened again: the copy ends where that cuts."""

import random
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import timerstore
from tests.small_store import small
from timerstore import Config, InvalidArgumentError, ManualClock, TimerStore
from timerstore.copies import backup_content
from timerstore.copies.destination import find_destination
from timerstore.copies.follower import Follower
from timerstore.services.opening.recover_damage import torn_batch
from timerstore.timelog.reading.pastdamage import rows_of_topic
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.timelog.writing.compose import ACKS_TOPIC

pytestmark = pytest.mark.timeout(120)
START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
LARGE, TINY = small(65_536, 400, 1_040), small(2_048, 400, 1_040)
PUTS = [{"body": b"x" * 200, "delay": SECOND}, {"body": b"level", "delay_level": 3}] * 2


class Killed:
    """A store that was killed behind a batch, of which the log is torn at one place."""

    def __init__(self, folder: Path, config: Config, *, flushes: bool) -> None:
        self.path, self.copy, self.config = folder / "s", folder / "copy", config
        self.clock = ManualClock(START_MS, force=True)
        with TimerStore(self.path, config=config, clock=self.clock) as store:
            store.put_many([b"a", b"b"], topic="t")
            first, second = store.consume("t", group="g", timeout=0)
            first.ack_and_put(b"whole", delay=1000 * SECOND)
            if flushes:
                store.flush()
            self.begin = store.core.engine.commitlog.end
            second.ack_and_put_many(PUTS)
            self.end = store.core.engine.commitlog.end
            store.abandon()

    def tear(self, stop: int) -> None:
        size = self.config.commitlog_segment_bytes
        for file in (self.path / "commitlog").iterdir():
            at = min(max(0, stop - int(file.name)), size)
            file.write_bytes(file.read_bytes()[:at] + bytes(size - at))

    def follow(self) -> Follower:
        place = find_destination(str(self.copy))
        options = {"every_s": 0.01, "config": self.config, "clock": self.clock}
        return Follower(self.path, lambda: place, **options)

    def open(self) -> TimerStore:
        return TimerStore(self.path, config=self.config, clock=self.clock)


@pytest.mark.parametrize(("config", "flushes"), [(LARGE, False), (TINY, True)])
def test_a_copy_of_a_torn_log_ends_before_what_opening_cuts(
    tmp_path: Path, config: Config, flushes: bool
) -> None:
    made = Killed(tmp_path, config, flushes=flushes)
    ends = [
        row.offset for rows in StoreReader(made.path, np.zeros(1, np.int64)).scan() for row in rows
    ]
    stops = {int(each) for each in ends if each > made.begin} | {made.begin + 1, made.end - 1}
    stops |= set(random.Random(1).sample(range(made.begin, made.end), 1))
    for stop in sorted(stops):
        shutil.copytree(made.path, tmp_path / "image")
        made.tear(stop)
        follower = made.follow()
        follower.step()
        assert follower.status.shipped_end <= made.begin, stop
        with made.open() as store:
            assert store.core.engine.commitlog.end <= made.begin + config.commitlog_segment_bytes
            for number in range(2):
                store.put(b"new%d" % number * 200, topic="u", delay=100 * SECOND)
                store.flush()
                made.clock.advance(timedelta(milliseconds=10))
                follower.step()
                assert follower.status.error is None
            pending = {timer.id for timer in store.pending()}
            assert follower.status.shipped_end == store.core.engine.commitlog.end
        follower.close()
        report = timerstore.restore(made.copy, tmp_path / "new", clock=made.clock, config=config)
        assert report.ok and report.pending_count == len(pending) == 3
        assert timerstore.verify(made.copy, config=config).ok
        for each in ("new", "copy", "s"):
            shutil.rmtree(tmp_path / each)
        (tmp_path / "image").rename(made.path)


def test_what_was_copied_and_cut_is_found_in_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a torn batch shipped, a follower that goes on is told before it ships more."""
    made = Killed(tmp_path, LARGE, flushes=True)
    made.tear(made.end - 1)
    follower = made.follow()
    with monkeypatch.context() as patch:
        patch.setattr(backup_content, "torn_batch", lambda *given: (0, -1))
        follower.step()
    follower.step()
    assert follower.status.shipped_end > made.begin
    with made.open() as store:
        follower.step()  # nothing stands there yet
        store.put(b"new" * 1_000, topic="u", delay=SECOND)
        store.flush()
        made.clock.advance(timedelta(milliseconds=10))
        with pytest.raises(InvalidArgumentError, match="differs from the log in"):
            follower.step()
    follower.close()


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoreReader, LoggedMessages]:
    """A store with batches of many lengths, and its messages."""
    path, clock = tmp_path_factory.mktemp("batches") / "s", ManualClock(START_MS, force=True)
    with TimerStore(path, config=LARGE, clock=clock) as store:
        store.put_many([b"x"] * 8, topic="t")
        for count, each in enumerate(list(store.consume("t", group="g", timeout=0)), 1):
            each.ack_and_put_many([{"body": b"y", "delay": SECOND}] * count)
            store.put(b"between", topic="x" * len(ACKS_TOPIC), delay=SECOND)
    reader = StoreReader(path, np.zeros(1, np.int64))
    (rows,) = reader.scan()
    return reader, rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_batch_is_torn_however_its_messages_are_read(
    batches: tuple[StoreReader, LoggedMessages], data: st.DataObject
) -> None:
    reader, rows = batches
    count = data.draw(st.integers(1, len(rows)))
    cuts = data.draw(st.sets(st.integers(1, len(rows)), max_size=8))
    stops = sorted({each for each in cuts if each < count} | {count})
    lacking, place = 0, -1
    for start, stop in zip([0, *stops], stops, strict=False):
        part = rows[start:stop]
        records = rows_of_topic(reader, part, ACKS_TOPIC)
        lacking, record = torn_batch(reader.commitlog, part, records, lacking)
        place = start + record if record >= 0 else place
    found = rows_of_topic(reader, rows, ACKS_TOPIC)
    torn = [
        (at + 1 + puts - count, at)
        for puts, at in enumerate(found.tolist(), 1)
        if at < count < at + 1 + puts
    ]
    assert torn == ([(lacking, place)] if lacking else [])
