"""A forked child: every call on what its parent opened is refused, or does nothing by design."""

import ast
import functools
import gc
import json
import os
import signal
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.rigs.storm_taken import run_of
from tests.small_store import SMALL
from tests.store_calls import Calls, calls_of, methods
from timerstore.calls.consuming.delivery import Failure
from timerstore.calls.consuming.group import Group
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.turns import Rate

pytestmark = pytest.mark.slow

CHILD_SECONDS = 20


def told_by_a_child(calls: Calls) -> dict[str, str]:
    """What each call ended with in a forked child: an error's name, or what it returned."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # later Pythons warn of threads
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)  # a lock that a thread of the parent held
        try:
            told = {}
            for name, call in calls.items():
                try:
                    told[name] = repr(call())
                except BaseException as e:
                    told[name] = type(e).__name__
            os.write(write, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "the child hung, or died"
    return dict(json.loads(data))


HARMLESS = {
    *("Group.turn_ms", "Group.may_hide", "Group.again_ms", "Group.take_back_put_off"),
    "Run.gave_back_expired",
    # What is in memory alone, what the end of a `with` block calls, what a clock calls.
    *("TimerStore.close", "TimerStore.abandon", "Consumer.close"),
    *("a clock that asks", "a clock that came"),
    *("Batch.to_arrow", "Batch.message", "Group.empty", "Group.decode", "Group.pull_ready"),
    *("Run.is_done", "Run.message", "Run.to_arrow", "Run.body_bytes", "Run.say_failed"),
    "Run.each",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[timerstore.TimerStore]:
    clock = timerstore.ManualClock()
    with timerstore.open(tmp_path / "store", config=SMALL, clock=clock) as store:
        yield store


@pytest.mark.timeout(60)
def test_every_call_is_refused(store: timerstore.TimerStore) -> None:
    later = store.put(b"later", topic="t", delay=timedelta(hours=1))
    store.put_many([b"a", b"b", b"c", b"d"], topic="t")
    batch = store.pull("t", max_count=2, timeout=0)
    delivery = next(iter(batch))
    waiting = store.consume("t", timeout=0)
    assert next(waiting).body == b"c"
    listing = store.pending()
    consumer = timerstore.Consumer(store, "worker")
    consumer.subscribe("t", lambda d: None)
    running = timerstore.Consumer(store, "other")
    running.subscribe("u", lambda d: None)
    running.start()
    stepper = running._stepper
    assert stepper is not None
    group, run = store.consuming.group("t", "default"), run_of(batch)
    calls = {f"TimerStore.{k}": v for k, v in calls_of(store, later).items()}
    calls |= {
        "TimerStore.backup": lambda: store.backup(store.path.with_name("backup")),
        "TimerStore.follow": lambda: store.follow(store.path.with_name("copy")),
        "Batch.ack": batch.ack,
        "Run.ack": run.ack,
        "Batch.to_arrow": batch.to_arrow,
        "Run.to_arrow": run.to_arrow,
        "Batch.message": lambda: batch.message(0),
        "Delivery.ack": delivery.ack,
        "Delivery.nack": delivery.nack,
        "Delivery.ack_and_put": lambda: delivery.ack_and_put(b"x"),
        "Delivery.ack_and_put_many": lambda: delivery.ack_and_put_many([{"body": b"x"}]),
        "Consumer.on": lambda: consumer.on("v")(lambda d: None),
        "Consumer.subscribe": lambda: consumer.subscribe("v", lambda d: None),
        "Consumer.start": consumer.start,
        "Consumer.step": running.step,
        "Consumer.run": running.run,
        "Consumer.retry_dead_letters": running.retry_dead_letters,
        "Consumer.drop_dead_letters": running.drop_dead_letters,
        "Consumer.stats": running.stats,
        "Consumer.dead_letters": running.dead_letters,
        "a clock that asks": lambda: stepper.next_ms(0, 1),
        "a clock that came": stepper.arrived,
        "Consumer.close": running.close,
        "Group.pull": lambda: group.pull(1),
        "Group.pull_ready": lambda: group.pull_ready(1),
        "Group.pull_long": lambda: group.pull_long(1),
        "Group.decode": lambda: group.decode(int(run.offsets[0]), run.pins),
        "Group.empty": group.empty,
        "Group.turn_ms": group.turn_ms,
        "Group.again_ms": group.again_ms,
        "Group.take_back_put_off": group.take_back_put_off,
        "Group.may_hide": lambda: group.may_hide(Rate("1/s", 10**9, 1, "")),
        "Group.expire": lambda: group.expire(run.cursor, np.zeros(1, np.int64), run.pins),
        "Group.pass_by": lambda: group.pass_by(run.cursor, np.zeros(1, np.int64), "gone"),
        "Group.belong_to": lambda: group.belong_to(lambda *_: 0),
        "Group.has_hidden": group.has_hidden,
        "Run.settle": lambda: run.settle(0),
        "Run.settle_some": lambda: run.settle_some([0]),
        "Run.give_back": lambda: run.give_back([0]),
        "Run.each": lambda: next(run.each(lambda: 0, lambda: True)),
        "Run.give_back_expired": lambda: run.give_back_expired(0),
        "Run.gave_back_expired": lambda: run.gave_back_expired(0, 0),
        "Run.nack": lambda: run.nack(0, None),
        "Run.send_again": lambda: run.send_again(0, 3, Failure()),
        "Group.claim": lambda: group.claim(run.cursor, (0, 0)),
        "Group.release": lambda: group.release((0, 0)),
        "Group.claiming": lambda: group.claiming(run.cursor, (0, 0)).__enter__(),
        "Run.claiming": lambda: run.claiming(0).__enter__(),
        "Run.ack_and_put": lambda: run.ack_and_put(0, [{"body": b"x"}]),
        "Run.is_done": lambda: run.is_done(0),
        "Run.message": lambda: run.message(0),
        "Run.body_bytes": lambda: run.body_bytes([0]),
        "Run.say_failed": lambda: run.say_failed(0, 1, 1),
        "Group.belong_to_all": group.belong_to_all,
        "Group.let_go": group.let_go,
        "Group.count_failed": lambda: group.count_failed(1, 0, 0),
        "Group.done_ahead": group.done_ahead,
        "Group.committed": group.committed,
        "Group.reading": group.reading,
        "Group.make_visible": group.make_visible,
        "Group.make_durable": group.make_durable,
        "an iterator that began": lambda: next(waiting),
        "a listing": lambda: next(listing),
        "the clock": lambda: store.core.clock.advance(timedelta(seconds=1)),  # type: ignore[union-attr]
    }
    kinds = (timerstore.TimerStore, timerstore.Batch, timerstore.Delivery)
    for kind in (*kinds, timerstore.Consumer, Group, Run):
        known = {name.partition(".")[2] for name in calls if name.startswith(kind.__name__ + ".")}
        assert methods(kind) - {"json"} == known  # that reads the body, as `body` does
    # Another thread of the parent may hold any lock at the moment of the fork.
    with group.lock.guard(), store.consuming._lock.guard(), store.core.engine.keys.lock.guard():
        told = told_by_a_child(calls)
    wrong = {name: end for name, end in told.items() if end != "ForkedProcessError"}
    assert set(wrong) == HARMLESS
    assert not any("Error" in end for end in wrong.values()), wrong

    # The parent notices nothing.
    delivery.ack()
    assert [d.body for d in waiting] == [b"d"]
    assert [timer.id for timer in listing] == [later]
    assert store.count() == 1
    running.close()


def maps_of_a_child(folder: Path) -> set[str]:
    """The files of a folder that a forked child has mapped."""
    calls: Calls = {"maps": Path("/proc/self/maps").read_text}
    lines = ast.literal_eval(told_by_a_child(calls)["maps"]).splitlines()
    return {line.rpartition("/")[2] for line in lines if f"{folder}/" in line}


@pytest.mark.timeout(60)
def test_a_child_keeps_the_disk_of_no_file(store: timerstore.TimerStore) -> None:
    """Not of what is mapped, nor of what was dropped; what was pulled can be read."""
    store.put_many([b"%d" % i * 900 for i in range(40)], topic="t")
    assert store.core.engine.commitlog._mapped
    batch = store.pull("t", max_count=2, timeout=0)
    pinned = {each.path.name for each in run_of(batch).pins}
    assert maps_of_a_child(store.path) == pinned
    second = list(batch)[1]
    calls: Calls = {"body": functools.partial(getattr, second, "body")}
    assert told_by_a_child(calls) == {"body": repr(b"1" * 900)}
    batch.ack()
    del batch, second, calls
    gc.collect()

    def use_memory() -> bool:
        """What the child drops takes nothing with it that came there."""
        blocks = [bytearray(1 << 20) for _ in range(32)]
        store.core.engine.commitlog._mapped.clear()
        gc.collect()
        return all(not any(block) for block in blocks)

    calls = dict[str, Any](memory=use_memory)
    assert told_by_a_child(calls) == {"memory": "True"}
    assert maps_of_a_child(store.path) == set()
    assert store.count() == 0


@pytest.mark.timeout(60)
def test_a_child_keeps_the_disk_of_nothing_that_is_kept_for_the_next_pull(
    store: timerstore.TimerStore,
) -> None:
    for body in (b"the long way", b"the ready way"):
        store.put(body, topic="t")
        batch = store.pull("t", timeout=0)
        assert batch.bodies.to_pylist() == [body]
        batch.ack()
    (group,) = store.consuming.known_groups()
    assert group._maps and group._pinned[2]
    pinned = {each.path.name for each in run_of(batch).pins}
    assert maps_of_a_child(store.path) == pinned
    del batch
    assert maps_of_a_child(store.path) == set()


@pytest.mark.timeout(60)
def test_a_store_to_look_at_is_refused_too(store: timerstore.TimerStore) -> None:
    id = store.put(b"later", topic="t", delay=timedelta(hours=1))
    store.flush()
    with timerstore.open(store.path, read_only=True, clock=store.core.clock) as looking:  # type: ignore[arg-type]
        told = told_by_a_child(calls_of(looking, id))
        assert {k for k, end in told.items() if end != "ForkedProcessError"} == {"close", "abandon"}
        assert looking.count() == 1


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_threads_of_the_parent_are_no_matter(tmp_path: Path) -> None:
    config = timerstore.Config(
        durability="group", tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 20)
    )
    with timerstore.open(tmp_path / "store", config=config) as store:
        store.put(b"now", topic="t")
        batch = store.pull("t", timeout=10)
        consumer = timerstore.Consumer(store, "worker", threads=4)
        consumer.subscribe("u", lambda d: None)
        with consumer:
            calls = {"ack": batch.ack, "put": lambda: store.put(b"x"), "close": consumer.close}
            told = told_by_a_child(calls | {"store": store.close})
            assert told == {
                "ack": "ForkedProcessError",
                "put": "ForkedProcessError",
                "close": "True",
                "store": "None",
            }
        assert np.asarray(batch.due_ms).size == 1
        batch.ack()
