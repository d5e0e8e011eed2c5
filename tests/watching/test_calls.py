"""The table of calls: who makes one takes what it says; what comes back is what it says."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.small_store import SMALL
from timerstore.share.client import AskedCalls
from timerstore.values.check_arguments import Range
from timerstore.values.puts import Many, Put
from timerstore.watching.any_store import CALLS, TURNED


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[timerstore.TimerStore]:
    folder: Path = tmp_path_factory.mktemp("calls")
    with timerstore.open(folder / "s", config=SMALL, clock=timerstore.ManualClock()) as store:
        yield store


_TURNED = {
    "delay": "timedelta | None",
    "replace": "bool | Debounce",
    "expires": "timedelta | int | None",
}


def test_a_put_is_a_row_of_its_arguments() -> None:
    arguments = [
        each
        for each in inspect.signature(CALLS["put"]).parameters.values()
        if each.name not in ("self", *TURNED)
    ]
    fields = inspect.signature(Put).parameters.values()
    assert [(each.name, each.default) for each in arguments] == [
        (each.name, each.default) for each in fields
    ]
    assert {each.name: each.annotation for each in arguments} | _TURNED == {
        name: getattr(hint, "__forward_arg__", hint) for name, hint in Put.__annotations__.items()
    }


_ROWS: Any = {
    "given": Put._fields,
    "where": Range._fields,
    "many": Many._fields,
    "changes": ("delay", "at", "at_ms", "body", "properties"),
}
"""Arguments that are handed on together."""
_BATCHES = {"Run": "Batch", "ClientRun": "Batch"}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_who_makes_a_call_takes_what_it_takes(store: timerstore.TimerStore, name: str) -> None:
    names = [
        each
        for each in inspect.signature(CALLS[name]).parameters
        if each not in ("self", *(TURNED if name != "put_many" else ("delay", "at", "expires_ms")))
    ]
    result = inspect.signature(CALLS[name]).return_annotation
    asked: Any = AskedCalls.__dict__.get(name)
    makers = [getattr(store._calls, name), *([asked] if asked else [])]
    for maker in makers:
        told = inspect.signature(maker)
        taken = [
            field
            for each in told.parameters
            if each not in ("self", "carried", "flush", "last")
            for field in (_ROWS.get(each, [each]))
        ]
        unused = ["key"] if name == "pending_columns" else []
        assert sorted(taken) == sorted([*names, *unused])
        kind = _BATCHES.get(told.return_annotation, told.return_annotation)
        assert kind in {"Any", result, *(["Bools"] if "many" in name else [])}


def test_each_call_says_what_it_does() -> None:
    for call in CALLS.values():
        assert len((inspect.getdoc(call) or "").split()) > 3
