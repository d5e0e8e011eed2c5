"""Times of Python, NumPy, pandas, Arrow: what is unambiguous is taken."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import timerstore
from timerstore import InvalidArgumentError, ManualClock, Retry
from timerstore.recurring import every
from timerstore.values.kinds import check_timeout

START_MS = 1_800_000_000_000
MS = timedelta(milliseconds=1)


def due_after(store: timerstore.TimerStore, **given: Any) -> int:
    timer = store.get(store.put(b"x", **given))
    assert timer is not None
    return timer.due_ms - START_MS


LENGTHS = [
    *(5, 5.0, np.int64(5), np.int8(5), np.float64(5), np.float32(5), Decimal(5), Fraction(5)),
    *(np.timedelta64(5, "s"), np.timedelta64(5_000, "ms"), pd.Timedelta("5s")),
    *(np.timedelta64(4_999_999_999, "ns"), pd.Timedelta(4_999_000_001)),
]
AT_MS = START_MS + 5_000
AT = datetime.fromtimestamp(AT_MS / 1_000, UTC)
INSTANTS = [
    *(AT, pd.Timestamp(AT), pd.Timestamp(AT).tz_convert("Asia/Tokyo")),
    *(np.datetime64(AT_MS, "ms"), np.datetime64(AT_MS * 1_000_000 - 1, "ns")),
]
NO_LENGTHS = [
    *(
        Decimal("sNaN"),
        Fraction(10**400),
        True,
        np.bool_(True),
        "5",
        float("nan"),
        pd.NaT,
        np.timedelta64("NaT"),
        10**20,
    ),
    *(np.timedelta64(1, "Y"), np.timedelta64(1), np.timedelta64(10**17, "s"), [5], None),
]
NO_INSTANTS = [
    *(pd.NaT, np.datetime64("NaT"), AT.replace(tzinfo=None), pd.Timestamp(AT_MS * 1_000_000)),
    *(AT_MS, float(AT_MS), "now", np.datetime64(10**18, "s"), np.timedelta64(1, "s"), AT.date()),
]


def kind_of(value: object) -> str:
    """A test's name for a value: every process must find the same, so no address is in it."""
    return value if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize("length", LENGTHS, ids=kind_of)
def test_every_library_s_length_of_time(tmp_path: Path, length: Any) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store:
        assert due_after(store, delay=length) == 5_000
        id = store.reschedule(store.put(b"x", delay=9), delay=length)
        assert [each.due_ms for each in store.pending() if each.id == id] == [AT_MS]
        (id,) = store.put_many([b"x"], delay=length)
        assert [each.due_ms for each in store.pending() if each.id == id] == [AT_MS]
        store.put(b"x", topic="t")
        (delivery,) = store.pull("t", timeout=0)
        delivery.nack(delay=length)
    assert Retry(delay=length).delay == every(length).to_dict()["every_ms"] * MS == 5_000 * MS
    assert check_timeout(length) == 5


@pytest.mark.parametrize("at", INSTANTS, ids=kind_of)
def test_every_library_s_instant(tmp_path: Path, at: Any) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store:
        assert due_after(store, at=at) == due_after(store, at=at) == 5_000  # the short way too
        store.reschedule(store.put(b"x", delay=9), at=at)
        store.put_many([b"x"], at=at)
        assert {each.due_ms for each in store.pending()} == {AT_MS}
        assert len(list(store.pending(start=at))) == 4 and not list(store.pending(end=at))


@pytest.mark.parametrize(("name", "value"), [
    *(("delay", each) for each in NO_LENGTHS if each is not None),
    *(("at", each) for each in NO_INSTANTS),
    *(("delay_ms", each) for each in (np.timedelta64(1, "ms"), 5.0, True)),
    *(("at_ms", each) for each in (np.timedelta64(AT_MS, "ms"), float(AT_MS), True)),
], ids=kind_of)  # fmt: skip
def test_what_is_no_time_is_refused_by_its_name(tmp_path: Path, name: str, value: Any) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store:
        store.put(b"x")  # the next would take the short way
        for call in (store.put, lambda body, **given: store.put_many([body], **given)):
            if call is not store.put and (value == [5] or name.endswith("_ms")):
                continue
            with pytest.raises(InvalidArgumentError, match=r"\b(delay|at|due time)"):
                call(b"x", **{name: value})


