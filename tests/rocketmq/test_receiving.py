"""A reader whose proxy has started anew, refuses what is asked of it, or that is closed."""

from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from timerstore import ClusterError, StoreClosedError
from timerstore.jit.guards import Lock
from timerstore.rocketmq.receiving import Reader


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
