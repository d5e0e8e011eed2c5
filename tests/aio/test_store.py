"""The calls of `timerstore.aio`: their names, what they return, where they wait."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.aio
from tests.aio.held_disk import HeldDisk
from tests.aio.loops import LOOPS, run, until
from tests.rigs.together import together
from tests.small_store import SMALL
from tests.store_calls import ENDING, WITHOUT_ARGUMENTS, arguments, methods
from tests.test_fork import told_by_a_child
from timerstore.values import blocked_loop as inloop

pytestmark = pytest.mark.timeout(120)
GROUP = replace(SMALL, durability="group")
FAR_MS = 4_000_000_000_000
HOUR = timedelta(hours=1)

loops = pytest.mark.parametrize("kind", LOOPS)

KNOWN = methods(timerstore.aio.TimerStore)
NOT_HERE = {"share"}
"""A store of another process has no loop's thread that could make its calls; docs/asyncio.md."""
AWAITED_NOT = {"pending", "consume"}
"""These return an asynchronous iterator."""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_each_call_has_the_same_name_and_parameters(name: str) -> None:
    call, plain = getattr(timerstore.aio.TimerStore, name), getattr(timerstore.TimerStore, name)
    mine, others = inspect.signature(call), inspect.signature(plain)
    assert list(mine.parameters.values()) == list(others.parameters.values())
    assert inspect.iscoroutinefunction(call) == (name not in AWAITED_NOT)
    if name not in {"consume", "pull", "pending"}:
        assert mine.return_annotation == others.return_annotation


def test_nothing_is_missing() -> None:
    missing = methods(timerstore.TimerStore) - KNOWN - {"abandon"}  # which is for tests
    assert missing == set(), "give timerstore/aio/loopstore.py the same call"
    assert KNOWN <= methods(timerstore.TimerStore)
    opening, plain_open = inspect.signature(timerstore.aio.open), inspect.signature(timerstore.open)
    parameters = [p for p in plain_open.parameters.values() if p.name not in NOT_HERE]
    assert list(opening.parameters.values()) == parameters
    for kind in ("Batch", "Delivery"):
        names = methods(getattr(timerstore, kind))
        assert methods(getattr(timerstore.aio, kind)) == names
    for name in ("nack", "ack_and_put", "ack_and_put_many"):
        mine, plain = getattr(timerstore.aio.Delivery, name), getattr(timerstore.Delivery, name)
        assert inspect.signature(mine) == inspect.signature(plain)
        assert inspect.iscoroutinefunction(mine)


@pytest.mark.usefixtures("any_wheel")
@loops
def test_every_call_works(tmp_path: Path, kind: str) -> None:
    async def main() -> dict[str, Any]:
        found = {}
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:
            names = [name for name in WITHOUT_ARGUMENTS if name not in ENDING]
            for name in KNOWN.intersection([*arguments(""), *names]):
                id = await store.put(b"later", topic="t", delay=HOUR)
                each = arguments(id).get(name, {})
                result = getattr(store, name)(**each)
                if name in AWAITED_NOT:
                    found[name] = [one async for one in result]
                else:
                    found[name] = await result
            assert await store.backup(tmp_path / "b")
            await store.handover()
        with pytest.raises(timerstore.StoreClosedError):
            await store.put(b"x")
        await store.close()
        return found

    found = run(kind, main)
    assert found["cancel"] is True and list(found["cancel_many"]) == [True]
    assert found["get"].body == b"later" and len(found["put_many"]) == 3
    assert found["health"].ok and isinstance(found["pull"], timerstore.aio.Batch)


@loops
@pytest.mark.parametrize("durability", ["group", "process"])
def test_what_is_put_comes_once(tmp_path: Path, kind: str, durability: Any) -> None:
    config = replace(SMALL, durability=durability)

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            ids = await asyncio.gather(
                *(
                    store.put(b"%d" % i, topic="t", delay=timedelta(milliseconds=i))
                    for i in range(100)
                )
            )
            more = await store.put_many([b"x"] * 3_000, topic="t")
            seen = []
            async for d in store.consume("t"):
                seen.append(d.id)
                d.ack()
                if len(seen) == 3_100:
                    break
            assert sorted(seen) == sorted([*ids, *more])
            assert await store.count() == 0
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            assert [d async for d in store.consume("t", timeout=0)] == []

    run(kind, main)


