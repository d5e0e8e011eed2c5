"""What the services say of themselves: their state, whom they wait for, how long a stage takes."""

from datetime import timedelta
from pathlib import Path

import numpy as np

from tests.services.alone import step
from tests.small_store import SMALL
from timerstore import ManualClock, Stats, TimerStore
from timerstore.errors import StoreFullError
from timerstore.jit.record import ALONE, acting_as
from timerstore.services.world import needs
from timerstore.services.world.state import ENQUEUE_GET, ENQUEUE_PUT, SERVICE_NAMES
from timerstore.services.world.world import READ_MESSAGES, STAGE_NAMES
from timerstore.testing.disk import QuietDisk
from timerstore.watching.services import WAITED_FOR

DELAY = timedelta(milliseconds=5)


def states(stats: Stats) -> dict[str, tuple[str, str | None]]:
    return {each.name: (each.state, each.waits_for) for each in stats.services}


def test_every_stage_is_measured(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        now_ms = store.core.clock.now_ms
        store.put_many([b"x"] * 50, topic="t", at_ms=now_ms + np.arange(50) * 4)
        store.put(b"x", topic="l", delay_level=1)
        for topic, count in (("t", 50), ("l", 1)):
            deliveries = store.consume(topic, timeout=30)
            for _ in range(count):
                next(deliveries).ack()
        stages = {each.name: each for each in store.stats().stages}
    assert tuple(stages) == STAGE_NAMES
    for name, each in stages.items():
        assert 0 < each.step_count <= each.entry_count, name
        assert 0 <= each.longest_ms <= each.busy_ms, name
    assert stages["enqueue-get"].entry_count >= 50 <= stages["enqueue-put"].entry_count
    assert stages[STAGE_NAMES[READ_MESSAGES]].entry_count >= 50
    assert stages["deliver-levels"].entry_count == 1
    for part, whole in (("read-units", "dequeue-get"), ("read-messages", "dequeue-put")):
        assert stages[part].busy_ms <= stages[whole].busy_ms


def test_a_manual_clock_measures_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put(b"x", delay=DELAY)
        clock.advance(DELAY)
        stats = store.stats()
    assert [each.step_count for each in stats.stages] == [0] * len(STAGE_NAMES)
    assert set(states(stats).values()) == {("idle", None)}


def test_a_service_says_whom_it_waits_for(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        engine = store.core.engine
        for service, name in enumerate(SERVICE_NAMES[:3]):
            with acting_as(ALONE):
                engine.services[service].blocked = 1
            following = SERVICE_NAMES[4] if name == "dequeue-get" else SERVICE_NAMES[service + 1]
            assert states(store.stats())[name] == ("waiting", following)
            with acting_as(ALONE):
                engine.services[service].blocked = 0
        with acting_as(ALONE):
            engine.services[ENQUEUE_GET].need = needs.COMMITLOG_READ
        wanted = "waiting", "a segment of the commit log"
        assert states(store.stats())["enqueue-get"] == wanted
        store.core.runner.waiting_for_space = StoreFullError("full")
        assert states(store.stats())["enqueue-get"] == ("waiting", "room on the disk")
        with acting_as(ALONE):
            engine.services[ENQUEUE_GET].need = needs.NOTHING
        assert states(store.stats())["enqueue-get"] == ("idle", None)
        store.core.runner.waiting_for_space = None
        store.pause("firing", duration=timedelta(hours=1))
        found = states(store.stats())
        assert found["dequeue-get"] == found["deliver-levels"]
        assert found["dequeue-get"] == ("waiting", "the end of the pause of firing")
        assert found["enqueue-put"] == ("idle", None)
        clock.advance(timedelta(hours=1))
        assert set(states(store.stats()).values()) == {("idle", None)}
        store.core.engine.failure.keep(StoreFullError("it has ended"))
        assert set(states(store.stats()).values()) == {("stopped", None)}
        store.abandon()


def test_every_need_has_words() -> None:
    kinds = {value for name, value in vars(needs).items() if name.isupper()}
    assert kinds - {needs.NOTHING} == WAITED_FOR.keys()


def test_threads_are_idle_while_nothing_is_due(tmp_path: Path) -> None:
    with TimerStore(tmp_path / "s", config=SMALL) as store:
        store.put(b"x", topic="t")
        next(store.consume("t", timeout=30)).ack()
        seen = {service: set[str]() for service in SERVICE_NAMES}
        for _ in range(10_000):
            for name, (state, _) in states(store.stats()).items():
                seen[name].add(state)
            if all("idle" in each for each in seen.values()):
                break
        assert all(
            each <= {"idle", "running", "waiting"} and "idle" in each for each in seen.values()
        )


def test_how_long_the_oldest_put_waits_for_its_unit(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        assert store.stats().unlinked_age_ms == 0
        store.put(b"first", delay=timedelta(days=1))
        clock._now_ms += 700  # nothing is played
        store.put(b"second", delay=timedelta(days=1))
        clock._now_ms += 50
        stats = store.stats()
        assert (stats.queue_end - stats.queue_index, stats.unlinked_age_ms) == (2, 750)
        for service in (ENQUEUE_GET, ENQUEUE_PUT):
            step(store.core.engine.world, service, clock.now_ms)
        assert store.stats().unlinked_age_ms == 0


def test_hops_are_counted_by_bytes(tmp_path: Path) -> None:
    clock = ManualClock()
    with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put(bytes(500), delay=timedelta(hours=2))
        before = store.stats().commitlog_end
        clock.advance(timedelta(hours=1))
        stats = store.stats()
        assert stats.rolled_bytes == stats.rolled_count * 52 > 0
        assert stats.commitlog_end == before == stats.put_bytes


def test_each_byte_of_the_log_is_counted_once(tmp_path: Path) -> None:
    clock = ManualClock()
    for _ in range(2):
        with TimerStore(tmp_path / "s", config=SMALL, clock=clock, disk=QuietDisk()) as store:
            start = store.core.opened_end
            for i in range(20):
                store.put(bytes(i + 1), topic=f"t{i % 3}", delay=timedelta(seconds=900 + i * 900))
            store.put_many([b"x"] * 5, topic="t", delay_level=2)
            assert store.stats().put_bytes == store.stats().commitlog_end - start > 25 * 100
            clock.advance(timedelta(hours=2))
            found = store.stats()
            named = found.put_bytes + found.fired_bytes
            assert named + found.cleaning.copied_bytes == found.commitlog_end - start
            assert found.fired_bytes > found.fired_count * 100 > 0
