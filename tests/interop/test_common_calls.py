"""The calls that a store shares with a cluster, tried on each; what differs is data."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

import timerstore
import timerstore.rocketmq
from tests.small_store import SMALL
from timerstore import (
    ClusterError,
    Consumer,
    InvalidArgumentError,
    Retry,
    StoreClosedError,
    UnknownTimerError,
)

pytestmark = [
    # RocketMQ's client calls what Python has renamed.
    pytest.mark.filterwarnings("ignore:The 'warn' method is deprecated"),
]


@dataclass(frozen=True)
class Kind:
    """What keeps timers, and how it differs from a store."""

    timers: Any
    precision_ms: int = 1
    """Due times are rounded up to it."""
    names_topic: bool = False
    """Whether `cancel` has to be told the topic."""
    knows_timers: bool = True
    """Whether `cancel` tells whether there was such a timer."""
    cancels_until_ms: int = 0
    """How long before its due time a timer cannot be cancelled any more."""
    letters: Literal["listed", "received"] = "listed"
    body_bytes_max: int = SMALL.tuning.commitlog_segment_bytes // 2

    def cancel(self, id: str, topic: str) -> bool:
        cancelled: bool = (
            self.timers.cancel(id, topic=topic) if self.names_topic else self.timers.cancel(id)
        )
        return cancelled

    def rounded(self, due_ms: int) -> int:
        return -(-due_ms // self.precision_ms) * self.precision_ms


@pytest.fixture(
    params=["store", "served", pytest.param("cluster", marks=pytest.mark.slow)], scope="module"
)
def kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kind]:
    if request.param == "cluster":
        timers = request.getfixturevalue("cluster")
        yield Kind(timers, 1_000, True, False, 1_000, "received", 4 << 20)
        return
    path = tmp_path_factory.mktemp("store") / "s"
    with timerstore.open(path, config=SMALL) as store:
        if request.param == "store":
            yield Kind(store)
        else:
            with timerstore.serve(store), timerstore.connect(path) as client:
                yield Kind(client)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def take(timers: Any, topic: str, wanted: int, group: str = "readers") -> list[Any]:
    """So many messages, acknowledged; fails if they do not come."""
    got: list[Any] = []
    stop = time.monotonic() + 60
    while len(got) < wanted:
        assert time.monotonic() < stop, f"{len(got)} of {wanted} came"
        batch = timers.pull(topic, group=group, timeout=1)
        for each in batch:
            assert each.key is not Ellipsis  # a client asks for it, and only before it is settled
            got.append(each)
        batch.ack()
    return got


def is_empty(kind: Kind, topic: str, group: str = "readers") -> bool:
    return len(kind.timers.pull(topic, group=group, timeout=0)) == 0


def test_a_time_in_each_form(kind: Kind, topic: str) -> None:
    before_ms = now_ms()
    at_ms = before_ms + 3_234  # these two are put first, while that is still to come
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    forms: dict[bytes, dict[str, Any]] = {
        b"at": {"at": at},
        b"at_ms": {"at_ms": at_ms},
        b"delay": {"delay": timedelta(seconds=1.234)},
        b"seconds": {"delay": 1.234},
        b"delay_ms": {"delay_ms": 1_234},
        b"now": {},
        b"past": {"delay": -5},
    }
    about = {"key": "user:7", "tag": "paid", "properties": {"from": "ann é"}}
    ids = {
        body: kind.timers.put(body, topic=topic, **given, **about) for body, given in forms.items()
    }
    after_ms = now_ms()
    got = {each.body: each for each in take(kind.timers, topic, len(forms))}
    assert {body: each.id for body, each in got.items()} == ids
    for body, each in got.items():
        assert (each.topic, each.key, each.tag, each.attempt) == (topic, "user:7", "paid", 0)
        assert each.properties == {"from": "ann é"} and each.group == "readers"
        assert each.fired_ms >= each.due_ms, body
        assert each.due_ms == int(each.id[:12], 16)
    for body in (b"at", b"at_ms"):
        assert got[body].due_ms == kind.rounded(at_ms)
    for body in (b"delay", b"seconds", b"delay_ms"):
        assert kind.rounded(before_ms + 1_234) <= got[body].due_ms <= kind.rounded(after_ms + 1_234)
    assert is_empty(kind, topic)


def test_many_with_a_time_each(kind: Kind, topic: str) -> None:
    bodies = [b"%d" % i for i in range(200)]
    start_ms = now_ms() + 1_000
    times = [start_ms + 5 * i for i in range(200)]
    ids = kind.timers.put_many(bodies, topic=topic, at_ms=times, keys=[f"k{i}" for i in range(200)])
    assert len(ids) == len(set(ids)) == 200
    more = kind.timers.put_many(bodies[:3], topic=topic, delay=0.5, tag="x")
    assert len(kind.timers.put_many([], topic=topic)) == 0
    got = take(kind.timers, topic, 203)
    told = {each.id: (each.body, each.key, each.due_ms) for each in got if each.tag is None}
    wanted = zip(ids, bodies, times, range(200), strict=True)
    assert told == {id: (body, f"k{i}", kind.rounded(ms)) for id, body, ms, i in wanted}
    assert {each.id for each in got if each.tag == "x"} == set(more)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"body": "text"}, "body has the type str"),
    ({"body": b""}, "body is empty"),
    ({"at": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001
    ({"at_ms": 1_700_000_000}, "looks like seconds"),
    ({"delay": 1, "delay_ms": 1_000}, "exclude each other"),
    ({"delay": 1, "at_ms": 2_000_000_000_000}, "exclude each other"),
    ({"topic": "a b"}, "topic is"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the system"),
    ({"properties": {"UNIQ_KEY": "x"}}, "belongs to the system"),
    ({"properties": {"a": ""}}, "not empty"),
    ({"key": "a\x01b"}, "U\\+0001"),
    ({"delay": "soon"}, "delay is"),
]


@pytest.mark.parametrize("i", range(len(WRONG)))
def test_what_is_refused(kind: Kind, i: int) -> None:
    given, said = WRONG[i]
    with pytest.raises(InvalidArgumentError, match=said):
        kind.timers.put(**{"body": b"x", "topic": "t0"} | given)


def test_a_body_that_is_too_large(kind: Kind) -> None:
    with pytest.raises(InvalidArgumentError, match="body has"):
        kind.timers.put(b"x" * (kind.body_bytes_max + (4 << 20)), topic="t0")


@pytest.mark.slow
def test_what_a_cluster_does_not_take(cluster: Any) -> None:
    for given in ({"delay": timedelta(days=401)}, {"properties": {"a": "x" * 17_000}}):
        with pytest.raises(InvalidArgumentError, match="the cluster takes less"):
            cluster.put(b"x", topic="t0", **given)
    with pytest.raises(ClusterError, match="does not show the topic unknown") as caught:
        cluster.put(b"x", topic="unknown")
    assert not caught.value.unsure, "it was not sent"
    for other, given in (("of-normal", {"delay": 60}), ("of-delay", {})):
        for put in (cluster.put, lambda body, **named: cluster.put_many([body], **named)):
            with pytest.raises(ClusterError, match=r"another type .* message\.type to MIXED"):
                put(b"x", topic=other, **given)
    assert cluster.cancel(cluster.put(b"x", topic="of-delay", delay=60), topic="of-delay")
    assert cluster.dead_letters("nobody") == []


def test_many_that_are_refused_put_none(kind: Kind, topic: str) -> None:
    for bodies, given in (
        ([b"a", b""], {}),
        ([b"a", b"b"], {"delay_ms": [1]}),
        ([b"a", b"b"], {"keys": ["a"]}),
        ([b"a", b"b"], {"at_ms": [1, 2]}),
    ):
        with pytest.raises(InvalidArgumentError):
            kind.timers.put_many(bodies, topic=topic, **given)
    assert is_empty(kind, topic)


def test_cancelling(kind: Kind, topic: str) -> None:
    wrong = kind.timers.put(b"wrong", topic=topic, delay=4)
    kind.timers.put(b"right", topic=topic, delay=4)
    assert kind.cancel(wrong, topic)
    assert kind.cancel(wrong, topic), "asked again"
    (got,) = take(kind.timers, topic, 1)
    assert got.body == b"right" and is_empty(kind, topic)
    assert not kind.cancel(got.id, topic), "it has fired"
    soon = kind.timers.put(b"soon", topic=topic, delay_ms=1)
    if kind.cancels_until_ms:
        assert not kind.cancel(soon, topic)
        assert [each.id for each in take(kind.timers, topic, 1)] == [soon]
    with pytest.raises(UnknownTimerError):
        kind.cancel("order:42", topic)
    if not kind.knows_timers:
        far_ms = now_ms() + 3_600_000
        assert kind.cancel(f"{far_ms:012X}{7:020X}", topic), "nobody knows that there is none"


def test_sent_back_it_comes_again(kind: Kind, topic: str) -> None:
    id = kind.timers.put(b"again", topic=topic)
    attempts = []
    for delivery in kind.timers.consume(topic, group="one", timeout=20):
        assert delivery.id == id
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            delivery.nack()
            delivery.ack()  # too late: it was sent back
        elif len(attempts) == 2:
            delivery.nack(delay=1)
        else:
            delivery.ack()
            break
    assert attempts == [0, 1, 2]
    assert is_empty(kind, topic, "one")
    other = take(kind.timers, topic, 1, "two")
    assert [each.attempt for each in other] == [0], "each group has its own"


def test_a_consumer_retries_and_gives_up(kind: Kind, topic: str) -> None:
    seen: Counter[bytes] = Counter()
    ended = threading.Event()
    group = f"consumer-{topic}"
    consumer = Consumer(
        kind.timers, group, threads=4, max_attempts=1, backoff=[1], timeout=timedelta(seconds=20)
    )

    @consumer.on(topic)
    def handle(delivery: Any) -> Retry | None:
        seen[delivery.body] += 1
        if sum(seen.values()) >= 5:
            ended.set()
        if delivery.body == b"never":
            raise ValueError("no")
        if delivery.body == b"second time" and delivery.attempt == 0:
            return Retry(delay=1, reason="not yet")
        return None

    with consumer:
        dead = kind.timers.put(b"never", topic=topic, key="k")
        kind.timers.put(b"second time", topic=topic)
        kind.timers.put(b"at once", topic=topic)
        assert ended.wait(60), seen
        letters: list[Any] = []
        stop = time.monotonic() + 60
        while not letters and time.monotonic() < stop:
            letters = kind.timers.dead_letters(group)
            time.sleep(0.1)
    assert consumer.error is None
    assert seen == {b"never": 2, b"second time": 2, b"at once": 1}
    assert [(each.id, each.body) for each in letters] == [(dead, b"never")]


@pytest.mark.prove
@pytest.mark.slow
def test_a_dead_letter_that_was_acknowledged_does_not_come_again(cluster: Any, topic: str) -> None:
    group = f"dead-{topic}"
    consumer = Consumer(cluster, group, max_attempts=0)

    @consumer.on(topic)
    def fail(delivery: Any) -> None:
        raise ValueError("no")

    with consumer:
        ids = {cluster.put(b"x", topic=topic) for _ in range(2)}
        letters: dict[str, Any] = {}
        stop = time.monotonic() + 60
        while letters.keys() != ids and time.monotonic() < stop:
            letters |= {each.id: each for each in cluster.dead_letters(group)}
    dropped, kept = ids
    letters[dropped].ack()
    time.sleep(10.5)  # they were hidden for so long
    assert [each.id for each in cluster.dead_letters(group)] == [kept]


def test_threads_that_put_and_consume(kind: Kind, topic: str) -> None:
    got: Counter[str] = Counter()
    lock, ids = threading.Lock(), list[str]()

    def put(first: int) -> None:
        for i in range(20):
            id = kind.timers.put(b"%d" % (first + i), topic=topic, delay_ms=500)
            with lock:
                ids.append(id)

    def consume() -> None:
        stop = time.monotonic() + 60
        while time.monotonic() < stop:
            for delivery in kind.timers.pull(topic, group="readers", timeout=1):
                delivery.ack()
                with lock:
                    got[delivery.id] += 1
            with lock:
                if len(ids) == 160 and len(got) == 160:
                    return

    with ThreadPoolExecutor(12) as pool:
        made = [pool.submit(put, 100 * i) for i in range(8)] + [
            pool.submit(consume) for _ in range(4)
        ]
        for each in made:
            each.result()
    assert got == dict.fromkeys(ids, 1)


def test_what_is_not_there_is_not_there(kind: Kind, topic: str) -> None:
    kind.timers.put(b"x", topic=topic)
    (delivery,) = take(kind.timers, topic, 1)
    is_cluster = kind.precision_ms > 1
    for name in ("ack_and_put", "ack_and_put_many", "queue_id", "queue_index", "offset"):
        assert hasattr(delivery, name) != is_cluster, name
    for name in ("get", "pending", "count", "cancel_key", "reschedule", "stats", "pause"):
        assert hasattr(kind.timers, name) != is_cluster, name


def test_closed(kind: Kind, topic: str, tmp_path: Path) -> None:
    if kind.precision_ms > 1:
        closed: Any = timerstore.rocketmq.connect(kind.timers.address)
    else:
        closed = timerstore.open(tmp_path / "s", config=SMALL)
    with ThreadPoolExecutor(2) as pool:
        pulling = pool.submit(closed.pull, topic, timeout=60)
        consuming = pool.submit(list, closed.consume(topic, group="another"))
        time.sleep(1)  # now both wait
        closed.close()
        assert consuming.result(20) == []
        with pytest.raises(StoreClosedError):
            pulling.result(20)
    closed.close()
    for call in (
        lambda: closed.put(b"x"),
        lambda: closed.put_many([b"x"]),
        lambda: closed.pull("t", timeout=0),
        lambda: closed.cancel(f"{now_ms() + 100_000:012X}{7:020X}"),
    ):
        with pytest.raises(StoreClosedError, match="closed"):
            call()