@loops
def test_awaited_puts_share_an_fsync_that_no_task_waits_for_in_the_loop(
    tmp_path: Path, kind: str
) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            await store.put(b"first", topic="t", delay=HOUR)
            disk.hold_syncs()
            before = plain.core.flusher.sync_count
            puts = [asyncio.create_task(store.put(b"x", topic="t", delay=HOUR)) for _ in range(50)]
            await until(lambda: disk.held_count)
            late = asyncio.create_task(store.put_many([b"y"], topic="t", delay_ms=9_000_000))
            await asyncio.sleep(0.02)  # the loop goes on
            assert await store.count() == 52
            assert not any(each.done() for each in [*puts, late])
            disk.go_on()
            ids = await asyncio.gather(*puts)
            assert await store.cancel(ids[0]) and (await late)[0]
            assert plain.core.flusher.durable_end == plain.core.engine.commitlog.end
            assert plain.core.flusher.sync_count - before <= 4
        plain.close()

    run(kind, main)


def test_a_failed_fsync_is_raised_by_all_who_wait(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            await store.put(b"first", topic="t", delay=HOUR)
            disk.hold_syncs()
            one = asyncio.create_task(store.put(b"x", topic="t", delay=HOUR))
            many = asyncio.create_task(store.put_many([b"y"] * 3, topic="t", delay_ms=9_000_000))
            await until(lambda: disk.held_count)
            disk.fails = True
            disk.go_on()
            errors = await asyncio.gather(one, many, return_exceptions=True)
            assert [type(each) for each in errors] == [timerstore.FlushFailedError] * 2
            assert isinstance(errors[1], timerstore.FlushFailedError) and len(errors[1].ids) == 3
            with pytest.raises(timerstore.FlushFailedError):
                await store.put(b"z")
        with pytest.raises(timerstore.FlushFailedError):
            plain.close()

    run("asyncio", main)


@loops
def test_a_put_that_waits_for_room_holds_up_nobody(tmp_path: Path, kind: str) -> None:
    config = replace(SMALL, admission="wait", admission_count_max=6)

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            old = await store.put(b"x", topic="t", at_ms=FAR_MS)
            core = store.sync.core
            await until(lambda: store.sync.putting.admission.backlog() == 0)
            core.runner.stop()
            for _ in range(6):
                await store.put(b"x", topic="t", at_ms=FAR_MS)
            waiting = [
                asyncio.create_task(store.put(b"x", topic="t", at_ms=FAR_MS)),
                asyncio.create_task(store.put(b"x", topic="t", at_ms=FAR_MS, key="k")),
                asyncio.create_task(store.put_many([b"x"] * 20, topic="t", at_ms=FAR_MS)),
                asyncio.create_task(store.reschedule(old, at_ms=FAR_MS + 1)),
            ]
            cancelled = asyncio.create_task(store.put(b"never", topic="t", at_ms=FAR_MS))
            await asyncio.sleep(0.12)
            assert not any(each.done() for each in [*waiting, cancelled])
            assert await store.count() == 7
            cancelled.cancel()
            core.runner.resume()
            await asyncio.gather(*waiting)
            assert await store.count() == 7 + 1 + 1 + 20
            assert not [t async for t in store.pending() if t.body == b"never"]

    run(kind, main)


def test_room_that_never_comes_is_an_error(tmp_path: Path) -> None:
    config = replace(SMALL, admission="wait", admission_count_max=2, admission_timeout_ms=80)

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            await until(lambda: store.sync.putting.admission.backlog() == 0)
            store.sync.core.runner.stop()
            for _ in range(2):
                await store.put(b"x", topic="t", at_ms=FAR_MS)
            with pytest.raises(timerstore.StoreFullError, match="no room for 80 ms"):
                await store.put(b"x", topic="t", at_ms=FAR_MS)
            store.sync.core.runner.resume()

    run("asyncio", main)


def test_a_cancelled_put_is_put_or_not_and_the_store_goes_on(tmp_path: Path) -> None:
    disk = HeldDisk()

    async def main() -> None:
        plain = timerstore.TimerStore(tmp_path / "s", config=GROUP, disk=disk)
        async with timerstore.aio.attach(plain) as store:
            disk.hold_syncs()
            never = asyncio.create_task(store.put(b"never", topic="t", delay=HOUR))
            never.cancel()  # it did not begin
            put = asyncio.create_task(store.put(b"put", topic="t", delay=HOUR))
            await until(lambda: disk.held_count)
            put.cancel()
            results = await asyncio.gather(never, put, return_exceptions=True)
            assert [type(each) for each in results] == [asyncio.CancelledError] * 2
            disk.go_on()
            await store.put(b"next", topic="t", delay=HOUR)
            assert [t.body async for t in store.pending()] == [b"put", b"next"]
        plain.close()

    run("asyncio", main)


@loops
def test_another_loop_or_no_loop_is_told_so(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=SMALL) as store:

            async def elsewhere() -> None:
                for call in (store.put(b"x"), store.count(), store.flush(), store.pull("t")):
                    with pytest.raises(timerstore.TimerStoreError, match="another event loop"):
                        await call
                with pytest.raises(timerstore.TimerStoreError, match="another event loop"):
                    store.consume("t")

            thread = threading.Thread(target=lambda: run(kind, elsewhere))
            thread.start()
            await asyncio.to_thread(thread.join)
            assert await store.count() == 0

    run(kind, main)
    with pytest.raises(timerstore.InvalidArgumentError):
        timerstore.aio.attach("timers/")  # type: ignore[arg-type]


@loops
def test_two_loops_share_an_open_store(tmp_path: Path, kind: str) -> None:
    with timerstore.open(tmp_path / "s", config=GROUP) as plain:
        both, seen = threading.Barrier(2, timeout=30), list[str]()

        async def main() -> list[str]:
            async with timerstore.aio.attach(plain) as store:
                both.wait()
                ids = await asyncio.gather(*(store.put(b"x", topic="t") for _ in range(20)))
                async for d in store.consume("t", timeout=0.3):
                    d.ack()
                    seen.append(d.id)
                    if len(seen) == 40:
                        break
            with pytest.raises(timerstore.TimerStoreError, match="detached"):
                await store.count()
            return ids

        put = sum(together(lambda _: run(kind, main), range(2)), list[str]())
        assert len(put) == 40 and sorted(put) == sorted(seen)
        assert plain.count() == 0  # leaving it left it open


@loops
def test_a_loop_that_is_closed_leaves_the_store_to_be_closed(tmp_path: Path, kind: str) -> None:
    async def main() -> timerstore.aio.TimerStore:
        store = await timerstore.aio.open(tmp_path / "s", config=GROUP)
        await store.put(b"x", topic="t", delay=HOUR)
        asyncio.get_running_loop().create_task(store.pull("t"))
        await asyncio.sleep(0)
        return store

    store = run(kind, main)
    assert store.sync.count() == 1
    store.sync.close()
    with timerstore.open(tmp_path / "s", config=GROUP) as plain:
        assert plain.count() == 1


@loops
@pytest.mark.parametrize("is_attached", [False, True])
def test_closing_ends_who_waits(tmp_path: Path, kind: str, is_attached: bool) -> None:
    async def main() -> None:
        opened = await timerstore.aio.open(tmp_path / "s", config=SMALL)
        async with await timerstore.aio.attach(opened.sync) if is_attached else opened as store:
            pulls = [asyncio.create_task(store.pull("t")) for _ in range(3)]

            async def consume() -> int:
                return len([d async for d in store.consume("u")])

            consumed = asyncio.create_task(consume())
            await asyncio.sleep(0.01)
        assert await consumed == 0
        errors = await asyncio.gather(*pulls, return_exceptions=True)
        assert [type(each) for each in errors] == [timerstore.StoreClosedError] * 3
        await store.close()
        await opened.close()

    run(kind, main)


@loops
@pytest.mark.parametrize("turns", range(3))
def test_a_cancelled_attach_leaves_no_thread(tmp_path: Path, kind: str, turns: int) -> None:
    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=GROUP) as store:
            at_close, threads = len(store.sync.core.at_close), threading.active_count()
            for _ in range(3):
                attaching = asyncio.create_task(timerstore.aio.attach(store.sync).__aenter__())
                for _ in range(1 + turns):
                    await asyncio.sleep(0)
                attaching.cancel()
                await asyncio.gather(attaching, return_exceptions=True)
                if not attaching.cancelled():
                    await attaching.result().close()
            await until(lambda: threading.active_count() <= threads)
            assert len(store.sync.core.at_close) == at_close

    run(kind, main)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["close", "detach", "sync", "cancelled", "refused"])
