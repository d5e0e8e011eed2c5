"""Handlers that are coroutines: how many run, what ends them, what comes again."""

import asyncio
import inspect
import logging
import os
import signal
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
from tests.store_calls import methods
from timerstore import Outcome, Retry
from timerstore.aio.loopconsumer import LoopSource
from timerstore.consumer.consumer import CLOSED

pytestmark = pytest.mark.timeout(120)
QUICK = replace(SMALL, delay_levels="1s 1s 1s", durability="process")
GROUP = replace(QUICK, durability="group")
MS = timedelta(milliseconds=1)
loops = pytest.mark.parametrize("kind", LOOPS)
kinds = pytest.mark.parametrize(("kind", "config"), [("asyncio", QUICK), (LOOPS[-1], GROUP)])
"""Each loop, each durability, though not each with each."""
FOR_CLOCKS = {"next_ms", "arrived"}


def left(path: Path, topic: str = "t", group: str = "g") -> list[bytes]:
    """What comes again once the store is opened."""
    with timerstore.open(path, config=QUICK) as store:
        return sorted(d.body for d in store.consume(topic, group=group, timeout=0))


def test_it_has_the_calls_of_the_other_consumer() -> None:
    plain, mine = timerstore.Consumer, timerstore.aio.Consumer
    assert methods(mine) == methods(plain) - FOR_CLOCKS
    for name in methods(mine):
        parameters = inspect.signature(getattr(plain, name)).parameters
        own = inspect.signature(getattr(mine, name)).parameters
        assert list(own) == list(parameters), name
        is_async = inspect.iscoroutinefunction(getattr(mine, name))
        assert is_async == (name not in ("on", "subscribe"))
    options = [p for p in inspect.signature(plain).parameters.values() if p.name != "threads"]
    own_options = [
        p for p in inspect.signature(mine).parameters.values() if p.name != "concurrency"
    ]
    assert [(p.name, p.default) for p in own_options] == [(p.name, p.default) for p in options]


@kinds
def test_each_message_is_handled_once_and_so_many_at_a_time(
    tmp_path: Path, kind: str, config: Any
) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            consumer = timerstore.aio.Consumer(store, "g", concurrency=7)
            seen, running, most, go_on = list[bytes](), 0, 0, asyncio.Event()

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await go_on.wait()
                await asyncio.sleep(0)
                running -= 1
                seen.append(d.body)

            async with consumer:
                await store.put_many([b"%d" % i for i in range(200)], topic="t")
                await until(lambda: running == 7)
                go_on.set()
                await until(lambda: len(seen) == 200)
            assert most == 7 and len(set(seen)) == 200
            (row,) = await consumer.stats()
            assert row.group.handled_count == 200

    run(kind, main)
    assert left(tmp_path / "s") == []


