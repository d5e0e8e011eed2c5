"""Wrong arguments: whatever is passed to whatever parameter, the error is one of ours.

Every public call gets every wrong value in place of each of its arguments. It may well take one,
for some values are right in some places. What it must not do is raise anything else, hang, or leave
a store that is not sound.
"""

import inspect
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timerstore
from tests.small_store import SMALL
from tests.store_calls import WITHOUT_ARGUMENTS, arguments, methods
from timerstore import Config, InvalidArgumentError
from timerstore.offline.export import export
from timerstore.share.wire import to_json
from timerstore.tables import read_table
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.disk import Disk
from timerstore.validation import validate
from timerstore.values.check_arguments import DUE_MS_MAX, check_body

pytestmark = pytest.mark.slow

NOW_MS = 1_800_000_000_000
SECOND = timedelta(seconds=1)

AWARE = datetime(2099, 1, 1, tzinfo=UTC)
WRONG: list[Any] = [
    *(True, 0, 1, -1, 5, 10**12, 10**30, -(10**30), 1 << 63),
    *(0.0, 1.5, -1.0, 1e300, math.nan, math.inf, -math.inf),
    *("", "x", "1", "0" * 32, "a b", "\ud800", "a\0b", "\x01", "тема", "x" * 70_000),
    *(b"", b"x", bytearray(b"x"), memoryview(b"x")),
    *([], [5], [None], ["\ud800"], [[1], [1, 2]], (), set()),
    *({}, {"a": 5}, {5: "a"}, {"\ud800": "x"}),
    *(object(), object, len, iter("ab"), (each for each in "ab")),
    *(timedelta.max, timedelta.min, timedelta(-1), timedelta(microseconds=1)),
    *(AWARE, AWARE.replace(tzinfo=None)),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-23))),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23))),
    *(np.int64(5), np.float64("nan"), np.bool_(True), np.uint64(1 << 63)),
    *(np.datetime64("2030-01-01"), np.zeros(0), np.zeros(3), np.zeros((2, 2), np.uint8)),
    *(np.arange(3), np.array(["a", None]), np.array(5), memoryview(np.zeros((2, 2), np.uint8))),
    *(Decimal("sNaN"), Fraction(10**400), np.timedelta64(5), np.datetime64("NaT")),
    *(pa.array([], pa.binary()), pa.array([b"x", None]), pa.array([1, 2])),
    pa.chunked_array([["x"]]),
]


def name_of(value: Any) -> str:
    return f"{type(value).__name__} {repr(value)[:40]}"


def check(call: Callable[..., Any], good: dict[str, Any], names: list[str]) -> None:
    """Pass each wrong value as each named argument."""
    for name, wrong in itertools.product(names, WRONG):
        try:
            result = call(**(good | {name: wrong}))
            if inspect.isgenerator(result) or hasattr(result, "__next__"):
                for _ in zip(range(3), result, strict=False):
                    pass
                result.close()
        except timerstore.TimerStoreError as e:
            text = str(e)
            assert text.endswith((".", ")")), text
        except Exception as e:
            raise AssertionError(f"{name} = {name_of(wrong)}: {type(e).__name__}: {e}") from e


def parameters(call: Callable[..., Any]) -> list[str]:
    taken = inspect.signature(call).parameters.values()
    return [each.name for each in taken if each.name != "self" and each.kind != each.VAR_KEYWORD]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[timerstore.TimerStore]:
    clock = timerstore.ManualClock(NOW_MS)
    path = tmp_path / "store"
    store = timerstore.TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk())
    store.put_many([b"a", b"b", b"c", b"d"], topic="t")
    store.put(b"later", topic="t", delay=timedelta(hours=1))
    yield store
    store.core.clock.advance(SECOND)  # type: ignore[union-attr]
    count = store.count()
    assert len(list(store.pending())) == count
    store.close()
    report = timerstore.verify(path)
    assert report.ok, report
    assert report.pending_count == count


