"""A consumer whose proxy has started anew."""

import threading
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from timerstore import ClusterError
from timerstore.rocketmq.receiving import Reader


def failed(text: str) -> "Future[Any]":
    call: Future[Any] = Future()
    call.set_exception(RuntimeError(text))
    return call


def reader_that_knew_its_proxy(told: list[str]) -> Any:
    reader: Any = object.__new__(Reader)
    reader.topic, reader._lock = "t", threading.Lock()
    loop = SimpleNamespace(call_soon_threadsafe=lambda call, given: call(given))
    reader._consumer = SimpleNamespace(
        on_new_endpoints=told.append, _rpc_channel_io_loop=lambda: loop
    )
    reader._brokers = {"broker-a": SimpleNamespace(endpoints="127.0.0.1:8081")}
    reader._came, reader._answers, reader._known_by_s = [], Counter(), 0.0
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