@kinds
def test_what_fails_comes_again_then_dies(
    tmp_path: Path, kind: str, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            outcomes: list[Outcome] = []

            class Hook:
                def before(self, deliveries: list[timerstore.Delivery]) -> None:
                    assert asyncio.current_task() is not None

                def after(self, deliveries: list[timerstore.Delivery], outcome: Outcome) -> None:
                    outcomes.append(outcome)

            consumer = timerstore.aio.Consumer(store, "g", max_attempts=1, hooks=[Hook()])

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> Retry | None:
                await asyncio.sleep(0)
                if d.body == b"good":
                    return None
                raise OSError("no luck")

            async with consumer:
                await asyncio.gather(*(store.put(b, topic="t") for b in (b"good", b"bad", b"bad")))
                await until(lambda: len(outcomes) == 5)
            letters = await consumer.dead_letters()
            assert [(each.body, each.attempts) for each in letters] == [(b"bad", 2)] * 2
            assert sorted(each.ack_count for each in outcomes) == [0, 0, 0, 0, 1]
            assert await consumer.retry_dead_letters() == 2

    run(kind, main)
    assert sum("no luck" in str(r.exc_info and r.exc_info[1]) for r in caplog.records) == 4


def test_a_failure_is_done_only_once_its_retry_is_durable(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            consumer = timerstore.aio.Consumer(store, "g")

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> Retry | None:
                if d.attempt:
                    return None
                disk.hold_syncs()
                return Retry()

            async with consumer:
                await store.put(b"x", topic="t")
                await until(lambda: disk.held_count)
                group = plain.consuming.group("t", "g")
                await asyncio.sleep(0.01)
                assert group.committed()["t", 0] == 0
                disk.go_on()
                await until(lambda: group.committed()["t", 0] == 1)
        plain.close()

    run("asyncio", main)


def test_a_handler_that_takes_too_long_is_cancelled_and_sent_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer = timerstore.aio.Consumer(store, "g", timeout=50 * MS)
            attempts, cancelled = list[int](), list[int]()

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                attempts.append(d.attempt)
                if d.attempt == 0:
                    try:
                        await asyncio.sleep(30)
                    except asyncio.CancelledError:
                        cancelled.append(d.attempt)
                        raise

            async with consumer:
                await store.put(b"x", topic="t")
                await until(lambda: attempts == [0, 1])
            assert cancelled == [0] and consumer.error is None

    run("asyncio", main)
    assert left(tmp_path / "s") == []


@loops
def test_a_loop_that_ends_acknowledges_nothing_that_runs(tmp_path: Path, kind: str) -> None:
    """As by Ctrl-C: all tasks are cancelled, handlers among them; nobody closes anything."""
    kept: list[timerstore.TimerStore] = []

    async def main() -> None:
        store = await timerstore.aio.open(tmp_path / "s", config=QUICK)
        kept.append(store.sync)
        consumer, begun = timerstore.aio.Consumer(store, "g", concurrency=3), list[bytes]()

        @consumer.on("t")
        async def handle(d: timerstore.aio.Delivery) -> None:
            begun.append(d.body)
            if d.body != b"0":
                await asyncio.sleep(30)

        await consumer.start()
        await store.put_many([b"%d" % i for i in range(9)], topic="t")
        await until(lambda: len(begun) == 4)

    run(kind, main)
    # What was given back is there at once, also without a reopening.
    again = sorted(d.body for d in kept[0].consume("t", group="g", timeout=0))
    assert again == [b"%d" % i for i in range(1, 9)]
    kept[0].close()
    assert left(tmp_path / "s") == again


@loops
def test_closing_waits_for_handlers_for_so_long(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            go_on, begun = asyncio.Event(), list[bytes]()
            consumer = timerstore.aio.Consumer(store, "g", concurrency=2)

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                begun.append(d.body)
                await go_on.wait()

            await consumer.start()
            await store.put_many([b"%d" % i for i in range(5)], topic="t")
            await until(lambda: len(begun) == 2)
            assert await consumer.close(timeout=5 * MS) is False
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await consumer.close()
            go_on.set()
            assert await consumer.close() is True
            assert begun == [b"0", b"1"]

    run(kind, main)
    assert left(tmp_path / "s") == [b"2", b"3", b"4"]


@loops
def test_a_cancelled_block_lets_its_handlers_end(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            ended = list[bytes]()
            consumer = timerstore.aio.Consumer(store, "g")

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(asyncio.sleep(0.02))
                ended.append(d.body)

            async def serve() -> None:
                async with consumer:
                    await store.put(b"x", topic="t")
                    await until(lambda: consumer._handlers and consumer._handlers._calls)
                    asyncio.current_task().cancel()  # type: ignore[union-attr]
                    await asyncio.sleep(30)

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(serve())
            assert ended == [b"x"]

    run(kind, main)
    assert left(tmp_path / "s") == []


def test_handlers_that_outlive_their_store_acknowledge_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer = timerstore.aio.Consumer(store, "g")

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                await go_on.wait()
                if d.body == b"bad":
                    raise ValueError("late")

            await consumer.start()
            await store.put_many([b"good", b"bad"], topic="t")
            await until(lambda: consumer._handlers and len(consumer._handlers._calls) == 2)
        go_on.set()
        assert await consumer.close()

    run("asyncio", main)
    assert left(tmp_path / "s") == [b"bad", b"good"]


@loops
def test_a_failed_disk_stops_it_and_close_says_so(tmp_path: Path, kind: str) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            consumer = timerstore.aio.Consumer(store, "g")

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> Retry:
                disk.fails = True
                return Retry()

            await consumer.start()
            await store.put(b"x", topic="t")
            await until(lambda: consumer.error)
            assert isinstance(consumer.error, timerstore.FlushFailedError)
            with pytest.raises(timerstore.FlushFailedError):
                await consumer.close()
        with pytest.raises(timerstore.FlushFailedError):
            plain.close()

    run(kind, main)


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("signals", [1, 2])
def test_run_ends_with_a_signal(tmp_path: Path, kind: str, signals: int) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> int:
        store = await timerstore.aio.open(tmp_path / "s", config=QUICK)
        consumer = timerstore.aio.Consumer(store, "g")

        @consumer.on("t")
        async def handle(d: timerstore.aio.Delivery) -> None:
            if d.body == b"kill":
                for _ in range(signals):
                    os.kill(os.getpid(), signal.SIGTERM)
                    await asyncio.sleep(0.02)
            await asyncio.sleep(30 if signals == 2 else 0.05)

        await store.put_many([b"kill", b"other"], topic="t")
        return await consumer.run()

    assert run(kind, main) == (0 if signals == 1 else 128 + signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    assert left(tmp_path / "s") == ([] if signals == 1 else [b"kill", b"other"])


def test_a_cancellation_from_within_is_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "timerstore")

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer, attempts = timerstore.aio.Consumer(store, "g"), list[int]()

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                attempts.append(d.attempt)
                if d.attempt == 0:
                    inner = asyncio.create_task(asyncio.sleep(30))
                    await asyncio.sleep(0)
                    inner.cancel()
                    await inner

            async with consumer:
                await store.put(b"x", topic="t")
                await until(lambda: attempts == [0, 1])

    run("asyncio", main)
    assert any("awaited something that was cancelled" in str(r.exc_info) for r in caplog.records)


def test_wrong_handlers_are_told_what_to_pass(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer = timerstore.aio.Consumer(store, "g")
            for wrong in (lambda d: None, "x", None):
                with pytest.raises(timerstore.InvalidArgumentError, match="async def"):
                    consumer.subscribe("t", wrong)  # type: ignore[arg-type]
            with pytest.raises(timerstore.InvalidArgumentError, match="topic is"):
                consumer.on(print)  # type: ignore[arg-type]  # @consumer.on, without a topic
            with pytest.raises(timerstore.InvalidArgumentError, match="no handler"):
                await consumer.start()
            with pytest.raises(timerstore.InvalidArgumentError, match="wall clock"):
                await consumer.step()
            for wrong_count in (0, True, 1 << 30):
                with pytest.raises(timerstore.InvalidArgumentError, match="concurrency"):
                    timerstore.aio.Consumer(store, "g", concurrency=wrong_count)
            with pytest.raises(timerstore.InvalidArgumentError, match="store"):
                timerstore.aio.Consumer(store.sync, "g")  # type: ignore[arg-type]

    run("asyncio", main)


@pytest.mark.parametrize("batch_count", [1, 3])
def test_what_expires_in_a_step_is_seen_to_in_that_step(tmp_path: Path, batch_count: int) -> None:
    async def main() -> None:
        clock, seen = timerstore.ManualClock(), list[bytes]()
        async with timerstore.aio.open(tmp_path / "s", config=QUICK, clock=clock) as store:
            consumer = timerstore.aio.Consumer(
                store, "g", expired="dead_letter", batch_count=batch_count, pull_count=4
            )

            @consumer.on("t")
            async def handle(given: Any) -> None:
                seen.extend(d.body for d in (given if batch_count > 1 else [given]))
                clock.advance(timedelta(seconds=10))

            for i in range(6):
                more = {"expires": timedelta(seconds=5)} if i in (3, 5) else {}
                await store.put(b"%d" % i, topic="t", **more)
            while await consumer.step():
                pass
            assert seen == [b"0", b"1", b"2", b"4"]
            assert [letter.body for letter in await store.dead_letters("g")] == [b"3", b"5"]
            await consumer.close()

    run("asyncio", main)


@loops
@pytest.mark.parametrize("turns", range(3))
@pytest.mark.parametrize("begin", ["start", "__aenter__", "run"])
def test_a_start_that_is_cancelled_leaves_nothing_begun(
    tmp_path: Path, kind: str, begin: str, turns: int
) -> None:
    """Its topics are for the next consumer; it is closed, and says so."""

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:

            async def handle(d: timerstore.aio.Delivery) -> None: ...

            def consumer() -> timerstore.aio.Consumer:
                made = timerstore.aio.Consumer(store, "g", ordered=True)
                made.subscribe("t", handle)
                return made

            first = consumer()
            starting = asyncio.create_task(getattr(first, begin)())
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if turns:
                assert await first.close()
            reader = store.sync.consuming.group("t", "g")
            await until(lambda: first._workings.state == CLOSED and reader.owner is None)
            for again in (first.start, first.run):
                with pytest.raises(timerstore.InvalidArgumentError, match="starts only once"):
                    await again()
            async with consumer():
                assert reader.owner is not None

    run(kind, main)


def test_a_closed_consumer_does_not_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer = timerstore.aio.Consumer(store, "g")

            async def handle(d: timerstore.aio.Delivery) -> None: ...

            consumer.subscribe("t", handle)
            assert await consumer.close()
            with pytest.raises(timerstore.InvalidArgumentError, match="starts only once"):
                await consumer.run()
            assert await store.count() == 0  # it is open

    run("asyncio", main)


@kinds
@pytest.mark.parametrize("ordered", [True, "key"])
def test_in_order(tmp_path: Path, kind: str, config: Any, ordered: Any) -> None:
    """Of each line one after the other, also where one fails; lines beside each other."""

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            seen, running, most = dict[str, list[int]](), set[str](), 0
            failed = set[bytes]()
            consumer = timerstore.aio.Consumer(store, "g", ordered=ordered)

            @consumer.on("t")
            async def handle(d: timerstore.aio.Delivery) -> None:
                nonlocal most
                line = "" if ordered is True else d.key or ""
                assert line not in running
                running.add(line)
                most = max(most, len(running))
                await asyncio.sleep(0.0005)
                running.discard(line)
                if d.body in (b"3", b"40") and d.body not in failed:
                    failed.add(d.body)
                    raise OSError("no luck")
                seen.setdefault(line, []).append(int(d.body))

            async with consumer:
                keys = [f"{i % 5}" for i in range(60)]
                await store.put_many([b"%d" % i for i in range(60)], topic="t", keys=keys)
                await until(lambda: sum(map(len, seen.values())) == 60)
            assert all(each == sorted(each) for each in seen.values())
            assert (len(seen), most > 1) == ((1, False) if ordered is True else (5, True))

    run(kind, main)
    assert left(tmp_path / "s") == []


class Panic(BaseException):
    """No Exception, as what an extension in Rust raises."""


@loops
@pytest.mark.parametrize(
    "error",
    [Panic("a panic"), GeneratorExit(), SystemExit(3), asyncio.CancelledError()],
    ids=repr,
)
def test_what_is_no_exception_is_a_failure_like_others(
    tmp_path: Path, kind: str, error: BaseException
) -> None:
    """It counts an attempt, and becomes a dead letter; the others are handled."""
    good: list[bytes] = []

    async def handle(d: Any) -> None:
        if d.body == b"bad":
            raise error
        good.append(d.body)

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer = timerstore.aio.Consumer(store, "g", max_attempts=0)
            consumer.subscribe("t", handle)
            for body in (b"bad", b"1", b"2"):
                await store.put(body, topic="t")
            async with consumer:
                while len(good) < 2 or not await store.dead_letters("g"):
                    await asyncio.sleep(0.01)
                assert consumer.error is None
                assert (await store.health()).warnings[0].kind == "dead letters"

    run(kind, main)


@loops
@pytest.mark.parametrize("error", [Panic("of ours"), asyncio.CancelledError()], ids=repr)
def test_a_consumer_that_an_error_stopped_says_so_in_health(
    tmp_path: Path, kind: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: Any) -> None:
        raise error

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=QUICK) as store:
            consumer = timerstore.aio.Consumer(store, "g")
            consumer.subscribe("t", end)
            monkeypatch.setattr(LoopSource, "pull_durable", end)
            await consumer.start()
            while consumer.error is None:
                await asyncio.sleep(0.01)
            (warning,) = (await store.health()).warnings
            assert (warning.kind, warning.group) == ("consumer stopped", "g")
            with pytest.raises(type(error)):
                await consumer.close()
            assert not (await store.health()).warnings

    run(kind, main)