def test_no_thread_is_left_behind(tmp_path: Path, end: str) -> None:
    """Though somebody keeps the store's object: its pool ends with it."""

    def threads() -> list[str]:
        names = [each.name for each in threading.enumerate()]
        return [name for name in names if name.startswith("timerstore-aio")]

    async def main() -> None:
        before = threads()
        store = await timerstore.aio.open(tmp_path / "s", config=SMALL)
        await asyncio.gather(*(store.flush() for _ in range(8)))
        assert threads() > before
        kept = await timerstore.aio.attach(store.sync)
        if end == "close":
            await asyncio.gather(store.close(), store.close())
        elif end == "detach":
            await kept.close()
            await store.close()
        elif end == "sync":
            await asyncio.to_thread(store.sync.close)
        elif end == "cancelled":
            task = asyncio.create_task(store.close())
            await asyncio.sleep(0)
            task.cancel()
        else:
            with pytest.raises(timerstore.TimerStoreError):
                await timerstore.aio.open(tmp_path / "s", config=SMALL)
            await store.close()
        await until(lambda: threads() == before)
        await store.close()
        for each in (store, kept):
            with pytest.raises(timerstore.StoreClosedError):
                await each.flush()
        assert threads() == before and store.sync.core.ended

    run("asyncio", main)


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    async def main() -> dict[str, str]:
        async with timerstore.aio.open(tmp_path / "s", config=GROUP) as store:
            id = await store.put(b"x", topic="t", delay=HOUR)
            await store.put_many([b"y"] * 3, topic="u")
            stream = store.consume("u")
            delivery, batch = await anext(stream), await store.pull("u", group="g")
            calls: dict[str, Callable[[], Any]] = {
                name: lambda name=name, each=each: getattr(store, name)(**each)
                for name, each in arguments(id).items()
                if name in KNOWN
            }
            calls |= {"anext": lambda: anext(stream), "nack": delivery.nack, "close": store.close}
            consumer = timerstore.aio.Consumer(store, "h")
            calls |= {"start": consumer.start, "run": consumer.run, "dead": consumer.dead_letters}
            told = told_by_a_child(
                {name: lambda call=call: in_a_child(call) for name, call in calls.items()}
                | {"ack": delivery.ack, "Batch.ack": batch.ack}
            )
            delivery.ack()  # the parent's goes on
            assert [d.body async for d in store.consume("u", timeout=0)] == []
            return told

    told = run("asyncio", main)
    assert told.pop("close") == "None"
    assert set(told.values()) <= {"ForkedProcessError"}, told


