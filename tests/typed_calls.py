"""Calls of the public face, for type checkers: right ones, then wrong ones.

It is never run. `test_typing.py` compares what mypy finds with the lines that end in `# wrong`.
"""

from datetime import timedelta

import numpy as np
import pyarrow as pa

import timerstore
from timerstore import (
    AnyStore,
    Consumer,
    Delivery,
    Retry,
    TimerStore,
    aio,
    metrics,
    otel,
    spark,
    tables,
)
from timerstore.recurring import Schedules


def right(store: TimerStore, consumer: Consumer, several: Consumer) -> None:
    store.put(b"a", delay=timedelta(seconds=5))
    store.put_many([b"a", b"b"])
    store.put_json({"a": 1}, topic="t", delay=5, if_absent=True, key="k")
    store.put_table(pa.table({}), due=None, key="k")
    timerstore.metrics.register(store)
    store.put_many((b"a", b"b"), delay_ms=5, keys=["a", "b"])
    store.put_many(pa.array([b"a"]), at_ms=np.arange(1), keys=pa.array(["a"]))
    store.put_many(pa.chunked_array([[b"a"]]), delay_ms=[1])
    store.put_many(np.zeros((2, 3), np.uint8), delay_ms=np.zeros(2, np.int32))

    @consumer.on("a")
    def one(d: Delivery) -> None:
        print(d.body)

    @consumer.on("b")
    def again(d: Delivery) -> Retry | None:
        return Retry() if d.attempt < 3 else None

    @several.on("a")
    def many(ds: list[Delivery]) -> Retry:
        return Retry(ack_index=len(ds))

    consumer.subscribe("c", one)
    consumer.subscribe("d", lambda d: print(d))


def of_any_store(store: AnyStore) -> str:
    with Schedules(store), Consumer(store, "g"):
        for timer in store.pending(topic="a"):
            print(timer.key, store.health().ok)
    return store.put(b"a", key="k", replace=True)


def right_openings(share: bool) -> None:
    with timerstore.open("timers/") as store, timerstore.connect("timers/") as client:
        store.handover()
        print(of_any_store(store), of_any_store(client))
    with timerstore.open("timers/", share=True) as shared:
        print(shared.is_owner, of_any_store(shared), Schedules(shared))
    with timerstore.open("timers/", create=False, share=share) as either:
        print(of_any_store(either), either.count())
        if isinstance(either, timerstore.SharedStore):
            print(either.is_owner)


def wrong_openings(share: bool) -> None:
    timerstore.open("timers/", share=share).handover()  # wrong
    timerstore.open("timers/", share=share, read_only=True)  # wrong
    of_any_store("timers/")  # wrong


def names_that_are_not_there() -> None:
    with timerstore.opne("timers/") as store:  # wrong
        print(store)
    print(timerstore.Store, timerstore.tables)  # wrong
    print(tables.read_tabel("timers/"))  # wrong
    print(spark.sesion())  # wrong


def metrics_of_any_store(share: bool) -> None:
    store = timerstore.open("timers/", share=share)
    metrics.register(store)
    otel.register(store)
    metrics.register("timers/")  # wrong


def wrong(store: TimerStore, consumer: Consumer) -> None:
    store.put("a")  # wrong
    store.put(b"a", delay="5")  # wrong
    store.put_many(["a"])  # wrong
    store.put_many("a")  # wrong
    store.put_many(b"a")  # wrong
    store.put_many([b"a"], delay_ms="soon")  # wrong
    store.put_many([b"a"], delay_ms=1.5)  # wrong
    store.put_many([b"a"], delay_ms=np.zeros(1))  # wrong
    store.put_many(np.zeros(3))  # wrong

    @consumer.on("a")  # wrong
    async def decorated(d: Delivery) -> None:
        print(d.body)

    async def passed(d: Delivery) -> None:
        print(d.body)

    consumer.subscribe("b", passed)  # wrong

    def says_done(d: Delivery) -> str:
        return "done"

    consumer.subscribe("c", says_done)  # wrong


async def right_in_a_loop(store: aio.TimerStore, consumer: aio.Consumer) -> None:
    id: str = await store.put(b"a", delay=timedelta(seconds=5))
    await store.put_many([b"a", b"b"], delay_ms=5)
    timer = await store.get(id)
    print(timer and timer.body, await store.cancel(id))
    async for d in store.consume("a", timeout=1):
        d.ack()
        await d.nack(timedelta(seconds=1))

    @consumer.on("a")
    async def one(d: aio.Delivery) -> None:
        await d.ack_and_put(b"b")

    async def any_delivery(d: Delivery) -> Retry | None:
        return Retry() if d.attempt < 3 else None

    consumer.subscribe("b", any_delivery)
    async with aio.open("timers/") as other:
        print(await other.count())


async def wrong_in_a_loop(store: aio.TimerStore, consumer: aio.Consumer) -> None:
    store.put(b"a")  # wrong
    await store.put("a")  # wrong
    await store.put_many([b"a"], delay_ms="soon")  # wrong
    for d in store.consume("a"):  # wrong
        print(d)

    @consumer.on("a")  # wrong
    def plain(d: aio.Delivery) -> None:
        print(d.body)

    async def says_done(d: aio.Delivery) -> str:
        return "done"

    consumer.subscribe("c", says_done)  # wrong
