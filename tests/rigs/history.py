"""Random histories of one store: acts by their weights, an oracle, crashes; each from a seed.

The services go in single steps; the process dies between any two messages of an append, and power
goes in the middle of a flush too. The oracle is the ledger of the commit log, and what was
acknowledged. Other histories are subclasses with other acts, another store, or another oracle.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.models.archive import KeptPowerDisk
from tests.models.ledger import read_ledger, read_messages
from tests.services.alone import step
from tests.wheel_checks import check_cancelled
from timerstore import Config, ManualClock, TimerStore, TooLateError, Tuning
from timerstore.services.running.runner import provide
from timerstore.services.world import needs
from timerstore.services.world.state import DEQUEUE_PUT, ENQUEUE_GET, waiting_places
from timerstore.testing.disk import PowerCutError
from timerstore.testing.ledger import Ledger, Root, check_store
from timerstore.timelog.bytes import format as fmt

SLOT_MS = 100
UNIT_MS = 25  # the model has 4 ms in a slot
START_MS = 1_800_000_000_000
LEVELS = "1s 2s 5s"

Act = Callable[[], object]


class Acts:
    """What happens to a store on a manual clock, drawn from a seed."""

    store: TimerStore
    clock: ManualClock
    config: Config

    def __init__(self, folder: Path, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.folder, self.path, self.lives = folder, folder / "0", 0
        self.now_ms = START_MS
        self.synced: dict[Path, bytes] = {}

    def acts(self) -> list[tuple[int, Act]]:
        """Each act with its weight."""
        raise NotImplementedError

    def open(self) -> None:
        """Open the store on a disk that can lose its power."""
        self.clock = ManualClock(self.now_ms, force=True)
        self.disk = KeptPowerDisk(self.path, self.synced, random.Random(self.lives))
        self.store = TimerStore(self.path, config=self.config, clock=self.clock, disk=self.disk)

    def cut_power(self) -> None:
        """End the process and the machine; the store's folder is what is left."""
        self.disk.stop_after = -1
        self.lives += 1
        target = self.folder / str(self.lives)
        self.synced = self.disk.cut(target, self.rnd)
        self.store.abandon()
        shutil.rmtree(self.path)
        self.path = target

    def is_cut_in(self, call: Act, events_max: int) -> bool:
        """Whether the disk stopped within a call, at one of its next events."""
        self.disk.stop_after = self.rnd.randrange(1, events_max)
        try:
            call()
        except PowerCutError:
            return True
        finally:
            self.disk.stop_after = -1
        return False

    def do(self, act: Act) -> None:
        """Let one happen; whoever has crashes that are raised deals with them here."""
        act()

    def happen(self, count: int) -> None:
        """Draw so many acts and let them happen."""
        weights, acts = zip(*self.acts(), strict=True)
        for act in self.rnd.choices(acts, weights, k=count):
            self.do(act)


