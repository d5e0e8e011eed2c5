"""The public names: each is there, is described, has examples that run."""

import doctest
import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import timerstore
from tests.markdown import ROOT
from timerstore.values.amounts import moment

CALLS = {
    "TimerStore": (
        "put put_many put_json put_table cancel cancel_many cancel_key reschedule get find "
        "get_key pending pending_columns count horizon consume pull dead_letters "
        "retry_dead_letters drop_dead_letters forget_group stats health pause resume flush "
        "close handover"
    ),
    "Batch": "bodies due_ms fired fired_ms ids ack to_arrow __len__ __iter__",
    "Delivery": (
        "id topic body key tag properties due due_ms fired fired_ms lateness_ms attempt group "
        "expires expires_ms queue_id queue_index offset json ack nack ack_and_put ack_and_put_many"
    ),
    "DeadLetter": (
        "id topic body key tag properties attempts died_ms first_failed_ms error_type error_text "
        "trace_id"
    ),
    "Found": (
        "id state due due_ms topic key put_ms fired_ms cancelled_ms moved_to offset groups why"
    ),
    "GroupFound": "group state attempt",
    "Timer": "id topic body key tag properties due due_ms put_ms roll_count "
    "first_put first_put_ms expires expires_ms",
    "Config": "from_toml from_env",
    "Consumer": (
        "on subscribe start run step close stats dead_letters retry_dead_letters drop_dead_letters "
        "__enter__ __exit__"
    ),
    "Retry": "delay_level ack_index",
    "Outcome": "ack_count delay_level error timed_out elapsed_ms",
    "Hook": "before after",
    "ManualClock": "now_ms advance",
    "TimerIds": "__len__ __getitem__",
    "VerifyReport": "ok problems to_dict",
}
"""API.md's classes, with what a program may use of each."""
ERRORS = [
    "TimerStoreError",
    "StoreClosedError",
    "StoreLockedError",
    "ForkedProcessError",
    "StoreFullError",
    "FlushFailedError",
    "CorruptStoreError",
    "UnknownTimerError",
    "TooLateError",
]