CALLS = arguments("0" * 32)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_store(store: timerstore.TimerStore, name: str) -> None:
    call, good = getattr(store, name), CALLS[name]
    numbers = itertools.count()

    def run(**arguments: Any) -> Any:
        if "group" in good and arguments["group"] is good["group"]:  # it has read nothing yet
            arguments["group"] = f"fresh{next(numbers)}"
        if name == "reschedule":
            arguments["id"] = good_id if arguments["id"] is good["id"] else arguments["id"]
        return call(**arguments)

    good_id = next(store.pending()).id if name == "reschedule" else ""
    check(run, good, parameters(call))


class Whole:
    """A whole number of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


WHOLE = dict.fromkeys(("limit", "max_count", "threads", "batch_count", "partitions"), 2)
WHOLE |= {"bucket_ms": 1_000, "delay_level": 1, "delay_ms": 5, "ack_index": 1}
WHOLE |= {"at_ms": NOW_MS + 60_000, "start_ms": NOW_MS, "end_ms": NOW_MS + 60_000}
WHOLE |= {"expires_ms": DUE_MS_MAX, "burst": 2, "skip": 2}
WHOLE |= {"pull_count": 8, "max_attempts": 3, "start": NOW_MS}
WHOLE |= {"split_bytes": 4_096, "roll_window_slots": 9}
"""A good value of each argument that takes a whole number."""


def whole_names(call: Callable[..., Any]) -> list[str]:
    """Return the arguments of a call that are whole numbers, by its types."""
    found = inspect.signature(call).parameters.values()
    names = [each.name for each in found if re.match(r"int\b|Start", str(each.annotation))]
    assert {*names} <= {*WHOLE}, call
    return names


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.array, Whole])
def test_whole_numbers_of_any_library(
    store: timerstore.TimerStore, kind: Callable[[int], Any]
) -> None:
    made = itertools.count()

    def arguments_of(name: str) -> dict[str, Any]:
        id = store.put(b"x", topic="t", key=f"k{next(made)}", at_ms=NOW_MS + 60_000)
        return arguments(id)[name]

    calls: list[tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = [
        *((getattr(store, name), partial(arguments_of, name)) for name in CALLS),
        (timerstore.Consumer, lambda: {"store": store, "group": "g", "rate": "9/s"}),
        (timerstore.Retry, dict),
        (timerstore.ManualClock, dict),
        (read_table, lambda: {"path": store.path, "table": "units"}),
        (validate, lambda: {"path": store.path}),
    ]
    count = 0
    for call, good in calls:
        for name in whole_names(call):
            given = good() | {name: kind(WHOLE[name])}
            if name in ("at_ms", "delay_ms"):
                given.pop("delay", None)
            result = call(**given)
            if hasattr(result, "__next__"):
                next(result, None)
            count += 1
            for wrong in (True, np.bool_(True)):
                with pytest.raises(timerstore.InvalidArgumentError):
                    list(call(**given | {name: wrong}))
    assert count > 20
    for field in fields(Config):
        if type(value := getattr(Config(), field.name)) is int:
            config = replace(Config(), **{field.name: kind(value)})
            assert config == Config() and type(getattr(config, field.name)) is int
    clock = timerstore.ManualClock(NOW_MS)
    clock.advance(np.int64(5))
    assert clock.now_ms == NOW_MS + 5_000
    assert to_json({"limit": kind(2), "keep": True}) == {"limit": 2, "keep": True}


def test_every_call_of_a_store_is_in_the_table() -> None:
    # A backup or a copy is written wherever its argument says: tests/offline has its wrong ones.
    assert methods(timerstore.TimerStore) == {*CALLS, *WITHOUT_ARGUMENTS, "backup", "follow"}


@pytest.mark.timeout(60)
def test_a_put_on_the_short_way(tmp_path: Path) -> None:
    """The first put of a topic makes its template; the next is compiled, and trusts nothing."""
    with timerstore.open(tmp_path / "store", config=SMALL) as store:
        good = {"body": b"x", "topic": "t", "at_ms": 10**13}
        for _ in range(2):
            store.put(**good)
        check(store.put, good, list(good))
        until = time.monotonic() + 30
        while len(list(store.pending())) != store.count():  # what is due now fires between the two
            assert time.monotonic() < until


@pytest.mark.timeout(60)
def test_what_a_store_hands_out(store: timerstore.TimerStore) -> None:
    batch = store.pull("t", group="g", timeout=0)
    check(batch.message, {}, ["i"])
    for delay in WRONG:
        first = next(iter(store.pull("t", group="h", max_count=1, timeout=0)), None)
        if first is not None:
            try:
                first.nack(delay)
            except timerstore.TimerStoreError:
                continue
    check(timerstore.Retry, {}, parameters(timerstore.Retry))
    check(timerstore.ManualClock, {}, ["start_ms"])


@pytest.mark.timeout(60)
def test_a_consumer(store: timerstore.TimerStore) -> None:
    good = {"store": store, "group": "g"}
    check(timerstore.Consumer, good, parameters(timerstore.Consumer))
    consumer = timerstore.Consumer(store, "g")
    check(consumer.retry_dead_letters, {}, ["limit"])
    numbers = itertools.count()

    TOPIC = "t"

    def subscribe(**given: Any) -> None:
        topic = f"t{next(numbers)}" if given["topic"] is TOPIC else given["topic"]
        timerstore.Consumer(store, "g").subscribe(topic, given["handler"], tags=given["tags"])

    check(subscribe, {"topic": TOPIC, "handler": print, "tags": "*"}, ["topic", "handler", "tags"])
    check(lambda topic: consumer.on(topic)(print), {"topic": "t"}, ["topic"])
    for start in WRONG:
        try:
            made = timerstore.Consumer(store, f"s{next(numbers)}", start=start)
        except timerstore.TimerStoreError:
            continue
        made.subscribe("t", lambda d: None)
        made.step()
        check(made.close, {}, ["timeout"])


@pytest.mark.timeout(60)
def test_a_clock(store: timerstore.TimerStore) -> None:
    clock = timerstore.ManualClock(NOW_MS)  # of its own: a store would play all those years
    check(clock.advance, {}, ["by"])


@pytest.mark.slow
def test_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sync", "sync_folder"):  # hundreds of openings wait for no disk
        monkeypatch.setattr(Disk, name, lambda *_: None)
    timerstore.open(tmp_path / "store", config=SMALL).close()
    good = {"path": tmp_path / "store", "config": SMALL, "clock": timerstore.ManualClock()}

    def opened(**given: Any) -> None:
        timerstore.open(**given).close()

    check(opened, good, ["path", "create", "read_only", "config", "clock"])
    check(opened, good | {"read_only": True}, ["path", "config", "clock"])
    path = {"path": tmp_path / "store"}
    check(timerstore.verify, path, ["path", "config"])
    names = ["path", "upto", "delay_levels", "roll_window_slots"]
    check(validate, path, names)
    out = {"table": "pending", "out": tmp_path / "out.jsonl"}
    check(export, path | out, ["path", "table", "out", "format", "config"])
    tables = path | {"table": "timers"}
    names = ["path", "table", "columns", "upto", "delay_levels"]
    check(read_table, tables, names)
    for value in (0, -1, "x", 1.5, None, True, 10**30):  # a small number is right, and slow
        for name in ("split_bytes", "partitions"):
            if (name, value) != ("partitions", None):
                with pytest.raises(timerstore.InvalidArgumentError, match=name):
                    read_table(**tables, **{name: value})


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [field.name for field in fields(timerstore.Config)])
def test_settings(tmp_path: Path, name: str) -> None:
    """What a configuration takes opens a store, or is refused there."""
    small = {field.name: getattr(SMALL, field.name) for field in fields(SMALL)}
    check(timerstore.Config, small, [name])
    for i, value in enumerate(WRONG):
        try:
            config = timerstore.Config(**(small | {name: value}))
        except timerstore.TimerStoreError:
            continue
        clock = timerstore.ManualClock()
        try:
            made = timerstore.TimerStore(
                tmp_path / str(i), config=config, clock=clock, disk=QuietDisk()
            )
        except timerstore.TimerStoreError:
            continue
        try:
            made.put(b"x", delay=SECOND)
            made.put(b"x", delay_level=1)
            clock.advance(2 * SECOND)
            made.flush()
        except timerstore.TimerStoreError:
            pass
        made.close()


@pytest.mark.timeout(60)
def test_settings_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "settings.toml"
    texts = [b"\xff", b"a = [", b"timerstore = 5", b"[timerstore]\nx = 1", b"durability = 5"]
    for text in [*texts, b"a = " + b"[" * 100_000, b"# " + b"x" * (1 << 21)]:
        file.write_bytes(text)
        with pytest.raises(timerstore.InvalidArgumentError):
            timerstore.Config.from_toml(file)
    check(timerstore.Config.from_toml, {}, ["path"])
    with pytest.raises(timerstore.InvalidArgumentError):
        timerstore.Config.from_toml(tmp_path)


@pytest.mark.timeout(60)
def test_waiting_for_ever_is_not_what_no_number_means(store: timerstore.TimerStore) -> None:
    for timeout in (math.nan, "1", True):
        with pytest.raises(timerstore.InvalidArgumentError, match="timeout is"):
            store.pull("nothing", timeout=timeout)
        with pytest.raises(timerstore.InvalidArgumentError, match="timeout is"):
            store.consume("nothing", timeout=timeout)


def test_what_lies_beyond_the_year_9999(store: timerstore.TimerStore) -> None:
    (d, *_) = store.pull("t", timeout=0)
    for delay in (timedelta.max, timedelta(days=3_000_000)):
        with pytest.raises(timerstore.InvalidArgumentError, match=r"(past|after) the year 9999"):
            store.put(b"x", delay=delay)
        with pytest.raises(timerstore.InvalidArgumentError, match=r"(past|after) the year 9999"):
            d.nack(delay)
    d.nack(SECOND)  # it was not acknowledged by the refusals
    store.core.clock.advance(SECOND)  # type: ignore[union-attr]
    assert d.id in [each.id for each in store.pull("t", timeout=0)]


@pytest.mark.parametrize("bodies", [["a"], [b"a", "b"], (bytearray(b"a"), "b")])
def test_many_bodies_of_text_are_refused_as_one_is(
    store: timerstore.TimerStore, bodies: list[bytes]
) -> None:
    with pytest.raises(timerstore.InvalidArgumentError, match="contains str"):
        store.put_many(bodies)


def test_many_bodies_are_no_buffer_and_keys_are_texts(store: timerstore.TimerStore) -> None:
    for bodies in (memoryview(b"ab"), memoryview(np.zeros((2, 2), np.uint8)), bytearray(b"a")):
        with pytest.raises(timerstore.InvalidArgumentError, match="has the type"):
            store.put_many(bodies)  # type: ignore[arg-type]
    with pytest.raises(timerstore.InvalidArgumentError, match="Pass only texts"):
        store.put_many([b"a"], keys=[None])  # type: ignore[list-item]


def test_larger_segments_help_only_where_segments_are_small(store: timerstore.TimerStore) -> None:
    with pytest.raises(InvalidArgumentError, match="or make a store with larger segments"):
        store.put(b"x" * (1 << 20), topic="t")
    for bytes_max in (4 << 20, (4 << 20) - 640):  # of a cluster, of the largest segments
        with pytest.raises(InvalidArgumentError, match=r"Pass \d+ at most\.$"):
            check_body(b"x" * (5 << 20), 0, bytes_max)


def test_a_topic_s_wrong_character_is_named(tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        for topic, wrong in (("orders.eu", "'.'"), ("a b", "' '"), ("größe", "'ö'")):
            with pytest.raises(timerstore.InvalidArgumentError, match=f"{wrong} is not allowed"):
                store.put(b"x", topic=topic)


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with timerstore.open("~/s", config=SMALL) as store:
        assert store.path == tmp_path / "s"
