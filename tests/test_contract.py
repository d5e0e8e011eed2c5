"""What each kind of store does alike: a store, awaited or not, a client of one, one that is shared.

A test takes `store`, which has the files, and `client`, which makes the calls and may be that store
itself. What only one kind does is tested beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import timerstore
from tests.rigs.awaited import awaited
from tests.small_store import SMALL
from timerstore import (
    AnyStore,
    InvalidArgumentError,
    ReadOnlyError,
    TimerStore,
    TimerStoreError,
    TooLateError,
)
from timerstore.values.times import now_ms

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
HOUR = timedelta(hours=1)
AT = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        timerstore.serve(store)
        yield store


@pytest.fixture(params=["store", "client", "shared", "awaited"])
def client(request: pytest.FixtureRequest, store: TimerStore) -> Iterator[AnyStore]:
    """Who makes the calls."""
    if request.param == "store":
        yield store
    elif request.param == "client":
        with timerstore.connect(store.path, timeout=5) as client:
            yield client
    elif request.param == "awaited":
        with awaited(store) as client:
            yield client
    else:
        with timerstore.open(store.path, share=True, config=SMALL) as shared:
            yield shared


def test_what_is_put_is_what_the_store_says(store: TimerStore, client: AnyStore) -> None:
    described = {"key": "k", "tag": "a", "properties": {"p": "ü", "q": "2"}}
    ids = [
        client.put(b"x", topic="t", delay=HOUR, **described),  # type: ignore[arg-type]
        client.put(b"y" * 1_000, topic="t", at=datetime(2099, 1, 1, tzinfo=UTC)),
        client.put(b"z", topic="u", at_ms=4_000_000_000_000),
        client.put(b"w", topic="u", delay_level=18),
    ]
    many = client.put_many([b"1", b"22"], topic="t", delay_ms=3_600_000, keys=["a", "b"], tag="g")
    ids += [*many, *client.put_many(np.full((2, 3), 7, np.uint8), topic="t", delay_level=17)]
    arrow = pa.chunked_array([pa.array([b"one", b"two"])])
    ids += client.put_many(arrow, topic="v", at_ms=np.array([4 * 10**12, 5 * 10**12]))
    assert len(client.put_many([], topic="t")) == 0
    timers = {id: store.get(id) for id in ids}
    assert {id: client.get(id) for id in ids} == timers and None not in timers.values()
    first = timers[ids[0]]
    assert first is not None
    assert (first.key, first.tag, first.properties) == ("k", "a", {"p": "ü", "q": "2"})
    assert [timers[id].key for id in many] == ["a", "b"]  # type: ignore[union-attr]
    assert list(client.pending()) == list(store.pending())
    assert list(client.pending(topic="u", limit=1)) == list(store.pending(topic="u", limit=1))
    assert client.pending_columns(columns=["id"]).equals(store.pending_columns(columns=["id"]))
    assert client.count() == store.count() == 10 and client.count("u") == 2
    assert client.horizon(1_000).start_ms.tolist() == store.horizon(1_000).start_ms.tolist()
    assert client.upcoming() == store.upcoming()
    assert client.stats().topics == store.stats().topics
    client.flush()
    assert client.health().state == "running"
    assert client.cancel(ids[0]) and client.get(ids[0]) is None
    assert client.find(ids[0]) == store.find(ids[0]) and client.find(ids[0]).state == "cancelled"
    assert client.cancel_many(ids[:2]).tolist() == [True, True]
    moved = client.reschedule(ids[2], delay=HOUR, body=b"zz", properties={"a": "b"})
    assert store.get(ids[2]) is None and store.get(moved).body == b"zz"  # type: ignore[union-attr]
    assert client.put(b"?", topic="t", delay=HOUR, key="a", if_absent=True) == many[0]
    other = client.put(b"!", topic="t", delay=HOUR, key="a", replace=True, properties={"n": "1"})
    assert client.get_key("t", "a") == store.get(other) and store.get(many[0]) is None
    assert client.get_key("t", "nobody") is None
    assert [each.id for each in client.pending(topic="t", key="a")] == [other]
    assert client.cancel_key("t", "a") == 1
    fired = client.put(b"now", topic="w")
    client.pull("w", group="g", timeout=30).ack()
    found = client.find(fired)
    assert found == store.find(fired) and found.groups[0].state == "done"


@pytest.mark.parametrize("properties", [{}, {"a": "b"}])
def test_properties_are_any_mapping(client: AnyStore, properties: dict[str, str]) -> None:
    given = MappingProxyType(properties)
    for named in ({}, {"key": "k"}, {"key": "k", "replace": True}, {"tag": "t"}):
        id = client.put(b"x", delay=HOUR, properties=given, **named)
        assert client.get(id).properties == properties  # type: ignore[union-attr]
    client.put(b"now", topic="t")
    for d in client.consume("t", timeout=0.2):
        id = d.ack_and_put(b"next", delay=HOUR, properties=given)
        assert client.get(id).properties == properties  # type: ignore[union-attr]


def test_properties_are_text_whatever_their_names(store: TimerStore, client: AnyStore) -> None:
    for properties in ({"base64": "aGVsbG8="}, {"base64": "hello!"}, {"object": "x"}):
        id = client.put(b"x", delay=HOUR, key="k", replace=True, properties=properties)
        for each in (store.get(id), client.get(id), client.get_key("default", "k")):
            assert each is not None and each.properties == properties
        assert [each.properties for each in client.pending()] == [properties]
        id = client.reschedule(id, properties={"base64": "aGVsbG8="})
        assert store.get(id).properties == {"base64": "aGVsbG8="}  # type: ignore[union-attr]
        client.put(b"now", topic="t", properties=properties)
        for d in client.consume("t", timeout=5):
            assert d.properties == properties
            client.cancel(d.ack_and_put(b"next", delay=HOUR, properties=properties))
            break


def test_a_value_goes_as_json(store: TimerStore, client: AnyStore) -> None:
    value = {"ü": [1, 2.5, None, True], "text": "\u2028"}
    client.put_json(value, topic="t", key="k", properties={"a": "b"})
    (d,) = client.pull("t", timeout=10)
    assert d.json() == value and (d.key, d.properties) == ("k", {"a": "b"})
    d.ack_and_put(b"no JSON")
    (d,) = store.pull("t", timeout=10)
    with pytest.raises(ValueError, match="Expecting value"):
        d.json()


def test_the_rows_of_a_table_are_timers(store: TimerStore, client: AnyStore) -> None:
    late = datetime(2099, 1, 1, tzinfo=UTC)
    texts = pa.array(["a", "b"])
    due: list[Any] = [pa.array([late, late]), pa.array([HOUR, HOUR]), pa.array([4 * 10**12] * 2)]
    bodies = [
        texts,
        texts.cast(pa.binary()),
        texts.dictionary_encode(),
        texts.cast(pa.string_view()),
    ]
    for times, body in itertools.product(due, bodies):
        for kind in (pa.table, pa.record_batch, lambda columns: pa.table(columns).to_pandas()):
            if kind not in (pa.table, pa.record_batch) and body.type == pa.string_view():
                continue  # pandas has none
            table = kind({"when": times, "what": body, "who": texts})
            ids = client.put_table(table, due="when", body="what", key="who", topic="t", tag="g")
            found = [store.get(id) for id in ids]
            assert [(t.body, t.key, t.tag, t.topic) for t in found if t] == [
                (b"a", "a", "g", "t"),
                (b"b", "b", "g", "t"),
            ]
            assert all(t.due == late for t in found if t) or times is not due[0]
            assert store.cancel_many(ids).all()
    assert len(client.put_table(pa.table({"body": texts}).slice(2), due=None)) == 0
    assert len(client.put_table(pa.table({"body": texts}), due=None, topic="now")) == 2
    batch = client.pull("now", timeout=10)
    assert sorted(batch.bodies.to_pylist()) == [b"a", b"b"]


def test_a_herd_is_spread(client: AnyStore) -> None:
    ids = [client.put(b"x", at=AT, jitter=HOUR) for _ in range(20)]
    ids += client.put_many([b"x"] * 20, at=AT, jitter=HOUR)
    table = pa.table({"due": [AT] * 20, "body": ["x"] * 20})
    ids += client.put_table(table, jitter=timedelta(hours=1))
    due = [timer.due for timer in map(client.get, ids) if timer is not None]
    assert len(due) == 60 and len(set(due)) > 50
    assert AT <= min(due) and max(due) <= AT + HOUR


def test_what_expires_is_not_handed_out(store: TimerStore, client: AnyStore) -> None:
    past = datetime.now(UTC) - HOUR
    late = [client.put(b"a", topic="t", at=past, expires=past + timedelta(minutes=1))]
    late += client.put_many([b"b"] * 2, topic="t", at=past, expires=past, tag="g")
    table = pa.table({"due": [past], "body": ["c"]})
    late += client.put_table(table, topic="t", expires=past)
    client.put_json({}, topic="t", expires=3_600.5)
    far = client.put(b"d", topic="t", at=AT, expires_ms=5 * 10**12, delay_ms=None)
    (d,) = client.pull("t", timeout=10)
    assert d.json() == {} and d.expires_ms is not None and d.expires_ms > d.due_ms + 3_600_000
    id = d.ack_and_put(b"e", topic="u", delay=1, expires=HOUR)
    assert client.get(id) == store.get(id) and client.get(far).expires_ms == 5 * 10**12  # type: ignore[union-attr]
    assert client.get(id).expires_ms is not None  # type: ignore[union-attr]
    assert client.find(late[0]).state == "expired"
    (row,) = [each for each in client.stats().groups if each.topic == "t"]
    assert row.expired_count == 4 and client.dead_letters("default") == []


def test_a_key_is_debounced(store: TimerStore, client: AnyStore) -> None:
    how = {"topic": "t", "key": "k", "debounce": HOUR, "at_most": timedelta(hours=1, seconds=1)}
    began_ms = now_ms()
    ids = [client.put(b"%d" % i, **how, properties={"i": str(i)}) for i in range(3)]  # type: ignore[arg-type]
    assert client.count("t") == 1
    timer = client.get(ids[2])
    assert timer == store.get(ids[2]) and timer is not None
    first, put_ms = timer.first_put_ms, store.find(ids[0]).put_ms
    assert first is not None and put_ms is not None and first <= put_ms
    assert (timer.body, timer.properties) == (b"2", {"i": "2"})
    assert began_ms + 3_600_000 <= timer.due_ms <= first + 3_601_000
    assert client.find(ids[0]).moved_to == ids[1]
    id = client.put_json({}, topic="t", key="j", debounce=3_600.5)
    found = client.find(id)
    assert found.due_ms is not None and found.put_ms is not None
    assert began_ms <= found.due_ms - 3_600_500 <= found.put_ms


WRONG: list[Callable[[Any], object]] = [
    lambda s: s.put("x"),
    lambda s: s.put(b""),
    lambda s: s.put(b"x", topic="no topic"),
    lambda s: s.put(b"x", topic=3),
    lambda s: s.put(b"x" * (5 << 20)),
    lambda s: s.put(b"x", delay="5"),
    lambda s: s.put(b"x", delay=HOUR, at_ms=4 * 10**12),
    lambda s: s.put(b"x", delay=HOUR, delay_level=1),
    lambda s: s.put(b"x", delay_level="1"),
    lambda s: s.put(b"x", properties={"TAGS": "x"}),
    lambda s: s.put(b"x", properties={1: "x"}),
    lambda s: s.put(b"x", key=""),
    lambda s: s.put(b"x", delay=2, expires=1),
    lambda s: s.put(b"x", delay_level=2, expires=1),
    lambda s: s.put(b"x", expires="1"),
    lambda s: s.put(b"x", expires_ms=5),
    lambda s: s.put(b"x", expires=1, expires_ms=4 * 10**12),
    lambda s: s.put_many([b"x"], delay=2, expires=1),
    lambda s: s.put_many([b"x"], expires_ms="x"),
    lambda s: s.put(b"x", jitter=-1),
    lambda s: s.put(b"x", jitter=1, delay_level=1),
    lambda s: s.put_many([b"x"], jitter=-1),
    lambda s: s.put_many([b"x"], jitter=1, delay_level=1),
    lambda s: s.put(b"x", debounce=1),
    lambda s: s.put(b"x", key="k", at_most=1),
    lambda s: s.put(b"x", key="k", debounce=1, delay=1),
    lambda s: s.put(b"x", key="k", debounce=1, jitter=1),
    lambda s: s.put(b"x", key="k", debounce=1, delay_level=1),
    lambda s: s.put(b"x", key="k", debounce=1, if_absent=True),
    lambda s: s.put(b"x", key="k", debounce="1"),
    lambda s: s.put(b"x", key="k", debounce=-1),
    lambda s: s.put(b"x", key="k", debounce=2, at_most=1),
    lambda s: s.put(b"x", if_absent=True),
    lambda s: s.put(b"x", key="k", replace="yes"),
    lambda s: s.get_key("t", ""),
    lambda s: s.put_json(b"x"),
    lambda s: s.put_json({"a": float("nan")}),
    lambda s: s.put_json({}, topic="no topic"),
    lambda s: s.put_table([b"x"]),
    lambda s: s.put_table(pa.table({"due": [1]})),
    lambda s: s.put_table(pa.table({"due": [4 * 10**12], "body": ["x"]}), key="key"),
    lambda s: s.put_table(pa.table({"due": ["x"], "body": ["x"]})),
    lambda s: s.put_table(pa.table({"due": [None, 4 * 10**12], "body": ["x", "y"]})),
    lambda s: s.put_table(pa.table({"due": [4 * 10**12], "body": [7]})),
    lambda s: s.put_many(b"x"),
    lambda s: s.put_many([b"x", 3]),
    lambda s: s.put_many([b"x", b""]),
    lambda s: s.put_many([b"x"], keys=["a", "b"]),
    lambda s: s.put_many([b"x"], keys=[""]),
    lambda s: s.put_many([b"x"], delay_ms=[1.5]),
    lambda s: s.put_many([b"x"], topic="no topic"),
    lambda s: s.cancel("00"),
    lambda s: s.cancel(b"x"),
    lambda s: s.cancel_many("00"),
    lambda s: s.get(7),
    lambda s: s.reschedule("00", at_ms=5),
    lambda s: s.reschedule("00", delay=HOUR),
    lambda s: s.horizon(0),
    lambda s: s.count(7),
    lambda s: s.pull("t", max_count=0),
    lambda s: s.pull("t", timeout="x"),
    lambda s: s.pull("t", group="a b", timeout=0),
    lambda s: next(s.consume("no/topic", timeout=0)),
    lambda s: next(s.pending(limit="x")),
    lambda s: s.dead_letters("a b"),
    lambda s: s.dead_letters("g", -1),
    lambda s: s.retry_dead_letters("g", ids="x"),
    lambda s: s.retry_dead_letters("g", -1),
    lambda s: s.pause("sleeping"),
    lambda s: s.pause("firing", duration="5"),
    lambda s: s.pending_columns(columns=["what"]),
]


def test_errors_are_the_same(store: TimerStore, client: AnyStore) -> None:
    for i, wrong in enumerate(WRONG):
        told = []
        for each in (store, client):
            with pytest.raises(TimerStoreError) as raised:
                wrong(each)
            told.append((type(raised.value), str(raised.value)))
        (kind, text), (kind_there, text_there) = told
        assert kind is kind_there, i
        assert text == text_there or "Pass" in text_there, i


def test_errors_of_a_state(store: TimerStore, client: AnyStore) -> None:
    id = client.put(b"x", delay=HOUR)
    assert store.cancel(id)
    with pytest.raises(TooLateError, match="fired or cancelled"):
        client.reschedule(id, delay=HOUR)
    client.pause("putting", duration=HOUR)
    with pytest.raises(timerstore.PausedError, match="Putting is paused"):
        client.put_many([b"x"])
    client.resume("putting")
    client.put(b"x")


@pytest.fixture(params=["plain", "awaited"])
def looking(request: pytest.FixtureRequest, store: TimerStore) -> Iterator[AnyStore]:
    """Who has opened the same files to look at them."""
    with ExitStack() as stack:
        opened = timerstore.open(store.path, read_only=True)
        stack.enter_context(opened)
        yield stack.enter_context(awaited(opened)) if request.param == "awaited" else opened


CHANGING: list[Callable[[Any, str], object]] = [
    lambda s, id: s.put(b"x"),
    lambda s, id: s.put_many([b"x"]),
    lambda s, id: s.cancel(id),
    lambda s, id: s.cancel_many([id]),
    lambda s, id: s.cancel_key("t", "k"),
    lambda s, id: s.reschedule(id, delay=HOUR),
    lambda s, id: next(s.consume("t")),
    lambda s, id: s.pull("t"),
    lambda s, id: s.flush(),
    lambda s, id: s.handover(),
]


@pytest.fixture
def filled(store: TimerStore) -> list[str]:
    return list(
        store.put_many([b"a", b"b"], topic="t", delay_ms=[10**9, 2 * 10**9], keys=["k", "l"])
    )


def test_who_looks_sees_what_the_store_says_and_changes_nothing(
    store: TimerStore, filled: list[str], looking: AnyStore
) -> None:
    assert [looking.get(id) for id in filled] == [store.get(id) for id in filled]
    assert looking.get_key("t", "k") == store.get_key("t", "k")
    assert list(looking.pending()) == list(store.pending()) and looking.count("t") == 2
    assert looking.pending_columns().equals(store.pending_columns())
    assert looking.horizon(1_000).start_ms.tolist() == store.horizon(1_000).start_ms.tolist()
    for change in CHANGING:
        with pytest.raises(ReadOnlyError, match="read_only=True"):
            change(looking, filled[0])
    looking.close()
    with pytest.raises(TimerStoreError):
        looking.count()
    assert store.count() == 2


def test_messages_are_handed_out_and_settled(store: TimerStore, client: AnyStore) -> None:
    ids = client.put_many(
        [b"%d" % i for i in range(6)], topic="t", keys=[f"k{i}" for i in range(6)]
    )
    batch = client.pull("t", max_count=3, timeout=10)
    assert isinstance(batch, timerstore.Batch) and len(batch) == 3
    assert batch.ids.to_pylist() == list(ids[:3]) and batch.to_arrow().num_rows == 3
    zero, one, two = batch
    assert (zero.body, zero.key, zero.tag, zero.properties, zero.attempt) == (
        b"0",
        "k0",
        None,
        {},
        0,
    )
    assert zero.topic == "t" and zero.lateness_ms >= 0 and zero.id == ids[0]
    zero.ack()
    zero.ack()  # twice does nothing
    one.nack()
    two.nack(timedelta(hours=1))
    other = store.pull("t", timeout=10)
    assert other.ids.to_pylist() == list(ids[3:])
    other.ack()
    again = client.pull("t", timeout=10)
    assert again.ids.to_pylist() == [ids[1]] and next(iter(again)).attempt == 1
    again.ack()
    assert len(client.pull("t", timeout=0)) == 0
    assert [each.body for each in client.pending()] == [b"2"]
    assert store.stats().groups and client.dead_letters("default") == []
    assert client.retry_dead_letters("default") == 0


def test_a_message_is_acknowledged_with_what_comes_in_its_place(
    store: TimerStore, client: AnyStore
) -> None:
    client.put_many([b"a", b"b"], topic="t")
    first, second = client.pull("t", timeout=10)
    next_id = first.ack_and_put(b"later", delay=HOUR, key="k")
    ids = second.ack_and_put_many([{"body": b"1", "delay_level": 18}, {"body": b"2", "at": AT}])
    assert [store.get(id).body for id in (next_id, *ids)] == [b"later", b"1", b"2"]  # type: ignore[union-attr]
    with pytest.raises(TooLateError, match="Nothing was put"):
        second.ack_and_put(b"x")
    with pytest.raises(InvalidArgumentError):
        second.ack_and_put_many([{"topic": "t"}])
    with pytest.raises(InvalidArgumentError):
        second.ack_and_put(b"x", delay=HOUR, delay_level=1)
    assert store.count() == 3 and len(store.pull("t", timeout=0)) == 0
    client.put(b"c", topic="t")
    (third,) = client.pull("t", timeout=10)
    assert third.ack_and_put(b"not", key="k", if_absent=True) == next_id and store.count() == 3


def test_an_iterator_gives_back_what_it_did_not_yield(store: TimerStore, client: AnyStore) -> None:
    client.put_many([b"%d" % i for i in range(10)], topic="t")
    for d in client.consume("t", timeout=10):
        d.ack()
        break
    assert sorted(d.body for d in store.consume("t", timeout=0.5)) == [
        b"%d" % i for i in range(1, 10)
    ]
