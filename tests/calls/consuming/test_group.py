"""Consuming from queues with damaged entries: each waits until the next opening makes it anew."""

import asyncio
import itertools
import logging
import time
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import timerstore
import timerstore.aio
from tests.small_store import SMALL, small
from timerstore import Delivery, ManualClock, TimerStore
from timerstore.calls.consuming.delivery import part_of
from timerstore.calls.consuming.run import Run
from timerstore.calls.consuming.sendback import send_to_dead
from timerstore.services.engine.rebuild import QUEUES
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import Message

pytestmark = pytest.mark.slow

START_MS = 1_800_000_000_000
MINUTE = timedelta(minutes=1)
TIMERS = "rmq_sys_wheel_timer"


def write_store(path: Path, clock: ManualClock, count: int = 5) -> None:
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        for topic in ("a", "b"):
            for i in range(count):
                store.put(b"%s %d" % (topic.encode(), i), topic=topic)
        assert len(store.pull("a", group="old", max_count=count, timeout=0)) == count
        for delivery in store.consume("b", group="g", timeout=0):
            delivery.nack()
            if delivery.attempt:
                break
        for i in range(20):
            store.put(b"pending %d" % i, topic="a", delay=timedelta(hours=1))


def swap(path: Path, first: str, second: str) -> None:
    """Let two queues change places; a store that is open sees it at once."""
    files = [next((path / "consumequeue" / name / "0").iterdir()) for name in (first, second)]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, reversed(contents), strict=True):
        with open(file, "r+b") as opened:
            opened.write(content)


@pytest.mark.parametrize("other", [TIMERS, "b", "%RETRY%g"])
@pytest.mark.parametrize("many", [1, 512])
def test_a_swapped_queue_waits_for_the_next_opening(tmp_path: Path, other: str, many: int) -> None:
    clock, path = ManualClock(START_MS), tmp_path / "s"
    write_store(path, clock)
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        swap(path, "a", other)
        assert not store.pull("a", group="new", max_count=many, timeout=0)
        assert store.stats().unreadable_count == 0
        assert {place["file"] for place in store.stats().damage} == {"consumequeue/a/0"}
        assert "consume queues" in str(store.health())
        store.put(b"fresh", topic="a", delay_level=1)
        clock.advance(MINUTE)
        batch = store.pull("a", group="new", max_count=many, timeout=0)
        assert [delivery.body for delivery in batch] == [b"fresh"]
        batch.ack()
        assert store.consuming.group("a", "new").committed() == {("a", 0): 0}
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        bodies = list[bytes]()
        while len(batch := store.pull("a", group="new", max_count=many, timeout=0)):
            bodies += [delivery.body for delivery in batch]
            batch.ack()
        assert bodies == [b"a %d" % i for i in range(5)] and store.health().ok


def pull_all(store: TimerStore) -> list[Delivery]:
    """Return what the group g has of the topic a."""
    return list(itertools.chain(*iter(lambda: list(store.pull("a", group="g", timeout=0)), [])))