class History(Acts):
    """One random history of one small store."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.group = self.rnd.random() < 0.5
        self.config = Config(
            durability="group" if self.group else "process",
            retention_ms=1,
            delay_levels=LEVELS,
            tuning=Tuning(
                precision_ms=SLOT_MS,
                roll_window_slots=6,
                wheel_slot_count=64 * 2,
                commitlog_segment_bytes=self.rnd.choice((1 << 12, 1 << 12, 1 << 13, 1 << 15)),
                consumequeue_segment_bytes=self.rnd.choice((60, 400)),
                timerlog_segment_bytes=self.rnd.choice((104, 520, 5248)),
                near_count_max=1 << 14,
                level_batch_count=self.rnd.choice((1, 3, 1024)),
            ),
        )
        # What was acknowledged, with the log's end at that moment.
        self.put: dict[str, int] = {}
        self.cancelled: dict[str, int] = {}
        self.replaced: dict[str, tuple[str, int]] = {}
        self.before_step = 0
        self.open()

    # --- opening

    def open(self) -> None:
        super().open()
        self.store.core.upkeep.retention._wanted_ahead = lambda: 3  # type: ignore[method-assign]
        self.play = self.store.core.runner.play
        self.store.core.runner.play = lambda start_ms, stop_ms: None  # type: ignore[method-assign]
        self.settle()

    def tick(self, units: int) -> None:
        """Move the clock; what was taken by the old one is appended before."""
        while units < 0 and step(self.store.core.engine.world, DEQUEUE_PUT, self.now_ms):
            pass
        self.now_ms += units * UNIT_MS
        self.clock._now_ms = self.now_ms

    def ledger(self) -> Ledger:
        return read_ledger(self.path, Ledger(levels_ms=self.config.delay_levels_ms()))

    @property
    def end(self) -> int:
        return int(self.store.core.engine.commitlog.end)

    # --- the public face

    def someone_puts(self) -> None:
        rnd = self.rnd
        units = rnd.choice((rnd.randrange(-40, 12), rnd.randrange(30), rnd.randrange(260)))
        due_ms = self.now_ms + units * UNIT_MS + rnd.randrange(UNIT_MS)
        self.before_step = self.end
        body = b"x" * rnd.randrange(1, rnd.choice((60, 60, 900)))
        id = self.store.put(body, topic=rnd.choice("ab"), at_ms=due_ms)
        self.put[id] = self.end

    def someone_puts_at_a_level(self) -> None:
        rnd = self.rnd
        self.before_step = self.end
        body, topic, level = b"x" * rnd.randrange(1, 60), rnd.choice("ab"), rnd.randrange(1, 4)
        id = self.store.put(body, topic=topic, delay_level=level)
        self.put[id] = self.end

    def someone_cancels(self) -> None:
        rnd = self.rnd
        if not self.put:
            return
        id = rnd.choice(list(self.put))
        self.before_step = self.end
        if rnd.random() < 0.6 or int(id[12:24], 16) & fmt.LEVEL_MARK:
            if self.store.cancel(id):
                self.cancelled.setdefault(id, self.end)
            elif id not in self.cancelled and id not in self.replaced:
                assert self.was_taken(id), f"{id}: too late, though it is pending"
            return
        try:
            new = self.store.reschedule(id, at_ms=self.now_ms + rnd.randrange(200) * UNIT_MS)
        except TooLateError:
            if id not in self.cancelled and id not in self.replaced:
                assert self.was_taken(id), f"{id}: too late, though it is pending"
        else:
            self.put[new] = self.end
            self.replaced[id] = new, self.end

    def was_taken(self, id: str) -> bool:
        """Fired, or on its way."""
        ledger = self.ledger()
        root = next(root for root in ledger.roots.values() if root.key == id)
        if root.fired_ms or root.deleted:
            return True
        ring = self.store.core.engine.world.dequeue_ring
        taken = ring.message[waiting_places(ring.ends)].tolist()
        return any(ledger.root_of[offset] is root for offset in taken)

    def someone_consumes(self) -> None:
        """So that segments go, and are used again."""
        self.before_step = self.end
        for topic in "ab":
            self.store.pull(topic, group="all", timeout=0).ack()

    # --- the services

    def one_step(self) -> None:
        service = self.rnd.randrange(ENQUEUE_GET, DEQUEUE_PUT + 1)
        self.before_step = self.end
        step(self.store.core.engine.world, service, self.now_ms)
        need = self.store.core.engine.need(service)
        if need != needs.NOTHING:
            provide(self.store.core.engine, service)

    def flush(self) -> None:
        """A checkpoint, or a power cut in the middle of it."""
        if self.rnd.random() < 0.6:
            self.store.flush()
            return
        if self.is_cut_in(self.store.flush, 14):
            self.power_cut()

    def settle(self) -> None:
        """Let the services run until nothing is left to do, then compare."""
        self.play(self.now_ms, self.now_ms)
        ledger = self.ledger()
        ledger.check()
        check_store(self.store, ledger)
        read_slot = self.store.core.engine.read_slot
        assert read_slot >= self.now_ms // SLOT_MS, "the read cursor stays behind"
        late, blocked = [], set()
        for root in ledger.roots.values():
            if root.level and root.due_ms > self.now_ms and not root.fired_ms:
                blocked.add(root.level)  # the clock went back: those behind it wait for it
            elif root.pending and root.due_ms <= self.now_ms and root.level not in blocked:
                late.append(root)
        late = [root for root in late if not self.may_wait(root)]
        assert not late, f"due timers were not fired: {late}"

    def may_wait(self, root: Root) -> bool:
        """Whether a timer that is due may wait for the next opening; in damaged stores some may."""
        return False

    def wait_long(self) -> None:
        """Mostly until nothing waits; then the read cursor is far behind the clock."""
        self.tick(self.rnd.randrange(300, 600))
        self.settle()
        self.tick(self.rnd.randrange(4 * self.config.wheel_slot_count, 2000))

    # --- ends

    def close(self) -> None:
        self.store.close()
        self.open()

    def kill(self) -> None:
        """A crash of the process: all bytes are there, but for what it was just appending."""
        cut, end = self.before_step, self.end
        durable = int(self.store.core.flusher.durable_end)
        self.store.abandon()
        self.ledger()  # it reaches up to zeros, as a broker wants it
        fresh = [m.offset for m in read_messages(self.path) if m.offset >= max(cut, durable)]
        if fresh and self.rnd.random() < 0.5:
            self.cut_log(self.rnd.choice(fresh), end)
        self.stop()
        self.open()
        self.forget(durable, power=False)

    def cut_log(self, offset: int, end: int) -> None:
        """Take the log back from its end to before the message at `offset`: it was never written.

        What lies behind the end, of an earlier use of the segment, is left.
        """
        length = self.config.commitlog_segment_bytes
        for file in (self.path / "commitlog").iterdir():
            start = int(file.name)
            first, last = max(0, offset - start), min(length, end - start)
            if first < last:
                data = file.read_bytes()
                file.write_bytes(data[:first] + bytes(last - first) + data[last:])

    def power_cut(self) -> None:
        durable = int(self.store.core.flusher.durable_end)
        self.cut_power()
        self.stop()
        self.open()
        self.forget(durable, power=True)

    def stop(self) -> None:
        """How long it lasts, and where the clock is then."""
        rnd = self.rnd
        self.now_ms += rnd.choice((0, rnd.randrange(40), rnd.randrange(1500))) * UNIT_MS
        self.now_ms += rnd.choice((0, 0, rnd.randrange(-200, 1))) * UNIT_MS

    def forget(self, durable: int, *, power: bool) -> None:
        """Leave out what a crash may undo: under "group" nothing that was acknowledged."""
        roots = {root.key: root for root in self.ledger().roots.values()}
        limit = min(self.before_step, durable) if not power else durable
        if self.group:
            limit = 1 << 62
        for known in (self.put, self.cancelled):
            for id, end in list(known.items()):
                gone = id not in roots or (known is self.cancelled and not roots[id].deleted)
                if gone:
                    assert end > limit, f"{id} was durable, and is lost"
                    del known[id]
        for id, (new, end) in list(self.replaced.items()):
            if new not in roots:
                assert end > limit, f"{id} was durable, and is lost"
                del self.replaced[id]

    # --- a whole history

    def acts(self) -> list[tuple[int, Act]]:
        rnd = self.rnd
        return [
            (22, self.someone_puts),
            (7, self.someone_puts_at_a_level),
            (8, self.someone_cancels),
            (9, self.someone_consumes),
            (12, lambda: self.tick(rnd.randrange(1, 9))),
            (40, self.one_step),
            (5, self.flush),
            (3, lambda: self.tick(rnd.randrange(-240, 241))),
            (3, self.settle),
            (2, self.kill),
            (3, self.power_cut),
            (1, self.close),
            (2, self.wait_long),
        ]

    def run(self) -> None:
        self.happen(self.rnd.randrange(60, 180))
        self.finish()

    def finish(self) -> None:
        ledger = self.ledger()
        last = max([root.due_ms for root in ledger.roots.values()] + [self.now_ms])
        read_ms = self.store.core.engine.read_slot * SLOT_MS
        stop_ms = max(last, read_ms) + 3 * SLOT_MS
        self.play(self.now_ms, stop_ms)
        self.now_ms = self.clock._now_ms = stop_ms
        self.settle()
        ledger = self.ledger()
        roots = {root.key: root for root in ledger.roots.values()}
        assert self.put.keys() <= roots.keys()
        for id, root in roots.items():
            gone = id in self.cancelled or id in self.replaced
            assert not root.pending, f"{root} is lost"
            if gone:
                assert root.deleted, f"{root} was cancelled but fired"
        for root in roots.values():
            if root.replaces is not None:
                assert roots[root.replaces].deleted, "both times of a reschedule hold"
        assert self.store.count() == 0
        check_cancelled(self.store.core.engine.cancelled)
        assert self.store.core.engine.cancelled.set.count == 0
        self.store.close()