LONG_AGO = datetime(1900, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("at", [
    *(LONG_AGO, datetime.min.replace(tzinfo=UTC), pd.Timestamp(LONG_AGO)),
    *(np.datetime64("1900-01-01"), np.datetime64(-(2**62), "Y")),
], ids=kind_of)  # fmt: skip
def test_an_instant_of_long_ago_is_no_number_of_seconds(tmp_path: Path, at: Any) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store:
        for _ in range(2):  # the second on the short way
            store.put(b"x", at=at)
        store.put_many([b"x"], at=at)
        store.put_many([b"x"], at=np.array([at, AT])[:1])
        store.reschedule(store.put(b"x", delay=9), at=at)
        assert len(store.pull("default", timeout=0, max_count=9)) == 5
        store.put(b"x", delay=9)
        assert len(list(store.pending(start=at))) == 1 == store.pending_columns(start=at).num_rows
        assert not list(store.pending(end=at)) and not store.horizon(1_000, end=at).count.sum()
        assert len(list(store.pending(end=datetime.max.replace(tzinfo=UTC)))) == 1


SERIES = pd.Series([AT, AT + timedelta(seconds=1)])


@pytest.mark.parametrize(("name", "values"), [
    *(("at", SERIES), ("at_ms", SERIES), ("at", SERIES.dt.tz_convert("Asia/Tokyo"))),
    *(("at", pd.DatetimeIndex(SERIES)), ("at", list(SERIES)), ("at", SERIES.to_list())),
    *(("at", SERIES.dt.tz_convert(None).to_numpy()), ("at_ms", SERIES.to_numpy("M8[s]"))),
    *(("at", pa.array(SERIES)), ("at", pa.chunked_array([pa.array(SERIES)]))),
    *(("delay", [5, timedelta(seconds=6)]), ("delay", np.array([5, 6])), ("delay", (5.0, 6))),
    *(("delay", np.array([5, 6], "m8[s]")), ("delay_ms", np.array([5, 6], "m8[s]"))),
    *(("delay", pd.to_timedelta([5, 6], "s")), ("delay", pa.array([timedelta(seconds=5)] * 2))),
    *(("delay_ms", [5_000, 6_000]), ("at_ms", pd.Series([AT_MS, AT_MS + 1_000]))),
], ids=kind_of)  # fmt: skip
def test_arrays_of_times(tmp_path: Path, name: str, values: Any) -> None:
    with timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store:
        store.put_many([b"a", b"b"], **{name: values})
        first, second = sorted(each.due_ms for each in store.pending())
        assert first == AT_MS and second in (AT_MS, AT_MS + 1_000)
        for each in ("delay", "delay_ms", "at", "at_ms"):
            assert not len(store.put_many([], **{each: []}))
            with pytest.raises(InvalidArgumentError, match=each.removesuffix("_ms")):
                store.put_many([b"a"], **{each: []})


@pytest.mark.parametrize(("name", "values"), [
    *(("at", SERIES.dt.tz_convert(None)), ("at_ms", SERIES.dt.tz_convert(None))),
    *(("at", [AT, None]), ("at", [AT_MS]), ("at", np.array([AT_MS])), ("at", pa.array([AT, None]))),
    *(("delay", [True, False]), ("delay", np.array([1.0, np.nan])), ("delay", "ab")),
    *(("delay_ms", np.array([1, 2], object)), ("delay_ms", [1.5, 2.0])),
    *(("at_ms", np.array([1, 2], "m8[s]")), ("delay_ms", SERIES)),
], ids=kind_of)  # fmt: skip
def test_arrays_that_are_no_times(tmp_path: Path, name: str, values: Any) -> None:
    with (
        timerstore.open(tmp_path / "s", clock=ManualClock(START_MS)) as store,
        pytest.raises(InvalidArgumentError, match=name),
    ):
        store.put_many([b"x"] * len(values), **{name: values})
