"""What expires: it does not come after its time, is counted, and is a dead letter if asked for."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
import timerstore.aio
from tests.buffers import as_array
from tests.kernels import kernel
from tests.rigs import expiring, orders
from tests.small_store import SMALL
from tests.tiers import SEED, how_many
from timerstore import (
    Consumer,
    Delivery,
    InvalidArgumentError,
    ManualClock,
    TimerStore,
)
from timerstore.offline.export import export
from timerstore.testing import Program
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import (
    NEVER,
    Message,
    decode_properties,
    expires_ms,
    read_expires_ms,
)
from timerstore.timelog.bytes.message import MessageParts, read_frame
from timerstore.timelog.writing.compose import compose
from timerstore.timelog.writing.frame import encode_property
from timerstore.watching.groups import GroupStats

START_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)
STEPS = how_many("CRASH_STEPS", 6, 100)


def opened(path: Path, clock: ManualClock | None = None) -> TimerStore:
    config = replace(SMALL, retention_ms=3_600_000)
    return TimerStore(path, config=config, clock=clock, disk=QuietDisk())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def group_of(store: TimerStore, topic: str = "t", group: str = "g") -> GroupStats:
    (found,) = [g for g in store.stats().groups if (g.topic, g.group) == (topic, group)]
    return found


# --- the bytes


@kernel
def _expires_ms(buf: Any, found: MessageParts) -> int:
    read_frame(buf, 0, found)
    return read_expires_ms(buf, found)


TEXT = st.one_of(
    st.integers(-10, 1 << 70).map(lambda i: b"%d" % i),
    st.sampled_from([b"", b"x", b" 1", b"1.5", b"1800000000000", b"99999999999", b"100000000000"]),
    st.binary(max_size=20).map(lambda b: b.replace(b"\x01", b"").replace(b"\x02", b"")),
)
NAME = st.sampled_from(
    [fmt.PROPERTY_EXPIRES, b"TIMER_EXPIRES_M", b"TIMER_EXPIRES_MSX", b"TIMER_EX", b"KEYS", b"a"]
)


@given(st.lists(st.tuples(NAME, TEXT), max_size=4), st.integers(0, 3))
def test_a_kernel_reads_what_its_twin_reads(said: list[tuple[bytes, bytes]], kind: int) -> None:
    said = list(dict(said).items())
    properties = b"".join(encode_property(*each) for each in said)
    flag = (0, fmt.FLAG_EXPIRES, fmt.FLAG_EXPIRES | 3, ~fmt.FLAG_EXPIRES & 0x7FFFFFFF)[kind]
    data = np.zeros(4_096, np.uint8)
    framed = as_array(compose(b"t", b"x", properties, born_ms=0, flag=flag))
    data[: len(framed)] = framed
    message = Message(
        *(0, 0, "t", b"", decode_properties(properties), 0, 0, 0, 0, 0),
        flag=flag,
    )
    told, found = expires_ms(message), _expires_ms(data, MessageParts())
    assert told == found
    assert (found == NEVER) or (kind in (1, 2) and fmt.PROPERTY_EXPIRES in dict(said))
    assert found >= 10**11


# --- a group, beside its obvious twin


ACT = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from(["one", "many", "level", "replace", "later"]),
        st.integers(0, 20),
        st.one_of(st.none(), st.integers(0, 30)),
    ),
    st.tuples(st.just("advance"), st.integers(0, 15)),
    st.tuples(st.just("pull"), st.integers(1, 5)),
    st.tuples(st.just("nack"), st.integers(0, 20)),
    st.tuples(st.just("clean")),
    st.tuples(st.just("reopen")),
)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(240)
@given(st.lists(ACT, min_size=6, max_size=20), st.booleans())
def test_as_its_twin(
    tmp_path_factory: pytest.TempPathFactory, acts: list[Any], buries: bool
) -> None:
    """Whatever was put, moved, sent back: it comes if it has not expired, and once."""
    clock, path, now = ManualClock(START_MS), tmp_path_factory.mktemp("e") / "s", 0
    store = opened(path, clock)
    waits: dict[bytes, tuple[int, float]] = {}  # due, expires
    gone, came = set[bytes](), list[bytes]()

    def take(count: int) -> list[Delivery]:
        store.consuming.group("t", "g").buries_expired = buries
        for each in [body for body, (_, last) in waits.items() if last < now]:
            if waits[each][0] <= now:
                gone.add(each)
                del waits[each]
        got, left = list[Delivery](), count
        while left and len(batch := store.pull("t", group="g", max_count=left, timeout=0)):
            got += batch
            left -= len(batch)
        for d in got:
            due, last = waits.pop(d.body)
            assert due <= now <= last
            assert d.expires_ms == (None if last == float("inf") else START_MS + last * 1_000)
        assert len(got) == count or not [due for due, _ in waits.values() if due <= now]
        return got

    try:
        for number, (act, *told) in enumerate(acts):
            body = b"%d" % number
            if act == "put":
                how, delay, more = told
                delay = 5 if how == "level" else delay + (how == "replace")
                given: dict[str, Any] = {"topic": "t", "delay": delay}
                last = float("inf") if more is None else now + delay + more
                if more is not None:
                    given["expires"] = timedelta(seconds=delay + more)
                if how == "level":
                    store.put(body, topic="t", delay_level=2, expires=given.get("expires"))
                elif how == "many":
                    store.put_many([body], **given)
                elif how == "replace":
                    for _ in range(2):
                        store.put(body, **given, key=f"k{number}", replace=True)
                elif how == "later":
                    id = store.put(body, **given)
                    if delay and store.get(id):
                        store.reschedule(id, delay=delay)
                else:
                    store.put(body, **given)
                waits[body] = now + delay, last
            elif act == "advance":
                clock.advance(told[0] * SECOND)
                now += told[0]
            elif act == "pull":
                for d in take(told[0]):
                    came.append(d.body)
                    d.ack()
            elif act == "nack":
                for d in take(1):
                    known = d.expires_ms
                    d.nack(told[0])
                    last = float("inf") if known is None else (known - START_MS) / 1_000
                    waits[d.body] = now + told[0], last
            elif act == "clean":
                store.core.upkeep.cleaner.run()
            else:
                store.close()
                store = opened(path, clock)
        clock.advance(100 * SECOND)
        now += 100
        came += [d.body for d in take(1_000)]
        assert not waits and len(set(came)) == len(came) and not gone & set(came)
        assert group_of(store).expired_count <= len(gone)
        letters = store.dead_letters("g")
        assert {each.body for each in letters} == (gone if buries else set())
        assert {each.error_type for each in letters} <= {"expired"}
    finally:
        store.close()


def test_it_is_counted(store: TimerStore, clock: ManualClock, tmp_path: Path) -> None:
    store.put_many([b"a"] * 5, topic="t", delay=1, expires=2)
    store.put(b"b", topic="t", delay=1)
    clock.advance(3 * SECOND)
    assert [d.body for d in store.pull("t", group="g", timeout=0)] == [b"b"]
    assert group_of(store).expired_count == 5 and group_of(store).dead_count == 0
    store.close()
    with opened(tmp_path / "s", clock) as again:
        assert group_of(again).expired_count == 5
        assert [d.body for d in again.pull("t", group="g", timeout=0)] == [b"b"]
        assert [d.body for d in again.pull("t", group="other", timeout=0)] == [b"b"]
        assert group_of(again, group="other").expired_count == 5


@pytest.mark.parametrize("is_moved", [False, True])
def test_at_its_last_moment_it_comes(store: TimerStore, clock: ManualClock, is_moved: bool) -> None:
    id = store.put(b"a", topic="t", delay=5, expires=9)
    if is_moved:
        store.reschedule(id, delay=8)
    clock.advance(9 * SECOND)
    ((d),) = store.pull("t", timeout=0)
    assert d.expires_ms == clock.now_ms
    d.nack()
    clock.advance(timedelta(milliseconds=1))
    assert len(store.pull("t", timeout=0)) == 0


def test_a_clock_that_was_set_back_brings_nothing_twice(
    store: TimerStore, clock: ManualClock
) -> None:
    store.put(b"a", topic="t", expires=1)
    clock.advance(2 * SECOND)
    assert len(store.pull("t", group="g", timeout=0)) == 0
    clock._now_ms -= 2_000
    assert len(store.pull("t", group="g", timeout=0)) == 0
    assert group_of(store).expired_count == 1


def test_what_became_of_it(store: TimerStore, clock: ManualClock) -> None:
    late = store.put(b"a", topic="t", delay=2, expires=3)
    intime = store.put(b"b", topic="t", delay=2, expires=3)
    store.cancel(intime)
    intime = store.put(b"b", topic="t", delay=2, expires=30)
    assert store.find(late).state == "pending"
    store.pause("firing")
    clock.advance(10 * SECOND)
    store.resume("firing")
    clock.advance(SECOND)
    found = store.find(late)
    assert (found.state, found.topic, found.fired_ms is not None) == ("expired", "t", True)
    assert store.find(intime).state == "fired"


TOLD = [b"x", b"-5", b"", b"0", b"99", b"9" * 40, b"0x10", " ٣".encode()]


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("level", [None, 1])
def test_what_the_property_says_is_not_trusted(
    store: TimerStore, clock: ManualClock, told: bytes, level: int | None, monkeypatch: Any
) -> None:
    """What is no time that anybody can have put says nothing, and the message comes."""
    from timerstore.calls.putting import putting

    with monkeypatch.context() as patched:
        said = encode_property(fmt.PROPERTY_EXPIRES, told)
        patched.setattr(putting, "encode_expires", lambda _: said)
        id = store.put(b"a", topic="t", expires=2, delay_level=level)
    timer = store.get(id)
    assert timer is None or timer.expires_ms is None
    if timer is not None:
        assert list(store.pending()) == [timer]
    clock.advance(100 * SECOND)
    (d,) = store.pull("t", timeout=0)
    assert d.expires_ms is None and store.find(d.id).state == "fired"
    d.nack()
    ((again),) = store.pull("t", timeout=0)
    assert again.attempt == 1


def test_a_flag_or_a_property_alone_says_nothing(store: TimerStore, clock: ManualClock) -> None:
    from timerstore.calls.consuming.sendback import send_to

    store.put(b"a", topic="t", expires=2)
    (d,) = store.pull("t", timeout=0)
    message = d._handed.message(d._i)
    send_to(store.putting, b"u", message._replace(flag=0), 0)
    send_to(store.putting, b"u", message._replace(flag=fmt.FLAG_EXPIRES, properties={}), 0)
    clock.advance(10 * SECOND)
    assert len(store.pull("u", timeout=0)) == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"expires": 1, "delay": 2}, "would never be handed out"),
        ({"expires": -1}, "would never be handed out"),
        ({"expires": 1, "delay_level": 2}, "would never be handed out"),
        ({"expires": datetime(2027, 1, 1, tzinfo=UTC)}, "would never be handed out"),
        ({"expires": datetime(2028, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"expires": "1"}, "expires is '1'"),
        ({"expires_ms": 5}, "looks like seconds"),
        ({"expires_ms": 1.5}, "whole epoch milliseconds"),
        ({"expires": 1, "expires_ms": 4 * 10**12}, "exclude each other|aware"),
        ({"expires": timedelta.max}, "year 9999"),
    ],
)
def test_what_is_refused(store: TimerStore, given: dict[str, Any], why: str) -> None:
    for put in (
        lambda: store.put(b"x", **given),
        lambda: store.put_many([b"x"], **given),
        lambda: (
            store.put(b"x", key="k", replace=True, **given)
            if "delay_level" not in given
            else store.put(b"x", **given)
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            put()
    store.put(b"y", topic="t")
    (d,) = store.pull("t", timeout=0)
    with pytest.raises(InvalidArgumentError, match=why):
        d.ack_and_put(b"x", **given)
    assert store.count() == 0


def test_it_may_not_be_moved_behind_that(store: TimerStore) -> None:
    id = store.put(b"a", topic="t", delay=1, expires=5, key="k")
    with pytest.raises(InvalidArgumentError, match="would never be handed out"):
        store.reschedule(id, delay=6)
    assert store.get(id) is not None
    moved = store.get(store.reschedule(id, delay=5, body=b"c", properties={"a": "b"}))
    assert moved is not None and moved.expires_ms == START_MS + 5_000
    new = store.get(store.put(b"b", topic="t", delay=60, key="k", replace=True))
    assert new is not None and new.expires_ms is None
    newer = store.put(b"b", topic="t", key="k", debounce=60, expires=70)
    assert store.get(newer).expires_ms == START_MS + 70_000  # type: ignore[union-attr]


def test_ack_and_put_says_when(store: TimerStore, clock: ManualClock) -> None:
    store.put(b"a", topic="t")
    (d,) = store.pull("t", timeout=0)
    d.ack_and_put_many(
        [
            {"body": b"b", "delay": 1, "expires": 2},
            {"body": b"c", "delay_level": 1, "expires_ms": START_MS + 2_000},
            {"body": b"d", "delay": 1},
        ]
    )
    clock.advance(3 * SECOND)
    assert [d.body for d in store.pull("t", timeout=0)] == [b"d"]


# --- consumers


@pytest.mark.parametrize("ordered", [False, True, "key"])
@pytest.mark.parametrize("rule", ["drop", "dead_letter"])
def test_a_retry_that_would_come_later_is_none(
    store: TimerStore, clock: ManualClock, rule: Any, ordered: Any
) -> None:
    seen = list[tuple[bytes, int]]()

    def handle(d: Delivery) -> None:
        seen.append((d.body, d.attempt))
        raise ValueError("no such host")

    consumer = Consumer(store, "g", ordered=ordered, backoff=[4, 4, 60], expired=rule)
    consumer.subscribe("t", handle)
    with consumer:
        store.put(b"a", topic="t", key="k", expires=10)
        store.put(b"b", topic="t", key="k", delay=1, expires=100)
        clock.advance(9 * SECOND)
        assert [attempt for body, attempt in seen if body == b"a"] == [0, 1, 2]
        stats = group_of(store)
        assert stats.expired_count == 1 and stats.dead_count == (rule == "dead_letter")
        clock.advance(200 * SECOND)
    assert [attempt for body, attempt in seen if body == b"a"] == [0, 1, 2]
    assert [attempt for body, attempt in seen if body == b"b"][:3] == [0, 1, 2]
    letters = store.dead_letters("g")
    if rule == "drop":
        assert not letters
        return
    assert [each.body for each in letters][:1] == [b"a"]
    first = letters[0]
    assert first.error_type == "expired" and "ValueError: no such host" in first.error_text
    assert first.attempts == 3 and first.first_failed_ms == START_MS


def test_a_letter_that_is_put_back_comes(store: TimerStore, clock: ManualClock) -> None:
    seen = list[bytes]()
    consumer = Consumer(store, "g", expired="dead_letter")
    consumer.subscribe("t", lambda d: seen.append(d.body))
    with consumer:
        id = store.put(b"a", topic="t", delay=1, expires=2)
        store.pause("consuming")
        clock.advance(60 * SECOND)
        store.resume("consuming")
        clock.advance(SECOND)
        (letter,) = store.dead_letters("g")
        assert (letter.id, letter.error_type, letter.topic) == (id, "expired", "t") and not seen
        assert store.retry_dead_letters("g") == 1
        clock.advance(SECOND)
    assert seen == [b"a"]
    for topic in ("%DLQ%g", "t"):
        said = [d._handed.message(d._i) for d in store.consume(topic, group="other", timeout=0)]
        for message in said[-1:]:
            assert not message.flag and fmt.PROPERTY_EXPIRES.decode() not in message.properties


def test_a_broadcast_has_no_dead_letters(store: TimerStore) -> None:
    for wrong in ({"expired": "dead_letter", "broadcast": True}, {"expired": "x"}):
        with pytest.raises(InvalidArgumentError, match="expired"):
            Consumer(store, "g", **wrong)  # type: ignore[arg-type]
    seen = list[bytes]()
    clock = store.core.clock
    assert isinstance(clock, ManualClock)
    consumer = Consumer(store, "g", broadcast=True)
    consumer.subscribe("t", lambda d: seen.append(d.body))
    with consumer:
        store.put(b"a", topic="t", delay=1, expires=2)
        store.pause("firing")
        clock.advance(10 * SECOND)
        store.resume("firing")
        store.put(b"b", topic="t")
        clock.advance(SECOND)
    assert seen == [b"b"]


# --- crashes


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.on_disk
@pytest.mark.timeout(120 + 10 * STEPS)
def test_over_crashes_each_is_handled_or_a_dead_letter(tmp_path: Path) -> None:
    """After a kill or a power cut at any step nothing comes late, nothing is gone for good."""
    config = orders.config_of("group")
    with Program(expiring.work) as program:
        whole = program.run(tmp_path / "whole")
        crashed = 0
        for number in range(STEPS):
            step = (number * whole.step_count + SEED) // STEPS % whole.step_count
            for name, crash in (("kill", program.kill), ("power", program.cut_power)):
                path = tmp_path / f"{name}{step}"
                life = crash(path, step=step)
                crashed += life.crashed
                put = {each.split()[1] for each in life.said if each.startswith("put ")}
                rest = program.run(path)
                put |= {each.split()[1] for each in rest.said if each.startswith("put ")}
                came = {each.split()[1] for each in (*life.said, *rest.said) if "came" in each}
                assert not [each for each in (*life.said, *rest.said) if each.startswith("late")]
                program.check(path, config=config)
                with timerstore.open(path, config=config) as store:
                    letters = store.dead_letters("g")
                    assert {each.error_type for each in letters} <= {"expired"}
                    dead = {each.id for each in letters}
                    assert put <= came | dead
        assert crashed > STEPS


def test_the_largest_expires(tmp_path: Path) -> None:
    """What says when it expires takes room beside the body, and is refused before it does not."""
    with opened(tmp_path / "s") as store:
        largest = store.core.engine.content_bytes_max
        took = len(encode_property(fmt.PROPERTY_EXPIRES, b"%d" % START_MS))
        store.put(bytes(largest - took), topic="t", delay=60, expires=90)
        with pytest.raises(InvalidArgumentError, match=f"Pass {largest - took} at most"):
            store.put(bytes(largest - took + 1), topic="t", delay=60, expires=90)
        store.put_many([bytes(largest - took)], topic="t", delay=60, expires=90)
        with pytest.raises(InvalidArgumentError, match="at most"):
            store.put_many([bytes(largest - took + 1)], topic="t", delay=60, expires=90)
        store.put(b"a", topic="u")
        (d,) = store.pull("u", timeout=10)
        with pytest.raises(InvalidArgumentError, match=f"Pass {largest - took} at most"):
            d.ack_and_put(bytes(largest - took + 1), delay=60, expires=90)
        id = d.ack_and_put(bytes(largest - took), delay=60, expires=90)
        store.reschedule(id, delay=30)


def test_rows_that_are_exported_and_imported(
    store: TimerStore, clock: ManualClock, tmp_path: Path
) -> None:
    from timerstore.cli.import_rows import Columns, read_chunks
    from timerstore.cli.importing import put_rows

    store.put(b"a", topic="t", delay=5, expires=9, properties={"p": "1"})
    store.put_many([b"b", b"c"], topic="t", delay=5)
    store.put(b"d", topic="t", delay=5, expires=9)
    before = {timer.body: (timer.expires_ms, timer.properties) for timer in store.pending()}
    store.close()
    for form in ("jsonl", "csv", "parquet", "arrow"):
        file = tmp_path / f"rows.{form}"
        export(store.path, "pending", file, form)  # type: ignore[arg-type]
        with opened(tmp_path / form, ManualClock(START_MS)) as other:
            for rows in read_chunks(file, form, Columns(), "default", START_MS):
                put_rows(other, rows)
            after = {timer.body: (timer.expires_ms, timer.properties) for timer in other.pending()}
        assert after == before
