"""A reader whose proxy has started anew, refuses what is asked of it, or that is closed."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from timerstore import ClusterError, Consumer, Retry, StoreClosedError, TimerStoreError
from timerstore.jit.guards import Lock
from timerstore.rocketmq.cluster import Cluster
from timerstore.rocketmq.receiving import Came, Reader


def failed(text: str) -> "Future[Any]":
    call: Future[Any] = Future()
    call.set_exception(RuntimeError(text))
    return call


def reader_that_knew_its_proxy(told: list[str]) -> Any:
    reader: Any = object.__new__(Reader)
    reader.topic, reader._lock = "t", Lock()
    loop = SimpleNamespace(call_soon_threadsafe=lambda call, given: call(given))
    rpc_client = SimpleNamespace(get_channel_io_loop=lambda: loop)
    reader._consumer = SimpleNamespace(on_new_endpoints=told.append, rpc_client=rpc_client)
    reader._brokers = {"broker-a": SimpleNamespace(endpoints="127.0.0.1:8081")}
    reader._came, reader._answers, reader._known_by_s = [], Counter(), 0.0
    reader._begun, reader._closing, reader._closed = {}, False, False
    return reader


def test_it_is_told_again_who_reads() -> None:
    """Once; while it gets to know, nothing is said; other errors tell it nothing."""
    told: list[str] = []
    reader = reader_that_knew_its_proxy(told)
    for text, is_error in (
        ("UNAVAILABLE", True),
        ("50001, settings of the client are not known", True),
        ("50001, settings of the client are not known", False),
    ):
        reader._begun = {"broker-a": failed(text)}
        errors = reader.take(10).errors
        assert bool(errors) == is_error
        assert all(isinstance(each, ClusterError) for each in errors.values())
    assert told == ["127.0.0.1:8081"]


def test_a_message_can_be_sent_back_after_a_refusal() -> None:
    """The client takes over an empty handle from an answer that refuses."""
    reader = reader_that_knew_its_proxy([])

    def refuse(message: Any, length_s: int) -> None:
        message.receipt_handle = ""
        raise RuntimeError("50001, the broker is away")

    reader._consumer.change_invisible_duration = refuse
    message = SimpleNamespace(message_id="7", receipt_handle="handle")
    with pytest.raises(ClusterError):
        reader.hide(message, 10)
    assert message.receipt_handle == "handle"


def test_no_call_begins_once_it_closes() -> None:
    reader = reader_that_knew_its_proxy([])
    reader.stop()
    with pytest.raises(StoreClosedError):
        reader.receive(10, 10, None)


class Handles(Reader):
    """A reader that has received what it is told, and notes what becomes of it."""

    def __init__(self, *names: str) -> None:
        """Those that begin with a minus have expired."""
        self.group, self.topic, self.told = "g", "t", list[tuple[str, str]]()
        now_ms = time.time_ns() // 1_000_000
        self._left = [
            SimpleNamespace(
                message_id=name,
                body=name.encode(),
                properties={"TIMER_EXPIRES_MS": now_ms + (-1 if name < "a" else 60_000)},
                **dict.fromkeys(("keys", "tag", "transport_delivery_timestamp", "born_timestamp")),
                **dict.fromkeys(("delivery_attempt", "delivery_timestamp")),
            )
            for name in names
        ]

    def begin(self, *_: Any) -> list[Any]:
        return []

    def take(self, count_max: int) -> Came:
        some, self._left = self._left[:count_max], self._left[count_max:]
        return Came(some, set(), {})

    def receive(self, count_max: int, hide_s: int, timeout_s: float | None) -> list[Any]:
        return self.take(count_max).messages

    def ack(self, messages: Sequence[Any]) -> list[TimerStoreError]:
        self.told += [("ack", each.message_id) for each in messages]
        return []

    def hide(self, message: Any, length_s: int) -> None:
        self.told.append(("hide", message.message_id))

    def bury(self, message: Any) -> None:
        self.told.append(("bury", message.message_id))


def cluster_of(reader: Reader) -> Any:
    made: Any = object.__new__(Cluster)
    made._pid, made._closed, made._hide_s, made._reader = os.getpid(), False, 10, lambda *_: reader
    made._new_reader, made.new_source = lambda *_: reader, made._new_source
    return made


def test_what_expired_is_not_handed_out() -> None:
    """Nor does it come again."""
    reader = Handles("-1", "a", "-2", "-3", "b")
    cluster = cluster_of(reader)
    pulled = [cluster.pull("t", max_count=2).bodies.to_pylist() for _ in range(3)]
    assert pulled == [[b"a"], [b"b"], []]
    assert reader.told == [("ack", "-1"), ("ack", "-2"), ("ack", "-3")]
    reader = Handles("-1", "a", "-2")
    assert [d.body for d in cluster_of(reader).consume("t")] == [b"a"]
    assert reader.told == [("ack", "-1"), ("ack", "-2")]


@pytest.mark.parametrize("rule", ["drop", "dead_letter"])
@pytest.mark.parametrize("batch_count", [1, 3])
def test_a_consumer_does_with_what_expired_as_it_was_told(rule: Any, batch_count: int) -> None:
    """It does so too with what a retry would bring too late."""
    reader, handled = Handles("-1", "a", "b"), list[str]()

    def handle(given: Any) -> Any:
        handled.extend(each.id for each in (given if batch_count > 1 else [given]))
        return Retry(delay=3_600) if handled[-1] == "b" else None

    settings = {"pull_count": 3, "expired": rule, "batch_count": batch_count}
    consumer = Consumer(cluster_of(reader), "g", **settings)  # type: ignore[arg-type]
    consumer.subscribe("t", handle)
    workings = consumer._workings
    workings.source.begin(workings.subscriptions)
    for task in workings.source.pull(3)[0]:
        workings.handling.run(task)
    assert handled == ["a", "b"]
    does = "bury" if rule == "dead_letter" else "ack"
    too_late = ["-1", "b"] if batch_count == 1 else ["-1", "a", "b"]
    wanted = {(does, name) for name in too_late} | ({("ack", "a")} if batch_count == 1 else set())
    assert set(reader.told) == wanted and len(reader.told) == 3