@pytest.mark.parametrize("clean", [True, False])
@settings(max_examples=10, deadline=None)
@given(
    damaged=st.sets(st.integers(0, 29), min_size=1),
    acked=st.sets(st.integers(0, 29)),
    kind=st.sampled_from(["zeros", "behind the log", "another's", "size"]),
)
def test_nothing_is_lost_behind_damaged_entries(
    clean: bool, damaged: set[int], acked: set[int], kind: str
) -> None:
    """What was acknowledged behind one does not come again, and each comes once made anew."""
    clock = ManualClock(START_MS)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        store = timerstore.open(path, clock=clock, config=SMALL)
        store.put_many([b"%d" % i for i in range(30)], topic="a")
        file = next((path / "consumequeue" / "a" / "0").iterdir())
        entries = np.fromfile(file, fmt.QUEUE_ENTRY, 30)
        wrong = entries.copy()
        for i in damaged:
            if kind == "size":
                wrong["size"][i] += 1
            elif kind == "behind the log":
                wrong["offset"][i] = 1 << 50
            else:
                wrong[i] = 0 if kind == "zeros" else entries[i - 1]
        with open(file, "r+b") as opened:
            opened.write(wrong.tobytes())
        seen = set[int]()
        for delivery in pull_all(store):
            assert int(delivery.body) not in seen | damaged
            seen.add(int(delivery.body))
            if int(delivery.body) in acked:
                delivery.ack()
        assert seen == set(range(30)) - damaged
        store.flush()
        store.close() if clean else store.abandon()
        for life in range(3):
            with timerstore.open(path, clock=clock, config=SMALL) as store:
                assert store.core.findings.rebuilt == ([QUEUES] if life == 0 else [])
                batch = pull_all(store)
                got = [int(delivery.body) for delivery in batch]
                assert got == ([] if life == 2 else sorted(set(range(30)) - (acked - damaged)))
                assert store.health().ok
                for delivery in batch if life == 1 else ():
                    delivery.ack()


@pytest.mark.parametrize("other", [TIMERS, "b"])
def test_queues_that_were_swapped_while_closed(tmp_path: Path, other: str) -> None:
    """Whether opening sees it, and makes them anew, or reading does: nothing wrong comes out."""
    clock, path = ManualClock(START_MS), tmp_path / "s"
    write_store(path, clock)
    swap(path, "a", other)
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        for topic in ("a", "b"):
            for delivery in store.pull(topic, group="new", timeout=0):
                assert delivery.body.startswith(b"%s " % topic.encode())


