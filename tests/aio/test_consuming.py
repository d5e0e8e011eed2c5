"""Consuming in an event loop: what is taken comes, the rest goes back, nobody is starved."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.aio.held_disk import HeldDisk
from tests.aio.loops import LOOPS, run, until
from tests.small_store import SMALL

pytestmark = pytest.mark.timeout(120)
GROUP = replace(SMALL, durability="group")
MS = timedelta(milliseconds=1)
loops = pytest.mark.parametrize("kind", LOOPS)


def in_flight(store: timerstore.aio.TimerStore, topic: str, group: str = "default") -> int:
    cursors = store.sync.consuming.group(topic, group).cursors.values()
    return sum(cursor.in_flight_count for cursor in cursors)


async def put_now(store: timerstore.aio.TimerStore, count: int) -> None:
    await store.put_many([b"%d" % i for i in range(count)], topic="t")
    await until(lambda: store.sync.core.engine.pending_count(b"t") == 0)


@loops
def test_an_iterator_gives_back_what_it_did_not_yield(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            await put_now(store, 10)
            async for d in store.consume("t"):
                if d.body == b"3":
                    break  # and 0, 1, 2 were not acknowledged
            assert in_flight(store, "t") == 4
            stream = store.consume("t")
            assert (await anext(stream)).body == b"4"
            await stream.aclose()
            assert [d async for d in stream] == [] and in_flight(store, "t") == 5
            left = [d.body async for d in store.consume("t", timeout=0)]
            assert left == [b"5", b"6", b"7", b"8", b"9"]
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            assert len([d async for d in store.consume("t", timeout=0)]) == 10

    run(kind, main)


@loops
@pytest.mark.parametrize("durability", ["process", "group"])
def test_who_is_cancelled_has_taken_nothing(tmp_path: Path, kind: str, durability: Any) -> None:
    config = replace(SMALL, durability=durability)
    # Under "group" the put waits for a disk, and it must not fire meanwhile.
    delay = (2 if durability == "process" else 300) * MS

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:

            async def consume() -> None:
                async for d in store.consume("b"):
                    d.ack()

            for topic, act in (("a", lambda: store.pull("a")), ("b", consume)):
                task = asyncio.create_task(act())
                await asyncio.sleep(0.005)
                await store.put(b"x", topic=topic, delay=delay)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                (d,) = await store.pull(topic)
                d.ack()
                assert in_flight(store, topic) == 0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await store.pull("u")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.pull("u"), 0.02)

    run(kind, main)


def test_a_task_group_that_fails_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            done: list[bytes] = []

            async def work() -> None:
                async for d in store.consume("t"):
                    await asyncio.sleep(0)
                    if len(done) > 5:
                        raise ValueError("one of them fails")
                    d.ack()
                    done.append(d.body)

            async def work_together() -> None:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(3):
                        tasks.create_task(work())
                    await put_now(store, 60)

            with pytest.raises(ExceptionGroup):
                await work_together()
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            left = [d.body async for d in store.consume("t", timeout=0)]
            assert sorted([*left, *done]) == sorted(b"%d" % i for i in range(60))

    run("asyncio", main)


def test_under_group_only_what_is_durable_is_handed_out(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            await store.put(b"x", topic="t", delay=200 * MS)
            pulled = asyncio.create_task(store.pull("t"))
            await asyncio.sleep(0)
            disk.hold_syncs()
            await until(lambda: disk.held_count)
            await until(lambda: plain.count() == 0)
            await asyncio.sleep(0.02)
            assert not pulled.done()
            disk.go_on()
            assert len(await pulled) == 1
        plain.close()

    run("asyncio", main)


@loops
def test_nack_is_finished_though_its_task_is_cancelled(tmp_path: Path, kind: str) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            await store.put(b"x", topic="t")
            (d,) = await store.pull("t")
            disk.hold_syncs()
            nack = asyncio.create_task(d.nack(5 * MS))
            await until(lambda: disk.held_count)
            assert in_flight(store, "t") == 1
            nack.cancel()
            await asyncio.gather(nack, return_exceptions=True)
            disk.go_on()
            (again,) = await store.pull("t")
            await until(lambda: in_flight(store, "t") == 1)  # the first is settled a moment later
            assert (again.id, again.attempt) == (d.id, 1)
            await again.nack()
            (last,) = await store.pull("t")
            last.ack()
            assert (last.attempt, in_flight(store, "t")) == (2, 0)
        plain.close()

    run(kind, main)


@asynccontextmanager
async def turns() -> AsyncIterator[list[int]]:
    """Count the loop's turns meanwhile."""
    counted = [0]

    async def count() -> None:
        while True:
            counted[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    try:
        yield counted
    finally:
        task.cancel()


@loops
def test_a_fast_reader_lets_others_have_their_turn(tmp_path: Path, kind: str) -> None:
    """Nothing in the loop's body awaits anything."""

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            await put_now(store, 6_000)
            async with turns() as counted:
                count = 0
                async for d in store.consume("t"):
                    d.ack()
                    count += 1
                    if count == 6_000:
                        break
            assert counted[0] > 2

    run(kind, main)


@loops
def test_a_wake_up_concerns_those_whose_topic_has_something(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            for i in range(80):
                await store.put(b"warm", topic=f"t{i}")
            await until(lambda: store.sync.core.engine.pending_count(None) == 0)
            tasks = []
            for i in range(80):  # more than look up at once
                (await store.pull(f"t{i}")).ack()
                tasks.append(asyncio.create_task(store.pull(f"t{i}")))
            await until(lambda: len(store.side.arrivals.waiting) == 80)
            await store.put(b"x", topic="t79")
            assert [d.body for d in await tasks[79]] == [b"x"]
            assert not any(task.done() for task in tasks[:79])
            await store.put_many([b"y"] * 2, topic="new")  # a queue comes into being
            assert [d.body for d in await store.pull("new")] == [b"y"] * 2
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not store.side.arrivals.waiting

    run(kind, main)


def test_a_group_that_a_task_waits_for_is_not_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            waiting = asyncio.create_task(store.pull("t", group="g"))
            await until(lambda: store.side.arrivals.waiting)
            with pytest.raises(timerstore.InvalidArgumentError, match="reads the topic 't'"):
                await store.forget_group("g")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await store.forget_group("g")

    run("asyncio", main)


def test_what_is_given_back_or_resumed_is_found_by_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            await put_now(store, 2)
            stream = store.consume("t")
            await anext(stream)
            waiting = asyncio.create_task(store.pull("t"))
            await asyncio.sleep(0.01)
            await stream.aclose()
            assert [d.body for d in await waiting] == [b"1"]
            await store.pause("consuming")
            waiting = asyncio.create_task(store.pull("t"))
            await put_now(store, 1)
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await store.resume("consuming")
            assert len(await waiting) == 1

    run("asyncio", main)


def test_a_manual_clock(tmp_path: Path) -> None:
    clock = timerstore.ManualClock()

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=GROUP, clock=clock) as store:
            await store.put(b"later", topic="t", delay=timedelta(minutes=2))
            assert len(await store.pull("t", timeout=0)) == 0
            waiting = asyncio.create_task(store.pull("t"))
            await asyncio.sleep(0.01)
            clock.advance(timedelta(minutes=3))
            (d,) = await waiting
            assert (d.body, d.fired_ms - d.due_ms) == (b"later", 0)
            d.ack()

    run("asyncio", main)
