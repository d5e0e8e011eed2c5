"""What expires while somebody has it: in an iterator, in a consumer's memory, on a full disk."""

import asyncio
import time
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import timerstore
import timerstore.aio
from tests.calls.consuming.test_expires import SECOND, START_MS, group_of, now_ms
from tests.rigs.waiting import wait_until
from tests.small_store import SMALL
from timerstore import Consumer, InvalidArgumentError, ManualClock, StoreFullError, TimerStore
from timerstore.aio import loopstore
from timerstore.calls.consuming import consuming, groupreader, sendback
from timerstore.calls.consuming.turns import Rate


def fill(put: Callable[..., Any], last_ms: int) -> None:
    """One that takes long, one that expires meanwhile, one that comes, one that had expired."""
    put(b"first", topic="t", expires=60)
    put(b"late", topic="t", expires_ms=last_ms)
    put(b"next", topic="t", expires=60)
    put(b"gone", topic="t", at_ms=last_ms - 5_000, expires_ms=last_ms - 4_000)


@pytest.mark.parametrize("error", [StoreFullError("full"), OSError(28, "full")])
@pytest.mark.parametrize("ordered", [False, True])
def test_what_cannot_be_a_dead_letter_now_is_one_later(
    store: TimerStore, clock: ManualClock, monkeypatch: Any, error: Exception, ordered: bool
) -> None:
    seen, tries, append_all = list[bytes](), list[int](), sendback.append_all

    def fail(*given: Any) -> None:
        tries.append(clock.now_ms)
        if clock.now_ms < START_MS + 13_000:
            raise error
        append_all(*given)

    monkeypatch.setattr(sendback, "append_all", fail)
    for i in range(3):
        store.put(b"%d" % i, topic="t", expires=1)
    store.put(b"a", topic="t")
    clock.advance(2 * SECOND)
    consumer = Consumer(store, "g", ordered=ordered, expired="dead_letter")
    consumer.subscribe("t", lambda d: seen.append(d.body))
    with consumer:
        clock.advance(1)
        store.put(b"b", topic="t")
        clock.advance(4)
        assert seen == [b"a", b"b"] and not store.dead_letters("g")
        clock.advance(20)
        assert sorted(each.body for each in store.dead_letters("g")) == [b"0", b"1", b"2"]
    assert len(tries) == 6 and (group_of(store).expired_count, group_of(store).lag_count) == (3, 0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("rate", [None, Rate("1000/s", 10**6, 1_000, "")])
def test_no_pull_waits_until_letters_are_durable(
    real: TimerStore, rate: Rate | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But no file knows of them before."""
    real.core.upkeep.stop()  # it writes offsets at any moment
    fill_with_expired(real, 300)
    group, flusher, known = real.consuming.group("t", "g"), real.core.flusher, list[int]()
    group.make_visible()

    def noted(end: int) -> None:
        assert end >= letters_end
        known.append(real.core.offsets.get("t", "g", 0))
        wait_durable(end)

    wait_durable, letters_end = flusher.wait_durable, 1 << 62
    monkeypatch.setattr(flusher, "wait_durable", noted)
    if rate is None:
        (came,) = real.pull("t", group="g", max_count=1, timeout=10)
    else:
        while (run := group.pull_long(1, None, rate)) is None:
            pass
        (came,) = run
    assert came.body == b"comes"
    assert len(real.dead_letters("g")) == 300 and group_of(real).expired_count == 300
    came.ack()
    assert group_of(real).lag_count == 0 and not known
    letters_end = real.core.engine.commitlog.end
    real.consuming.write_offsets()
    assert known == [0] and real.core.offsets.get("t", "g", 0) == 301


def test_a_pull_that_meets_only_what_expired_keeps_its_time(
    real: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_EXPIRED_S", 0)
    fill_with_expired(real, 5)
    pulled = [real.pull("t", group="g", max_count=1, timeout=0).bodies for _ in range(6)]
    assert [len(each) for each in pulled] == [0, 0, 0, 0, 0, 1]
    assert len(real.dead_letters("g")) == 5


@pytest.mark.parametrize("error", [OSError(5, "no disk"), KeyboardInterrupt()])
def test_of_letters_that_are_not_durable_no_file_knows(
    store: TimerStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Nor are there two of a message once it goes on."""
    fill_with_expired(store, 5, clock)
    (came,) = store.pull("t", group="g", max_count=5, timeout=0)
    with monkeypatch.context() as patch:
        patch.setattr(store.core.flusher, "wait_durable", Mock(side_effect=error))
        with pytest.raises(type(error)):
            store.consuming.write_offsets()
    assert store.core.offsets.get("t", "g", 0) == 0
    came.ack()
    store.consuming.write_offsets()
    assert store.core.offsets.get("t", "g", 0) == 6
    assert len(store.dead_letters("g")) == 5 and group_of(store).expired_count == 5


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["consume", "pull", "consumer"])
def test_a_loop_has_its_turn_while_many_have_expired(
    real: TimerStore, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message takes longer than a turn, and is pulled alone."""
    monkeypatch.setattr(loopstore, "CONSUME_COUNT", 1)
    fill_with_expired(real, 20)
    send, ticks, seen = groupreader.send_to_dead, count(), list[int]()

    def slow(*given: Any, **options: Any) -> None:
        time.sleep(0.002)
        seen.append(next(ticks))
        send(*given, **options)

    async def tick() -> None:
        while next(ticks) >= 0:
            await asyncio.sleep(0)

    async def take() -> None:
        async with timerstore.aio.attach(real) as attached:
            ticking, came = asyncio.create_task(tick()), list[bytes]()
            if way == "consume":
                async for delivery in attached.consume("t", group="g", timeout=1):
                    came.append(delivery.body)
                    delivery.ack()
            elif way == "pull":
                came += (
                    await attached.pull("t", group="g", max_count=1, timeout=1)
                ).bodies.to_pylist()
            else:
                consumer = timerstore.aio.Consumer(
                    attached, "g", pull_count=1, expired="dead_letter"
                )

                async def note(delivery: timerstore.Delivery) -> None:
                    came.append(delivery.body)

                consumer.subscribe("t", note)
                async with consumer:
                    while not came:
                        await asyncio.sleep(0.01)
        ticking.cancel()
        assert came == [b"comes"]

    monkeypatch.setattr(groupreader, "send_to_dead", slow)
    asyncio.run(take())
    assert len(real.dead_letters("g")) == 20
    assert len(seen) == 20 and sum(b - a > 1 for a, b in pairwise(seen)) > 10


def fill_with_expired(store: TimerStore, count: int, clock: ManualClock | None = None) -> None:
    """Put timers that expire, and one that does not behind them; let them all fire."""
    store.consuming.group("t", "g").buries_expired = True
    at_ms = (now_ms() if clock is None else clock.now_ms) + 50
    store.put_many([b"gone"] * count, topic="t", at_ms=at_ms, expires_ms=at_ms)
    store.put(b"comes", topic="t", at_ms=at_ms + 5)
    if clock is None:
        wait_until(lambda: not store.count())
    else:
        clock.advance(SECOND)


def test_what_expires_while_an_iterator_has_it(store: TimerStore, clock: ManualClock) -> None:
    fill(store.put, clock.now_ms + 4_999)
    came = list[bytes]()
    for d in store.consume("t", group="g", timeout=0):
        came.append(d.body)
        d.ack()
        clock.advance(6 * SECOND)
    assert came == [b"first", b"next"]
    assert (group_of(store).expired_count, group_of(store).lag_count) == (2, 0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["client", "aio"])
def test_what_expires_while_another_iterator_has_it(real: TimerStore, kind: str) -> None:
    last_ms, came = now_ms() + 1_000, list[bytes]()
    fill(real.put, last_ms)
    wait_until(lambda: real.stats().pending_count == 0)

    async def consume() -> None:
        async with timerstore.aio.attach(real) as store:
            async for d in store.consume("t", group="g", timeout=0.5):
                came.append(d.body)
                d.ack()
                while now_ms() <= last_ms:
                    await asyncio.sleep(0.01)

    if kind == "aio":
        asyncio.run(asyncio.wait_for(consume(), 50))
    else:
        timerstore.serve(real)
        with timerstore.connect(real.path, timeout=5) as client:
            for d in client.consume("t", group="g", timeout=0.5):
                came.append(d.body)
                d.ack()
                wait_until(lambda: now_ms() > last_ms)
    assert came == [b"first", b"next"]
    assert (group_of(real).expired_count, group_of(real).lag_count) == (2, 0)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("rule", ["drop", "dead_letter"])
@pytest.mark.parametrize("kind", ["store", "client", "batches"])
def test_what_expires_in_a_consumers_memory(real: TimerStore, kind: str, rule: Any) -> None:
    """It was pulled ahead, and its time passed while others were handled."""
    seen, last_ms = list[bytes](), now_ms() + 1_500
    fill(real.put, last_ms)
    if kind == "batches":
        for body in (b"late", b"next"):
            real.put(body, topic="t", expires_ms=last_ms if body == b"late" else last_ms + 60_000)
    wait_until(lambda: real.stats().pending_count == 0)

    def handle(d: Any) -> None:
        seen.extend(each.body for each in (d if isinstance(d, list) else [d]))
        while len(seen) < 3 and now_ms() <= last_ms + 1:
            time.sleep(0.01)

    timerstore.serve(real)
    batch_count = 2 if kind == "batches" else 1
    with timerstore.connect(real.path, timeout=5) as client:
        reads = client if kind == "client" else real
        consumer = Consumer(reads, "g", threads=1, batch_count=batch_count, expired=rule)
        consumer.subscribe("t", handle)
        with consumer:
            wait_until(lambda: group_of(real).lag_count == 0)
    late_count = {"store": 2, "client": 2, "batches": 2}[kind]
    assert seen.count(b"first") == 1 and b"gone" not in seen
    assert seen.count(b"next") == (2 if kind == "batches" else 1)
    stats = group_of(real)
    assert stats.expired_count >= 1 and stats.expired_count + seen.count(b"late") >= late_count
    letters = real.dead_letters("g")
    assert len(letters) == (stats.expired_count if rule == "dead_letter" else 0)
    assert stats.failed_count == stats.retried_count == 0
    if kind != "batches":
        assert stats.expired_count == 2 and seen == [b"first", b"next"]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("rule", ["drop", "dead_letter"])
def test_what_expires_in_a_loops_memory(tmp_path: Path, rule: Any) -> None:
    async def main() -> None:
        seen, gone = list[bytes](), list[int]()
        async with await timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            last_ms, puts = now_ms() + 1_500, list[Any]()
            fill(lambda body, **said: puts.append(store.put(body, **said)), last_ms)
            for put in puts:
                await put
            while (await store.stats()).pending_count:
                await asyncio.sleep(0.01)

            async def handle(d: Any) -> None:
                seen.append(d.body)
                while len(seen) < 2 and now_ms() <= last_ms + 1:
                    await asyncio.sleep(0.01)

            consumer = timerstore.aio.Consumer(store, "g", concurrency=1, expired=rule)
            consumer.subscribe("t", handle)
            async with consumer:
                while True:
                    (row,) = [g for g in (await store.stats()).groups if g.topic == "t"]
                    if row.lag_count == 0:
                        break
                    await asyncio.sleep(0.01)
            (row,) = [g for g in (await store.stats()).groups if g.topic == "t"]
            gone += [row.expired_count, row.dead_count, len(await store.dead_letters("g"))]
        assert seen == [b"first", b"next"]
        assert gone == ([2, 2, 2] if rule == "dead_letter" else [2, 0, 0])

    asyncio.run(asyncio.wait_for(main(), 50))


@pytest.mark.parametrize("how", [{"if_absent": True}, {"replace": True}, {"debounce": 60}])
def test_who_waited_to_put_waited_with_both_times(
    store: TimerStore, clock: ManualClock, monkeypatch: Any, how: dict[str, Any]
) -> None:
    """The delay counts from when it is put, and so does what it expires after."""
    prepare = type(store.putting).prepare

    def prepare_late(self: Any, put: Any) -> Any:
        prepared = prepare(self, put)
        clock._now_ms += 7
        return prepared

    monkeypatch.setattr(type(store.putting), "prepare", prepare_late)
    delay = {} if "debounce" in how else {"delay": 60}
    for _ in range(2):
        timer = store.get(store.put(b"x", topic="t", key="k", expires=60, **delay, **how))
        assert timer is not None and timer.due_ms == timer.expires_ms
    store.cancel_key("t", "k")
    with pytest.raises(InvalidArgumentError, match="would never be handed out"):
        store.put(b"x", topic="t", key="k", expires_ms=clock.now_ms + 60_003, **delay, **how)
    assert store.count() == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["store", "client"])
@pytest.mark.parametrize("backoff", [[0.1, 60], None])
def test_what_is_given_up_is_counted_alike(real: TimerStore, kind: str, backoff: Any) -> None:
    """By the store and by a client, which does not know how long a delay level is."""

    def fail(d: Any) -> None:
        raise OSError("no")

    timerstore.serve(real)
    with timerstore.connect(real.path, timeout=5) as client:
        reads = client if kind == "client" else real
        given = {"backoff": backoff} if backoff else {}
        consumer = Consumer(reads, "g", threads=1, expired="dead_letter", **given)
        consumer.subscribe("t", fail)
        real.put(b"a", topic="t", expires=5 if backoff else 0.5)
        with consumer:
            wait_until(lambda: bool(real.dead_letters("g")))
            wait_until(lambda: group_of(real).lag_count == 0)
    (letter,) = real.dead_letters("g")
    failed_count = 2 if backoff else 1
    assert (letter.error_type, letter.attempts) == ("expired", failed_count)
    row = group_of(real)
    assert (row.failed_count, row.dead_count, row.expired_count) == (failed_count, 1, 1)
    assert row.retried_count == failed_count - 1


def test_a_letter_that_nobody_handled(store: TimerStore, clock: ManualClock) -> None:
    store.put(b"a", topic="t", expires=1)
    clock.advance(2 * SECOND)
    consumer = Consumer(store, "g", expired="dead_letter")
    consumer.subscribe("t", lambda _: None)
    with consumer:
        clock.advance(SECOND)
    assert [each.attempts for each in store.dead_letters("g")] == [0]