def in_a_child(call: Callable[[], Any]) -> Any:
    """What a call returns there, in a loop of the child's own."""
    asyncio._set_running_loop(None)

    async def main() -> Any:
        result = call()
        return await result if inspect.isawaitable(result) else result

    return asyncio.run(main())


@loops
def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        opening = asyncio.create_task(timerstore.aio.open(tmp_path / "s").__aenter__())
        await asyncio.sleep(0.005)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        while True:
            try:
                async with timerstore.aio.open(tmp_path / "s") as store:
                    assert await store.count() == 0
                return
            except timerstore.StoreLockedError:
                await asyncio.sleep(0.01)

    run(kind, main)


@loops
def test_a_put_that_comes_when_commits_have_ended_waits_for_nobody(
    kind: str, tmp_path: Path
) -> None:
    """The store is being closed, or detached from, between a put and its wait."""

    async def main() -> None:
        async with timerstore.aio.open(tmp_path / "s", config=GROUP) as store:
            async with timerstore.aio.attach(store.sync) as other:
                commits = other.side.commits
                await asyncio.to_thread(commits.stop)
                other.side.here(store.sync.put, b"x", delay=HOUR)
                await asyncio.wait_for(commits.wait(), 5)
                assert store.sync.core.flusher.durable_end == store.sync.core.engine.commitlog.end
                other.side.here(store.sync.put, b"x", delay=HOUR)
                store.sync.core.closed = True
                with pytest.raises(timerstore.StoreClosedError):
                    await asyncio.wait_for(commits.wait(), 5)
                store.sync.core.closed = False
            assert await store.count() == 2

    run(kind, main)


@pytest.mark.timeout(20)
def test_calls_without_an_end_leave_others_their_turn(tmp_path: Path) -> None:
    async def main() -> None:
        config = replace(SMALL, durability="process")
        async with timerstore.aio.open(tmp_path / "s", config=config) as store:
            id = await store.put(b"x", at_ms=FAR_MS)
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.put(b"x", at_ms=FAR_MS),
                lambda: store.get(id),
                store.count,
                lambda: store.pull("t", timeout=0),
            ]
            for call in calls:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        while True:
                            await call()

    asyncio.run(main())


@loops
def test_a_call_that_blocks_the_loop_is_logged_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call by its name, with what to await; and none of those that are awaited."""
    monkeypatch.setattr(inloop, "_told", set())

    async def main() -> None:
        store = timerstore.open(tmp_path / "s", config=GROUP, share=False)
        for _ in range(3):
            store.put(b"x")
            store.flush()
        await asyncio.to_thread(store.put, b"x")
        with suppress(TimeoutError):
            store.pull("nothing", timeout=0.5)
        async with timerstore.aio.attach(store) as mine:
            await mine.put(b"x", topic="u")
            await mine.flush()
            await mine.pull("nothing", timeout=0.01)
        store.close()
        async with timerstore.aio.open(tmp_path / "s", config=GROUP) as mine:
            await mine.put_many([b"x"] * 10)

    run(kind, main)
    told = [r.getMessage() for r in caplog.records if "running event loop" in r.getMessage()]
    assert [line.split("(")[0] for line in told] == ["open", "put", "flush", "pull", "close"]
    assert "await timerstore.aio.open(" in told[0] and "await store.put(" in told[1]
    assert all("tests/aio/test_store.py" in line for line in told)
    caplog.clear()
    with timerstore.open(tmp_path / "s", config=GROUP) as store:
        store.put(b"x")  # where no loop runs there is none to block
    assert not any("event loop" in r.getMessage() for r in caplog.records)
