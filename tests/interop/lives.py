"""Random lives of a store that is handed to a RocketMQ broker, then opened here again.

Each side puts, cancels and fires for a while. What is known of each timer is kept beside it: in the
end each has come once, none that was cancelled, none early.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from tests import naive
from tests.interop.brokers import Brokers
from tests.rigs.program import python
from tests.rigs.warm import Warm
from timerstore import Config, ManualClock, TimerStore, Tuning, verify
from timerstore.validation import validate

TOPICS = ("orders", "mails")
GROUP = "readers"
RETRY = f"%RETRY%{GROUP}"
LEVELS = "1s 2s 3s"
SURE_MS = 20_000
"""What is due within so long a broker may fire at any moment: nobody deletes it there."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def settings(config: Config) -> dict[str, object]:
    """Return a broker's settings for a store that no handover has written any for."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "timerWheelEnable": "true",
        "recallMessageEnable": "true",
        "mappedFileSizeCommitLog": config.commitlog_segment_bytes,
        "mappedFileSizeConsumeQueue": config.consumequeue_segment_bytes,
        "mappedFileSizeTimerLog": config.timerlog_segment_bytes,
        "timerPrecisionMs": config.precision_ms,
        "timerRollWindowSlot": config.roll_window_slots,
        "timerMaxDelaySec": 31_536_000,
        "messageDelayLevel": config.delay_levels,
        "cleanFileForciblyEnable": "false",
    }


def log_of(path: Path) -> naive.LogScan:
    """Read a commit log that need not begin at 0."""
    files = {int(each.name): each.read_bytes() for each in (path / "commitlog").glob("0*")}
    return naive.scan_commit_log(files, min(files))


class Life:
    """One store, and what is known of its timers."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.rnd = path, random.Random(seed)
        rnd = self.rnd
        self.config = Config(
            durability="process",
            delay_levels=LEVELS,
            retention_ms=1,
            tuning=Tuning(
                precision_ms=rnd.choice((100, 200, 1_000)),
                roll_window_slots=rnd.choice((20, 60, 600)),
                commitlog_segment_bytes=1 << rnd.choice((15, 17)),
                consumequeue_segment_bytes=rnd.choice((400, 2_000)),
                timerlog_segment_bytes=rnd.choice((520, 5_248)),
                cleaning_factor=1,
                cleaning_slack_bytes=0,
            ),
        )
        self.due_ms: dict[str, int] = {}  # of all that were ever put, by id
        self.topic: dict[str, str] = {}
        self.pending: set[str] = set()
        self.waiting: set[str] = set()  # in a delay level
        self.sent_back: set[str] = set()
        self.cancelled: set[str] = set()
        self.came: Counter[str] = Counter()
        self.time_ms = 0  # when it was open last

    def _know(self, id: str, topic: str, due_ms: int, pending: set[str]) -> None:
        self.due_ms[id], self.topic[id] = due_ms, topic
        pending.add(id)

    def _delay_ms(self) -> int:
        """Return how far ahead a timer is put: it hops never, once, or many times."""
        rnd, window_ms = self.rnd, self.config.roll_window_slots * self.config.precision_ms
        slots = min(50 * self.config.roll_window_slots, 20_000)
        near_ms = rnd.randrange(1, 15_000)
        far_ms = rnd.randrange(1, slots * self.config.precision_ms)
        once_ms = window_ms + rnd.randrange(-1_000, window_ms)
        whole_ms = far_ms // 1_000 * 1_000
        return rnd.choice((near_ms, near_ms, once_ms, far_ms, whole_ms))

    def _some(self, after_ms: int) -> list[str]:
        """Return some ids of what is due later."""
        later = sorted(id for id in self.pending if self.due_ms[id] > after_ms)
        return self.rnd.sample(later, min(len(later), self.rnd.randrange(1, 4)))

    # --- with us

    def open(self, from_ms: int) -> TimerStore:
        clock = ManualClock(max(from_ms, self.time_ms), force=True)
        store = TimerStore(self.path, config=self.config, clock=clock)
        store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
        self._check(store)
        return store

    def live(self, from_ms: int, to_ms: int, acts: int) -> None:
        """Live with us from one moment to another, by a clock that is moved; then end."""
        rnd = self.rnd
        store = self.open(from_ms)
        for _ in range(acts):
            what = (self._put, self._cancel, self._move, self._consume, self._level, self._clean)
            rnd.choices(what, (10, 3, 2, 3, 1, 2))[0](store)
            if rnd.random() < 0.4:
                _advance(store, min(rnd.randrange(1, (to_ms - from_ms) // 5), to_ms - _time(store)))
            if rnd.random() < 0.05:
                self._consume(store)
                store.abandon()
                store = self.open(_time(store))
        _advance(store, to_ms - _time(store))
        self.time_ms = _time(store)
        self._consume(store)
        self._check(store)
        if rnd.random() < 0.5:
            store.close()
        else:
            for _ in range(3):
                self._put(store)
            store.abandon()

    def _put(self, store: TimerStore) -> None:
        rnd, topic = self.rnd, self.rnd.choice(TOPICS)
        from_ms = rnd.choice((_time(store), now_ms()))
        count = rnd.choice((1, 1, 1, 20))
        self._put_at(store, topic, [from_ms + self._delay_ms() + i for i in range(count)])

    def _put_at(self, store: TimerStore, topic: str, times: list[int]) -> None:
        bodies = [b"x" * self.rnd.randrange(1, 90)] * len(times)
        for id, due_ms in zip(store.put_many(bodies, topic=topic, at_ms=times), times, strict=True):
            self._know(id, topic, due_ms, self.pending)

    def _cancel(self, store: TimerStore) -> None:
        for id in self._some(_time(store)):
            assert store.cancel(id), f"{id} is pending"
            self._cancelled(id)

    def _cancelled(self, id: str) -> None:
        self.pending.remove(id)
        self.cancelled.add(id)

    def _move(self, store: TimerStore) -> None:
        for id in self._some(_time(store)):
            due_ms = self.due_ms[id] + self.rnd.randrange(5_000)
            new = store.reschedule(id, at_ms=due_ms)
            self._cancelled(id)
            self._know(new, self.topic[id], due_ms, self.pending)

    def _level(self, store: TimerStore) -> None:
        level = self.rnd.randrange(1, 4)
        id = store.put(b"level", topic=TOPICS[0], delay_level=level)
        self._know(id, TOPICS[0], _time(store) + 1_000 * level, self.waiting)

    def _clean(self, store: TimerStore) -> None:
        """Clean again and again while more comes and goes than a segment holds."""
        for _ in range(4):
            self._put_at(store, TOPICS[0], [_time(store) + i for i in range(200)])
            _advance(store, 200)
            self._consume(store)
            store.clean()

    def _consume(self, store: TimerStore) -> None:
        """Take all that fired; some of it is sent back, with a delay, once."""
        for topic in TOPICS:
            while len(batch := store.pull(topic, group=GROUP, timeout=0, max_count=1_000)):
                for each in batch:
                    if each.id in self.pending and self.rnd.random() < 0.05:
                        delay_ms = self.rnd.randrange(1_000, 30_000)
                        each.nack(timedelta(milliseconds=delay_ms))
                        self.pending.remove(each.id)
                        self._know(each.id, RETRY, _time(store) + delay_ms, self.sent_back)
                    else:
                        self._has_come(each.id, _time(store))
                batch.ack()
        store.flush()

    def _has_come(self, id: str, time_ms: int) -> None:
        assert id not in self.cancelled, f"{id} was cancelled, and came"
        self.came[id] += 1
        assert self.came[id] == 1, f"{id} came twice"
        assert self.due_ms[id] <= time_ms, f"{id} is early"
        for waiting in (self.pending, self.waiting, self.sent_back):
            waiting.discard(id)

    def _check(self, store: TimerStore) -> None:
        """Compare what a store lists as pending with what is known."""
        listed = [timer for timer in store.pending() if timer.topic != RETRY]
        ids = {timer.id for timer in listed}
        assert len(ids) == len(listed), "a timer is listed twice"
        assert ids <= self.pending | self.waiting, "what is listed has come, or was cancelled"
        later = {id for id in self.pending if self.due_ms[id] > _time(store)}
        assert later <= ids, f"{later - ids} are not listed"
        assert store.count() == len(list(store.pending()))

    # --- with a broker

    def hand_over(self) -> None:
        """Hand the store over; it is opened for that alone."""
        store = self.open(now_ms())
        store.handover()
        self.time_ms = _time(store)
        self.is_sound()

    def hand_over_by_command(self) -> None:
        """Hand the store over from the shell, by the system's clock."""
        self.wait()
        file = self.path.with_suffix(".toml")
        file.write_text(f'[timerstore]\ndelay_levels = "{LEVELS}"\n')
        main = "from timerstore.cli import main; main()"
        python("-c", main, "handover", self.path, "--config", file, timeout_s=120, popen=Warm)
        self.is_sound()

    def wait(self) -> None:
        """Wait until the system's clock is where the store's was moved to."""
        time.sleep(max(0, self.time_ms + 1_000 - now_ms()) / 1_000)

    def is_sound(self) -> None:
        for report in verify(self.path), validate(self.path):
            assert report.ok, str(report)

    def act_with(self, brokers: Brokers, acts: int) -> None:
        """Have a broker that is started put and delete."""
        rnd = self.rnd
        for _ in range(acts):
            ids = self._some(now_ms() + SURE_MS)
            if rnd.random() < 0.75 or not ids:
                key, topic = f"{rnd.getrandbits(128):032X}", rnd.choice(TOPICS)
                due_ms = now_ms() + self._delay_ms()
                brokers.ask("timer", self.path, topic, key, due_ms, "x" * rnd.randrange(1, 90))
                self._know(key, topic, due_ms, self.pending)
            else:
                for id in ids:
                    due_ms = self.due_ms[id] + 1
                    brokers.ask("delete", self.path, self.topic[id], id, due_ms)
                    self._cancelled(id)

    def fired_until(self, time_ms: int) -> None:
        """Wait until a broker has fired what is due before a moment, each once, no other."""
        waiting = self.pending | self.waiting | self.sent_back
        due = {id for id in waiting if self.due_ms[id] < time_ms}
        stop = time.monotonic() + 60
        while True:
            messages = log_of(self.path).messages
            fired = [m for m in messages if m.topic in (*TOPICS, RETRY)]
            ids = {message.properties["UNIQ_KEY"] for message in fired}
            if due <= ids:
                break
            assert time.monotonic() < stop, f"{due - ids} are not fired"
            time.sleep(0.2)

    def end(self) -> None:
        """Let everything fall due with us."""
        store = self.open(now_ms())
        for _ in range(3):
            waiting = self.pending | self.waiting | self.sent_back
            last_ms = max([self.due_ms[id] for id in waiting], default=0)
            _advance(store, max(last_ms - _time(store), 0) + 2_000)
            self._consume(store)
        assert store.count() == 0 and not self.pending | self.waiting | self.sent_back
        store.close()
        self.is_sound()


def _time(store: TimerStore) -> int:
    return store.core.clock.now_ms


def _advance(store: TimerStore, by_ms: int) -> None:
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    if by_ms > 0:
        clock.advance(timedelta(milliseconds=by_ms))
