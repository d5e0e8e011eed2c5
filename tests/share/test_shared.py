"""Sharing a store: the first owns it, another takes over, whoever asks meanwhile waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.rigs.program import ended
from tests.rigs.waiting import wait_until
from tests.rigs.warm import Warm
from tests.small_store import SMALL
from tests.test_fork import told_by_a_child
from timerstore import (
    InvalidArgumentError,
    ManualClock,
    NotAStoreError,
    StoreClosedError,
    StoreLockedError,
    TimerStoreError,
)
from timerstore.share.link import is_taken_over, taking_over
from timerstore.share.shared import SharedStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90), pytest.mark.promise]

WORKER = """
import sys, timerstore
with timerstore.open(sys.argv[1], share=True) as store:
    print(store.put(b"from the child", delay_level=18), store.is_owner, flush=True)
    sys.stdin.read()
"""


def start(path: Path) -> tuple[subprocess.Popen[str], str, bool]:
    """Another process that shares a store: it, the id of a timer it put, whether it owns it."""
    worker = Warm(
        [sys.executable, "-P", "-c", WORKER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    id, owns = worker.stdout.readline().split()
    return worker, id, owns == "True"


def end(worker: subprocess.Popen[str]) -> None:
    worker.communicate(timeout=60)


def open_shared(path: Path) -> SharedStore:
    return timerstore.open(path, share=True, config=SMALL)


def test_the_first_owns_it_and_the_next_takes_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with open_shared(path) as first:
        assert first.is_owner and "SharedStore of" in repr(first)
        worker, id, owns = start(path)
        assert not owns and first.get(id) is not None
        first.put(b"held", topic="t")
        assert len(first.pull("t", timeout=10)) == 1  # not acknowledged: it comes again
    abort, own = path / "abort", f"{worker.pid}"
    wait_until(lambda: abort.exists() and abort.read_text().strip() == own)
    with open_shared(path) as second:
        assert not second.is_owner
        assert second.get(id) is not None
        assert second.pull("t", timeout=10).bodies.to_pylist() == [b"held"]
        worker.kill()
        worker.wait()
        assert second.put(b"x", delay=timedelta(hours=1)) and second.is_owner
        assert second.count() == 2
        assert second.pull("t", timeout=10).bodies.to_pylist() == [b"held"]
    end(worker)


def test_a_pull_that_waits_outlives_its_owner(tmp_path: Path) -> None:
    worker, id, owns = start(tmp_path / "s")
    assert owns
    with open_shared(tmp_path / "s") as store:
        found: list[object] = []

        def wait() -> None:
            found.append(next(iter(store.consume("t", timeout=60))).body)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert store.cancel(id)
        worker.kill()
        worker.wait()
        store.put(b"at last", topic="t")
        waiting.join(60)
        assert found == [b"at last"] and store.is_owner and store.count() == 0
    end(worker)


def test_one_process_can_share_it_twice(tmp_path: Path) -> None:
    with open_shared(tmp_path / "s") as one, open_shared(tmp_path / "s") as other:
        assert (one.is_owner, other.is_owner) == (True, False)
        id = other.put(b"x", delay_level=18)
        one.close()
        assert other.get(id) is not None and other.is_owner


def test_a_forked_child_is_a_client_of_its_parent(tmp_path: Path) -> None:
    with open_shared(tmp_path / "s") as store:
        calls = {
            "put": lambda: store.put(b"from the child", topic="u", delay_level=18),
            "owns": lambda: store.is_owner,
            "count": store.count,
            "close": store.close,
        }
        told = told_by_a_child(calls)
        assert (told["owns"], told["count"], told["close"]) == ("False", "1", "None")
        assert store.is_owner and store.count("u") == 1


def test_what_cannot_be_shared(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAStoreError):
        timerstore.open(tmp_path / "file", share=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.csv").write_text("x")
    with pytest.raises(NotAStoreError):
        timerstore.open(tmp_path / "other", share=True)
    for wrong in ({"read_only": True}, {"clock": ManualClock()}):
        with pytest.raises(InvalidArgumentError, match="share=True goes with neither"):
            timerstore.open(tmp_path / "s", share=True, **wrong)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgumentError, match="share is"):
        timerstore.open(tmp_path / "s", share=1)  # type: ignore[call-overload]


def test_a_plain_owner_that_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not blamed on a process that could serve it: it is this one."""
    monkeypatch.setattr("timerstore.share.shared.PATIENCE_S", 0.2)
    quiet = replace(SMALL, tuning=replace(SMALL.tuning, control=False))
    with (
        timerstore.open(tmp_path / "s", config=quiet) as store,
        pytest.raises(StoreClosedError, match=r"This process \(pid \d+\) has it open itself"),
    ):
        open_shared(store.path)


