"""What a store takes of the disk beside timers far ahead, on a clock that is moved or is not."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import machine
import numpy as np
import ours
from results import Row, short
from sizes import Ground

import timerstore
from timerstore import Config, ManualClock, TimerStore, Tuning
from timerstore.timelog.files.disk import Disk, MappedFile

TOPIC = "space"
START_MS = 1_800_000_000_000
SHORT_MS = 60_000
PER_SECOND = 3_333
DAY_MS = 86_400_000
FAR_MS = 30 * DAY_MS
FACTOR = 2.2
ALLOWED_BYTES = 300_000_000
SOON_MS = 200
FAST_PER_SECOND = 200_000
SPEED_BYTES = 650_000_000
LOOK_S = 0.05
AT_ONCE = 100
MOVED_MS = 100
_WHEEL = "timerwheel"


@dataclass
class Space:
    """What one store took."""

    allowed_bytes: float
    """What it may take besides FACTOR times the bytes pending."""
    most_bytes: float = 0
    """Disk at most."""
    most_over_bytes: float = -1e18
    """The same less FACTOR times the bytes that were pending then."""
    pending_bytes: int = 0
    pending_at_most_bytes: int = 0
    """What was pending when the disk was fullest."""
    put_bytes: int = 0
    copied_bytes: int = 0
    put_count: int = 0

    @property
    def copied_share(self) -> float:
        """Bytes that cleaning copied for each byte put."""
        return self.copied_bytes / self.put_bytes

    @property
    def is_small(self) -> bool:
        """Tell whether it never took more than it may."""
        return self.most_over_bytes <= self.allowed_bytes

    def told(self) -> tuple[str, str]:
        """Say what it took at most, and what cleaning copied."""
        pending = max(1, self.pending_at_most_bytes)
        disk = (
            f"{self.most_bytes / 1e6:,.1f} MB at most, {self.most_bytes / pending:.1f} × the "
            f"{pending / 1e6:,.1f} MB pending then"
        )
        return disk, f"{self.copied_share:.3f} ×"


class _Hasty(Disk):
    """Waits for nothing: what is synced does not change how much there is."""

    def sync(self, file: MappedFile | int, path: Path) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class _Watched:
    """A store on a manual clock, whose disk is looked at with each checkpoint."""

    def __init__(self, path: Path, config: Config, scale: int) -> None:
        self.clock = ManualClock(START_MS)
        self.store = TimerStore(path, config=config, clock=self.clock, disk=_Hasty())
        self.space = Space(ALLOWED_BYTES / scale)
        self._scale = scale

    def put(self, bodies: list[bytes], delay_ms: np.ndarray) -> list[str]:
        before = self.store.stats().commitlog_end
        ids = self.store.put_many(bodies, topic=TOPIC, delay_ms=delay_ms)
        self.space.put_bytes += self.store.stats().commitlog_end - before
        self.space.put_count += len(bodies)
        return list(ids)

    def reschedule(self, ids: list[str], delay_ms: np.ndarray) -> list[str]:
        """Give each timer a new due time, AT_ONCE in MOVED_MS; what that appends counts as put."""
        before, later = self.store.stats().commitlog_end, []
        for at in range(0, len(ids), AT_ONCE):
            due_ms = (self.clock.now_ms + delay_ms[at : at + AT_ONCE]).tolist()
            part = zip(ids[at : at + AT_ONCE], due_ms, strict=True)
            later += [self.store.reschedule(id, at_ms=each) for id, each in part]
            self.clock.advance(timedelta(milliseconds=MOVED_MS))
        self.space.put_bytes += self.store.stats().commitlog_end - before
        self.space.put_count += len(later)
        return later

    def live_on(self, by_ms: int, *, before: bool) -> None:
        """Let time pass; take what fired, make a checkpoint; look at the disk `before` as well."""
        self.clock.advance(timedelta(milliseconds=by_ms))
        while len(batch := self.store.pull(TOPIC, max_count=ours.BATCH_COUNT, timeout=0)):
            batch.ack()
        if before:
            self._look()
        copied_bytes = -1  # cleaning does a piece with each flush, and has time for all it wants
        while copied_bytes != (now := self.store.stats().cleaning.copied_bytes):
            copied_bytes = now
            self.store.flush()
            self._look()
            self.clock.advance(timedelta(milliseconds=MOVED_MS))  # copies are linked, as in life

    def _look(self) -> None:
        space, taken = self.space, _disk_bytes(self.store, self._scale)
        space.pending_bytes = self.store.stats().cleaning.pending_bytes or 0
        if taken > space.most_bytes:
            space.most_bytes, space.pending_at_most_bytes = taken, space.pending_bytes
        space.most_over_bytes = max(space.most_over_bytes, taken - FACTOR * space.pending_bytes)

    def close(self) -> Space:
        self.space.copied_bytes = self.store.stats().cleaning.copied_bytes
        self.store.close()
        return self.space


def _disk_bytes(store: TimerStore, scale: int) -> float:
    """Return the blocks of all files; the wheel, which is as large in any store, to scale."""
    wheel_bytes = os.stat(store.path / _WHEEL).st_blocks * 512
    return machine.disk_bytes(store.path) - wheel_bytes * (1 - 1 / scale)


def play_speed(path: Path, far_count: int, short_count: int) -> tuple[float, float]:
    """Put `far_count` timers due within 30 days, then others due within SOON_MS, on a real clock.

    Of the others FAST_PER_SECOND are put, while another thread consumes. Return the bytes on the
    disk at most, of looks every LOOK_S, and how many of the others fired a second.
    """
    random, most, ended = np.random.default_rng(1), 0.0, threading.Event()
    config = Config(durability="process", retention_ms=1)
    bodies = ours.make_bodies(max(far_count, ours.BATCH_COUNT))
    with timerstore.open(path, config=config) as store:
        far_ms = random.integers(2 * SHORT_MS, FAR_MS, far_count)
        store.put_many(bodies[:far_count], topic=TOPIC, delay_ms=far_ms)

        def put() -> None:
            for at in range(0, short_count, ours.BATCH_COUNT):
                part = bodies[: min(ours.BATCH_COUNT, short_count - at)]
                delay_ms = random.integers(1, SOON_MS, len(part))
                store.put_many(part, topic=TOPIC, delay_ms=delay_ms)
                time.sleep(max(0, start + at / FAST_PER_SECOND - time.perf_counter()))

        def look() -> None:
            nonlocal most
            while not ended.wait(LOOK_S):
                most = max(most, _disk_bytes(store, 1))

        start = time.perf_counter()
        threads = [threading.Thread(target=each) for each in (put, look)]
        for thread in threads:
            thread.start()
        ours.drain(store, TOPIC, short_count)
        took_s = time.perf_counter() - start
        ended.set()
        for thread in threads:
            thread.join()
    return most, short_count / took_s


def play_disk(path: Path, far_count: int, short_count: int, checkpoint_count: int) -> Space:
    """Put `far_count` timers due within 30 days, then `short_count` due within a minute.

    There is a checkpoint for each `checkpoint_count`, which take their share of the time.
    """
    step_ms = 1_000 * checkpoint_count // PER_SECOND
    random = np.random.default_rng(1)
    bodies = ours.make_bodies(checkpoint_count)
    watched = _Watched(path, Config(durability="process"), 1)
    for at in range(0, far_count, checkpoint_count):
        part = bodies[: min(checkpoint_count, far_count - at)]
        watched.put(part, random.integers(2 * SHORT_MS, FAR_MS, len(part)))
    for _ in range(0, short_count, checkpoint_count):
        watched.put(bodies, random.integers(1, SHORT_MS, checkpoint_count))
        watched.live_on(step_ms, before=True)
    return watched.close()


def play_month(path: Path, *, scale: int, per_second: float, days: int, step_s: int) -> Space:
    """Put so many timers a second for so many days, one in a hundred due within as many.

    The others are due within a minute. Segments, slack, and what the store may take besides, are
    1 / `scale` of what they usually are: with 1,000 / `scale` timers a second the share of each is
    that of a store with a thousand. There is a checkpoint each `step_s` of that time.
    """
    random = np.random.default_rng(1)
    plain = Config()
    config = Config(
        durability="process",
        tuning=Tuning(
            commitlog_segment_bytes=plain.commitlog_segment_bytes // scale,
            consumequeue_segment_bytes=plain.consumequeue_segment_bytes // 20 // scale * 20,
            timerlog_segment_bytes=plain.timerlog_segment_bytes // scale,
            cleaning_slack_bytes=plain.cleaning_slack_bytes // scale,
        ),
    )
    bodies = ours.make_bodies(round(per_second * step_s))
    watched = _Watched(path, config, scale)
    for _ in range(days * DAY_MS // 1_000 // step_s):
        delay_ms = random.integers(1, SHORT_MS, len(bodies))
        is_far = random.random(len(bodies)) < 0.01
        delay_ms[is_far] = random.integers(SHORT_MS, days * DAY_MS, int(is_far.sum()))
        watched.put(bodies, delay_ms)
        watched.live_on(step_s * 1_000, before=False)
    return watched.close()


def play_year(path: Path, count: int) -> Space:
    """Put `count` timers due within a year, as many an hour for a day; then let the year pass."""
    random = np.random.default_rng(1)
    bodies = ours.make_bodies(count // 24)
    watched = _Watched(path, Config(durability="process"), 1)
    for _ in range(24):
        watched.put(bodies, random.integers(SHORT_MS, 365 * DAY_MS, len(bodies)))
        watched.live_on(DAY_MS // 24, before=True)
    for _ in range(365):
        watched.live_on(DAY_MS, before=True)
    return watched.close()


def play_rescheduled(path: Path, count: int, times: int) -> Space:
    """Put `count` timers due within 30 days, give each `times` another due time, let all pass.

    There is a checkpoint for each hundredth of them.
    """
    random = np.random.default_rng(1)
    bodies = ours.make_bodies(count // 100)
    watched = _Watched(path, Config(durability="process"), 1)
    parts = []
    for _ in range(100):
        parts.append(watched.put(bodies, random.integers(DAY_MS, FAR_MS, len(bodies))))
        watched.live_on(1_000, before=True)
    for _ in range(times):
        for at, ids in enumerate(parts):
            delay_ms = random.integers(DAY_MS, FAR_MS, len(ids))
            parts[at] = watched.reschedule(ids, delay_ms)
            watched.live_on(1_000, before=True)
    for _ in range(31):
        watched.live_on(DAY_MS, before=True)
    return watched.close()


# --- parts


def disk(ground: Ground) -> list[Row]:
    far, short_count = ground.sizes.disk
    with ground.path() as path:
        took = play_disk(path / "store", far, short_count, 10_000)
    what = f"{short(short_count)} short timers beside {short(far)} due within 30 days"
    return _took(what, "300 MB", took, 0.05)


def month(ground: Ground) -> list[Row]:
    """Disk if some timers in each hundred are far ahead, with files small and of full size."""
    small, small_days, small_step_s = ground.sizes.month
    full, full_days, full_step_s = ground.sizes.full_month
    said = f"1/{small} of 1,000 a second", f"{full} a second, files of full size"
    rows = []
    for rate, scale, per, days, step_s in (
        (said[0], small, 1_000 / small, small_days, small_step_s),
        (said[1], 1, full, full_days, full_step_s),
    ):
        with ground.path() as path:
            took = play_month(path / "s", scale=scale, per_second=per, days=days, step_s=step_s)
        what = f"one timer in a hundred within {days} days, the rest within a minute, {days} days"
        what += f" of manual time, {rate} ({short(took.put_count)} in all)"
        rows += _took(what, "300 MB" + (f" / {scale}" if scale > 1 else ""), took, 0.7)
    return rows


def year(ground: Ground) -> list[Row]:
    """Disk while timers hop through a year."""
    with ground.path() as path:
        took = play_year(path / "store", ground.sizes.year)
    return _took(f"{short(took.put_count)} due within a year", "300 MB", took, 1)


def rescheduled(ground: Ground) -> list[Row]:
    """Disk while each timer gets another due time again and again."""
    count, times = ground.sizes.rescheduled
    with ground.path() as path:
        took = play_rescheduled(path / "store", count, times)
    what = f"{short(count)} due within 30 days, each rescheduled {times} times"
    return _took(what, "300 MB", took, 0.05)


def speed(ground: Ground) -> list[Row]:
    """Disk while many timers are put, fire and are consumed."""
    far, count = ground.sizes.speed
    with ground.path() as path:
        most_bytes, per_second = play_speed(path / "store", far, count)
    what = f"disk: {short(count)} timers due within {SOON_MS} ms, {short(FAST_PER_SECOND)} a second"
    what += f", beside {short(far)} due within 30 days"
    told = f"{most_bytes / 1e6:,.1f} MB at most, with {short(per_second)} fired a second"
    reach = f"≤ {SPEED_BYTES / 1e6:,.0f} MB at any time"
    return [Row(what, reach, told, most_bytes <= SPEED_BYTES, figures=most_bytes)]


def _took(what: str, allowed: str, took: Space, copied_max: float) -> list[Row]:
    """Return two rows: what a store took at most, what cleaning copied."""
    figures, (told, copied) = asdict(took), took.told()
    reach = f"≤ {FACTOR} × pending + {allowed}"
    copied_what = "copied by cleaning for each byte put"
    is_little = took.copied_share <= copied_max
    return [
        Row(f"disk: {what}", reach, told, took.is_small, figures=figures),
        Row(copied_what, f"≤ {copied_max}", copied, is_little, figures=figures),
    ]