def modules() -> Iterator[str]:
    for path in sorted((ROOT / "timerstore").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        asks_spark = parts[1:] in {("pipeline", "following"), ("pipeline", "publishing")}
        if parts[1] not in {"jit", "timelog", "wheel", "services", "spark"} and not asks_spark:
            yield ".".join(part for part in parts if part != "__init__")
    yield "timerstore.services.world.clock"


@pytest.mark.parametrize("name", CALLS)
def test_class_has_its_calls(name: str) -> None:
    assert name in timerstore.__all__
    known = getattr(timerstore, name)
    fields = getattr(known, "__annotations__", {}) | dict.fromkeys(getattr(known, "__slots__", ()))
    for call in CALLS[name].split():
        assert hasattr(known, call) or call in fields, f"{name}.{call}"


def test_errors_are_of_one_family() -> None:
    for name in ERRORS:
        error = getattr(timerstore, name)
        assert issubclass(error, timerstore.TimerStoreError)
        assert name in timerstore.__all__


def test_all_is_sorted_and_described() -> None:
    assert timerstore.__all__ == sorted(timerstore.__all__)
    for name in timerstore.__all__:
        assert inspect.getdoc(getattr(timerstore, name)), name


def test_any_store_says_what_all_stores_have_in_common() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    any_store = timerstore.AnyStore
    assert calls(any_store) == calls(timerstore.TimerStore) & calls(timerstore.Client)
    for kind in (timerstore.TimerStore, timerstore.Client, timerstore.SharedStore):
        for name in [*calls(any_store) - {"path"}, "__enter__", "__exit__"]:
            theirs = inspect.signature(getattr(kind, name))
            assert theirs == inspect.signature(getattr(any_store, name)), f"{kind}.{name}"


def test_a_due_time_is_a_datetime_too(tmp_path: Path) -> None:
    clock = timerstore.ManualClock(1_800_000_000_000)
    at = datetime(2027, 1, 15, 10, 10, 4, 567_000, timezone(timedelta(hours=2)))
    with timerstore.open(tmp_path, clock=clock) as store:
        found = store.get(store.put(b"x", at=at))
        assert found is not None and found.due == at and found.due.utcoffset() == timedelta(0)
        (row,) = store.stats().topics
        assert row.next_due is not None and row.next_due_ms == row.next_due.timestamp() * 1_000
        assert row.oldest_due is None
        clock.advance(timedelta(hours=1))
        (delivery,) = store.pull("default", timeout=0)
        assert delivery.due == at
    assert moment(1 << 62) == datetime.max.replace(tzinfo=UTC, microsecond=999_000)
    assert moment(-(1 << 62)) == datetime.min.replace(tzinfo=UTC)


def test_the_version_is_that_of_the_package() -> None:
    assert timerstore.__version__ == metadata.version("timerstore")


def test_functions_are_exported() -> None:
    assert {"open", "verify"} <= set(timerstore.__all__)


@pytest.mark.tier("long", only=("timerstore.warmup",))
@pytest.mark.parametrize("name", list(modules()))
def test_examples_in_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with `store`, `timerstore` and `timedelta` at hand, in an empty folder."""
    module = importlib.import_module(name)
    examples = [each for each in doctest.DocTestFinder().find(module) if each.examples]
    if not examples:
        return
    monkeypatch.chdir(tmp_path)
    config = timerstore.Config(tuning=timerstore.Tuning(commitlog_segment_bytes=1 << 20))
    timerstore.open("timers", config=config).close()
    with timerstore.open("shared", config=config, clock=timerstore.ManualClock()) as store:
        for each in examples:
            run(module, each, {"store": store, "timerstore": timerstore, "timedelta": timedelta})


def run(module: ModuleType, example: doctest.DocTest, names: dict[str, object]) -> None:
    example.globs = vars(module) | names
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    told: list[str] = []
    assert runner.run(example, out=told.append).failed == 0, "".join(told)


BESIDES = {
    "TimerStore": "path upcoming cancel_many backup follow clean abandon",
    "Batch": "due topic message tags_codes",
    "Consumer": "error",
    "ManualClock": "manual",
    "TimerIds": "due due_ms offsets digits",
}
"""What `help` shows of them as well; `abandon` is for tests of a crash."""


@pytest.mark.parametrize("name", CALLS)
def test_help_shows_the_public_face_alone(name: str) -> None:
    known = getattr(timerstore, name)
    ours = {
        each.name: each.object
        for each in inspect.classify_class_attrs(known)
        if each.defining_class.__module__.startswith("timerstore") and each.name[0] != "_"
    }
    fields = set(getattr(known, "__dataclass_fields__", ()))
    calls = {each for each in CALLS[name].split() if each[0] != "_"}
    if fields:
        assert set(ours) >= calls
    else:
        assert set(ours) == calls | set(BESIDES.get(name, "").split())
    for each in set(ours) - fields - {"manual"}:
        told = inspect.getdoc(ours[each]) or f"`{each}`" in (inspect.getdoc(known) or "")
        assert told, f"{name}.{each} has no docstring"
    text = pydoc.plain(pydoc.render_doc(known))
    assert not re.findall(r"(?m)^ \|  _(?!_)\w+", text)
    assert not [each for each in vars(known).get("__annotations__", ()) if each[0] == "_"]


def test_help_of_the_store_begins_with_a_map_of_its_calls() -> None:
    text = inspect.getdoc(timerstore.TimerStore) or ""
    calls = {name for name in dir(timerstore.TimerStore) if name[0] != "_"}
    assert calls - {"path", "abandon"} == {
        name for name in re.findall(r"[a-z_]+", text.split(">>>")[0]) if name in calls
    }


def test_help_of_config_names_every_setting() -> None:
    text = f"{inspect.getdoc(timerstore.Config)} {inspect.getdoc(timerstore.Tuning)}"
    for name in timerstore.Config.__dataclass_fields__:
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize(
    "name",
    [
        *("share.client.Client", "share.shared.SharedStore", "share.server.Server"),
        *("aio.TimerStore", "aio.Consumer", "aio.Batch", "recurring.Schedules", "dedup.Done"),
        *("outbox.Outbox", "outbox.Relay", "page.PageServer", "django.TimerStoreBackend"),
    ],
)
def test_help_of_the_others_says_what_each_call_does(name: str) -> None:
    module, _, kind = name.rpartition(".")
    known = getattr(importlib.import_module(f"timerstore.{module}"), kind)
    for each in inspect.classify_class_attrs(known):
        if each.name[0] != "_" and each.name != "topic":
            assert inspect.getdoc(each.object), f"{name}.{each.name} has no docstring"
    text = pydoc.plain(pydoc.render_doc(known))
    assert not re.findall(r"(?m)^ \|  _(?!_)\w+", text)