def test_swapped_retries_are_held(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, path = ManualClock(START_MS), tmp_path / "s"
    write_store(path, clock)
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        swap(path, "%RETRY%g", TIMERS)
        with caplog.at_level(logging.ERROR):
            assert {d.attempt for d in store.pull("b", group="g", timeout=0)} <= {0}
        assert "%RETRY%g/0 is damaged at offset 20: the entry is not that" in caplog.text
        named = [each for each in store.stats().damage if "%RETRY%g" in each["file"]]
        assert len(named) == 5 and store.stats().unreadable_count == 0
        store.put(b"fresh", topic="b", delay_level=1)
        clock.advance(MINUTE)
        (delivery,) = store.pull("b", group="g", timeout=0)
        swap(path, "%RETRY%g", TIMERS)
        delivery.nack()
        (delivery,) = store.pull("b", group="g", timeout=0)
        assert (delivery.body, delivery.attempt) == (b"fresh", 1)
        delivery.ack()
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        again = [(d.body, d.attempt) for d in store.pull("b", group="g", timeout=0)]
        assert again == [*((b"b %d" % i, 1) for i in range(1, 5)), (b"b 0", 2)]


def test_a_damaged_message_that_a_group_meets_is_listed(tmp_path: Path) -> None:
    """Opening has not seen it, and no service reads what has fired: who meets it names it."""
    clock, path = ManualClock(START_MS), tmp_path / "s"
    write_store(path, clock, count=9)
    entries = np.fromfile(next((path / "consumequeue" / "a" / "0").iterdir()), fmt.QUEUE_ENTRY)
    offset = int(entries["offset"][4])
    number, place = divmod(offset, SMALL.commitlog_segment_bytes)
    file = sorted((path / "commitlog").iterdir())[number]
    at = file.read_bytes().index(b"a 4", place)
    with timerstore.open(path, clock=clock, config=SMALL) as store:
        with open(file, "r+b") as opened:
            opened.seek(at)
            opened.write(b"?")
        for count, group in enumerate(("new", "newer"), 1):
            got = [d.body for d in store.pull("a", group=group, timeout=0)]
            assert got == [b"a %d" % i for i in range(9) if i != 4]
            assert store.stats().unreadable_count == count
            places = [(each["file"], each["offset"]) for each in store.stats().damage]
            assert places == [("commitlog", offset)]
            assert not store.health().ok
    for _ in range(2):  # a clean close keeps the list: nobody has to meet it again
        with timerstore.open(path, clock=clock, config=SMALL) as store:
            assert store.core.findings.clean
            places = [(each["file"], each["offset"]) for each in store.stats().damage]
            assert places == [("commitlog", offset)] and not store.health().ok


def test_an_entry_that_says_nonsense_is_left(tmp_path: Path) -> None:
    """Negative sizes, places behind the log: no memory is sized by them, nothing else is lost."""
    clock, path = ManualClock(START_MS), tmp_path / "s"
    write_store(path, clock, count=9)
    store = timerstore.open(path, clock=clock, config=SMALL)
    file = next((path / "consumequeue" / "a" / "0").iterdir())
    entries = np.fromfile(file, fmt.QUEUE_ENTRY)
    entries["size"][1], entries["size"][2], entries["size"][3] = -5_000, 0, 0x7FFFFFFF
    entries["offset"][4], entries["offset"][5] = -1, 1 << 60
    entries["size"][6] += 1
    entries["offset"][7] = entries["offset"][8]
    with open(file, "r+b") as opened:
        opened.write(entries.tobytes())
    with store:
        assert [d.body for d in store.pull("a", group="new", timeout=0)] == [b"a 0", b"a 8"]
        assert store.stats().unreadable_count == 0 and len(store.stats().damage) == 7


@pytest.mark.timeout(60)
def test_an_iterator_may_end_in_the_midst_of_a_call_of_its_group(tmp_path: Path) -> None:
    """The garbage collector chooses when; the same thread may hold the group's lock by then."""
    with TimerStore(tmp_path, config=SMALL, clock=ManualClock(1_000_000_000_000)) as store:
        ids = [store.put(b"x", topic="t") for _ in range(3)]
        iterator = store.consume("t", group="g", timeout=0)
        assert next(iterator).id == ids[0]
        with store.consuming.retries("g").lock.guard():
            iterator.close()  # type: ignore[attr-defined]
        assert [each.id for each in store.consume("t", group="g", timeout=0)] == ids[1:]


@pytest.mark.parametrize("together", [True, False])
def test_what_is_done_behind_an_open_message_does_not_come_again(
    tmp_path: Path, together: bool
) -> None:
    """The offset that a broker reads is the smallest that is not done; ours knows the rest."""
    clock, bodies, done = ManualClock(1_000_000_000_000), [b"%d" % i for i in range(30)], set()
    for life in range(2):  # what is kept is kept over one more opening
        with TimerStore(tmp_path, config=SMALL, clock=clock) as store:
            if life == 0:
                store.put_many(bodies, topic="t")
                clock.advance(timedelta(seconds=1))
            number = 0
            while len(batch := store.pull("t", max_count=4, timeout=0)):
                number += 1
                if number % 2 == 1:
                    continue
                done.update(d.body for d in batch)
                if together:
                    batch.ack()
                else:
                    for d in batch:
                        d.ack()
    with TimerStore(tmp_path, config=SMALL, clock=clock) as store:
        left = [body for body in bodies if body not in done]
        assert [d.body for d in store.consume("t", timeout=0)] == left


LIMITS = {
    "as it is": {},
    "batches of few bytes": {"BATCH_BYTES_MAX": 700},
    "hardly room for ids": {"ID_BYTES_USUAL": 1},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=list(LIMITS))
@pytest.mark.parametrize("many", [7, 400])
def test_batches_hold_all_in_order(
    tmp_path: Path, limits: dict[str, int], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run crosses segments of its queue, and where memory is lent again."""
    for name, value in limits.items():
        monkeypatch.setattr(f"timerstore.calls.consuming.group.{name}", value)
    clock = ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", clock=clock, config=SMALL) as store:
        bodies = [b"%d" % i * (1 + i % 40) for i in range(300)]  # 100 entries in a queue's segment
        ids = list(store.put_many(bodies, topic="a"))
        got = []
        while len(batch := store.pull("a", max_count=many, timeout=0)):
            assert len(batch) <= many
            first = batch.bodies.to_pylist()
            assert batch.to_arrow().column("id").to_pylist() == batch.ids.to_pylist()
            assert set(batch.due_ms.tolist()) | set(batch.fired_ms.tolist()) == {START_MS}
            assert batch.due.tolist() == [each.due.replace(tzinfo=None) for each in batch]
            assert [d.body for d in batch] == first == batch.bodies.to_pylist()
            assert [batch.message(i).body for i in range(len(batch))] == first
            got += zip(first, batch.ids.to_pylist(), strict=True)
            batch.ack()
        assert got == list(zip(bodies, ids, strict=True))
        assert store.consuming.group("a", "default").committed() == {("a", 0): 300}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["consume", "aio", "served", "dropped"])
def test_what_is_taken_at_once_has_a_limit_in_bytes(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else 512 of the largest messages would take 1 GiB."""
    most, taken = 70_000, list[int]()
    for module in ("aio.loopstore", "calls.consuming.consuming", "calls.consuming.delivery"):
        monkeypatch.setattr(f"timerstore.{module}.CONSUME_BYTES", most)
    monkeypatch.setattr("timerstore.share.answers.REPLY_BYTES", most)

    def noted(*given: Any) -> Run:
        run = Run(*given)
        taken.append(run.body_bytes(range(len(run))))
        return run

    def noted_part(*given: Any) -> list[Any]:
        part = part_of(*given)
        taken.append(sum(len(message.body) for _, _, message in part))
        return part

    monkeypatch.setattr("timerstore.calls.consuming.group.Run", noted)
    monkeypatch.setattr("timerstore.calls.consuming.dead_letters.part_of", noted_part)
    topic = "%DLQ%g" if way == "dropped" else "t"
    sizes = [100_000] + [20_000] * 20
    with timerstore.open(tmp_path / "s", config=small(log_bytes=1 << 20)) as store:
        if way == "dropped":
            for i, size in enumerate(sizes):
                message = Message(0, 0, "t", bytes(size), {}, 0, 0, 0, i, 0)
                send_to_dead(store.consuming.putting, "g", message)
        else:
            store.put_many([bytes(size) for size in sizes], topic=topic)
        while store.count():
            time.sleep(0.001)
        if way == "consume":
            got = [len(d.body) for d in store.consume("t", timeout=0)]
        elif way == "aio":
            got = asyncio.run(taken_by_a_loop(store))
        elif way == "dropped":
            assert store.drop_dead_letters("g") == len(sizes)
            got = sizes
        else:
            with timerstore.serve(store), timerstore.connect(store.path) as client:
                got = [len(d.body) for d in client.consume("t", timeout=0)]
    assert got == sizes
    assert sorted(taken)[-1] == 100_000 and sorted(taken)[-2] < most + sizes[1]


async def taken_by_a_loop(store: TimerStore) -> list[int]:
    async with timerstore.aio.attach(store) as attached:
        return [len(d.body) async for d in attached.consume("t", timeout=0)]


def test_what_is_held_does_not_change(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with timerstore.open(tmp_path / "s", clock=clock, config=SMALL) as store:
        store.put_many([b"%03d" % i for i in range(300)], topic="a")
        held = []
        for part in range(0, 300, 20):
            batch = store.pull("a", max_count=20, timeout=0)
            expected = [b"%03d" % i for i in range(part, part + 20)]
            held += [(batch.bodies, expected), (batch.bodies[5:9], expected[5:9])]
            held += [(batch.due_ms, [START_MS] * 20)]
            batch.ack()
            del batch
            if part % 60 == 0:
                held.pop(0)
    assert all(column.tolist() == expected for column, expected in held)