def test_whoever_waits_waits_for_one_that_is_opening(tmp_path: Path) -> None:
    """Longer than for an owner; one at a time opens it, another process's store stays as it is."""
    path = tmp_path / "s"
    said: list[object] = []

    def ask() -> None:
        with timerstore.connect(path, timeout=0.1) as client:
            said.append(client.count())

    asking = threading.Thread(target=ask)
    with taking_over(path, True) as is_alone:
        assert is_alone and is_taken_over(path)
        with taking_over(path, True) as is_alone_too:
            assert not is_alone_too
        asking.start()
        time.sleep(0.5)
        assert asking.is_alive()
        store = timerstore.open(path, config=SMALL)
        server = timerstore.serve(store)
        asking.join(30)
    assert said == [0] and not is_taken_over(path)
    server.close()
    store.close()
    with pytest.raises(StoreClosedError, match="No process has served"):
        timerstore.connect(path, timeout=0.1)


def test_nothing_is_left_where_no_store_can_be(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    for path, create in ((tmp_path / "photos", True), (tmp_path / "none", False)):
        with pytest.raises(NotAStoreError):
            timerstore.open(path, create=create, share=True)
    assert [each.name for each in tmp_path.rglob("*")] == ["photos", "cat.png"]


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_shared(Path("s")) as second, open_shared(Path("s")) as first:
        first, second = sorted((first, second), key=lambda each: each.is_owner)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        first.put(b"x", delay=timedelta(hours=1))
        second.close()
        assert first.count() == 1 and first.is_owner
    assert not list((tmp_path / "elsewhere").iterdir())


def test_no_other_store_is_begun_where_it_has_gone(tmp_path: Path) -> None:
    owner, _, owns = start(tmp_path / "s")
    with open_shared(tmp_path / "s") as other:
        assert owns
        (tmp_path / "s").rename(tmp_path / "moved")
        owner.kill()
        owner.wait()
        with pytest.raises(TimerStoreError):
            other.put(b"x", delay=timedelta(hours=1))
        assert not (tmp_path / "s").exists()
        (tmp_path / "moved").rename(tmp_path / "s")
        wait_until(lambda: other.is_owner)
        other.put(b"y", delay=timedelta(hours=1))
        assert other.count() == 2
    end(owner)


def test_an_ordered_consumer_reads_where_the_store_is_owned(tmp_path: Path) -> None:
    """And in the next owner, which goes on where that one was; not elsewhere."""
    path, seen = tmp_path / "s", list[bytes]()

    def handle(d: timerstore.Delivery) -> timerstore.Retry | None:
        seen.append(d.body)
        return timerstore.Retry(delay_level=1) if d.body == b"5" else None

    def consumer(store: SharedStore) -> timerstore.Consumer:
        made = timerstore.Consumer(store, "g", ordered=True, threads=4)
        made.subscribe("t", handle)
        return made

    first, second = open_shared(path), open_shared(path)
    assert (first.is_owner, second.is_owner) == (True, False)
    with pytest.raises(InvalidArgumentError, match="in which `is_owner` is True"):
        consumer(second).start()
    ordered = consumer(first)
    assert ordered.store is first  # type: ignore[comparison-overlap]
    with ordered:
        second.put_many([b"%d" % i for i in range(9)], topic="t")
        wait_until(lambda: seen[-1:] == [b"5"])
        with pytest.raises(
            InvalidArgumentError, match="ordered consumer of the group 'g' reads this"
        ):
            second.pull("t", group="g", timeout=0)
        assert [each.topic for each in ordered.stats()] == ["t"]
    assert seen == [b"%d" % i for i in range(6)]
    first.close()
    wait_until(lambda: second.is_owner)
    seen.clear()
    with consumer(second):
        wait_until(lambda: seen)
    assert seen[0] == b"5"
    broadcast = timerstore.Consumer(second, "g", broadcast=True)
    broadcast.subscribe("t", lambda d: seen.append(d.body))
    with broadcast:
        wait_until(lambda: seen[-1] == b"8")
    second.close()
    with pytest.raises(StoreClosedError):
        consumer(second).start()


OPENER = """
import sys, timerstore
try:
    timerstore.open(sys.argv[1], share=True)
except timerstore.StoreLockedError as e:
    print(e)
"""


def test_an_owner_that_does_not_share_is_named_at_once(tmp_path: Path) -> None:
    """In this process and in another; nobody waits for it to be served."""
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL) as plain:
        with pytest.raises(StoreLockedError, match="does not share it") as told:
            timerstore.open(path, share=True)
        assert f"pid {os.getpid()}" in str(told.value)
        output = ended("-c", OPENER, path, timeout_s=60, popen=Warm).stdout
        assert f"pid {os.getpid()}" in output and "share=True" in output
        with timerstore.serve(plain), timerstore.open(path, share=True) as shared:
            assert shared.count() == 0 and not shared.is_owner


def test_the_owner_calls_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the owner passes no socket; in a forked child it does, which is a client."""
    with open_shared(tmp_path / "s") as store:

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("it was asked through the socket")

        with monkeypatch.context() as patch:
            patch.setattr(store._link, "ask", refuse)
            id = store.put(b"x", topic="t")
            assert store.find(id) is not None
            (got,) = store.pull("t", timeout=10)
            got.ack()
            assert store.count() == 0 and store.stats() is not None
        told = told_by_a_child(
            {"get": lambda: store.get_key("t", "k"), "own": lambda: store.is_owner}
        )
        assert told == {"get": "None", "own": "False"}
