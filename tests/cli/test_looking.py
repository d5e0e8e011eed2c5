"""Commands that only look: beside a running owner, of a closed store, of one that was killed."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import timerstore
from tests.cli.shell import SMALL, Run, finish, process, put
from tests.rigs.program import python
from tests.rigs.waiting import wait_until
from timerstore.testing.damage import flip_bit

pytestmark = pytest.mark.slow

LOOKS = [
    *(["info"], ["pending"], ["count"], ["horizon"], ["horizon", "--bucket", "1h"]),
    *(["verify"], ["validate"], ["export", "-"]),
]


def content(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


@pytest.fixture
def owner(path: Path) -> Iterator[timerstore.TimerStore]:
    """A program that has the store open."""
    with timerstore.open(path, config=SMALL) as store:
        store.put_many([b"%d" % i for i in range(100)], topic="mail", delay_ms=3_600_000)
        store.put(b"now", topic="mail")
        wait_until(lambda: store.count() == 100)
        yield store


def test_looking_beside_an_owner(run: Run, path: Path, owner: timerstore.TimerStore) -> None:
    owner.flush()
    for command in LOOKS:
        result = run(command[0], path, *command[1:])
        assert "What follows is as of " in result.stderr
        assert f"is open in another process (pid {os.getpid()})" in result.stderr
        assert "damage" not in result.stdout or "no damage found" in result.stdout


def test_what_an_owner_has_put_is_seen_at_once(
    run: Run, path: Path, owner: timerstore.TimerStore
) -> None:
    for i in range(5):
        owner.put(b"more", topic="bills", delay=timedelta(days=1))
        assert run("count", path, "--topic", "bills").stdout == f"{i + 1}\n"
    assert run("count", path).stdout == "105\n"
    told = json.loads(run("info", path, "--json").stdout)
    pending = {each["topic"]: each["pending_count"] for each in told["topics"]}
    assert pending == {"bills": 5, "mail": 100}
    ahead = json.loads(run("horizon", path, "--json").stdout)
    seen = (ahead["within a minute"], ahead["within a day"], ahead["within a week"])
    assert seen[0] == 0 and 100 <= seen[1] <= seen[2] == 105
    told_of_bills = json.loads(run("horizon", path, "--topic", "bills", "--json").stdout)
    assert (told_of_bills["within a week"], told_of_bills["overdue"]) == (5, 0)
    exact = run("horizon", path, "--bucket", "1d", "--json").stdout.splitlines()
    assert sum(json.loads(line)["count"] for line in exact) == 105
    assert abs(told["as_of_ms"] - time.time() * 1_000) < 60_000


def test_what_does_not_ask_for_all_is_asked_of_the_owner(
    run: Run, path: Path, owner: timerstore.TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open the files beside it costs O(pending): it was not closed."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the files were opened")

    last = owner.put(b"last", topic="mail", key="k", delay=timedelta(days=1))
    owner.put_many([b"%d" % i for i in range(1_200)], topic="bills", delay_ms=7_200_000)
    every = [timer.id for timer in owner.pending()]
    with monkeypatch.context() as patch:
        patch.setattr("timerstore.share.opening.open", opened)
        for limit in (0, 3, 1_250, 5_000):
            lines = run("pending", path, "--json", "--limit", limit).stdout.splitlines()
            assert [json.loads(line)["id"] for line in lines] == every[:limit]
        assert len(run("pending", path, "--end", "+3h").stdout.splitlines()) == 1_300
        keyed = ["--topic", "mail", "--key", "k", "--json"]
        assert json.loads(run("pending", path, *keyed).stdout)["id"] == last
        assert json.loads(run("get", path, *keyed).stdout)["id"] == last
        assert "not pending" in run("get", path, *keyed[:3], "none", exits=1).stderr
        assert "There is no topic" in run("pending", path, "-n", 9, "-t", "no", exits=2).stderr
        lines = run("horizon", path, "--bucket", "1d", "--end", "+3h", "--json").stdout
        assert sum(json.loads(line)["count"] for line in lines.splitlines()) == 1_300
        for command in (
            ["get", path, last],
            ["find", path, last],
            ["info", path],
            ["groups", path],
        ):
            run(*command)
    assert len(run("pending", path).stdout.splitlines()) == len(every)


def test_an_export_beside_an_owner_is_as_of_its_checkpoint(
    run: Run, path: Path, owner: timerstore.TimerStore, tmp_path: Path
) -> None:
    owner.flush()
    told = json.loads(run("export", path, tmp_path / "a.parquet", "--json").stdout)
    bodies = pq.read_table(tmp_path / "a.parquet").column("body").to_pylist()
    assert told["count"] == len(bodies)
    assert {b"%d" % i for i in range(100)} <= {*bodies}
    assert told["as_of_ms"] > 1_700_000_000_000


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_looking_changes_nothing_and_fires_nothing(run: Run, path: Path, end: str) -> None:
    store = timerstore.open(path, config=SMALL)
    store.put(b"soon", delay=timedelta(milliseconds=1_500))
    store.flush()
    (store.close if end == "closed" else store.abandon)()
    time.sleep(1.6)
    before = content(path)
    for command in LOOKS:
        told = run(command[0], path, *command[1:]).stderr
        assert "open in another process" not in told
        assert ("was not closed" in told) == (
            end == "killed" and command[0] in ("info", "pending", "count", "horizon")
        )
    assert run("count", path).stdout == "1\n", "it is overdue, and pending"
    assert content(path) == before


def test_get_shows_all_of_a_timer(run: Run, path: Path) -> None:
    at_ms = 4_070_908_800_000
    (id,) = put(path, b"a body", key="k", tag="t", properties={"p": "q"}, delay=None, at_ms=at_ms)
    told = json.loads(run("get", path, id, "--json").stdout)
    assert told.items() >= {"id": id, "key": "k", "tag": "t", "properties": {"p": "q"}}.items()
    assert told.items() >= {"body": "a body", "due_ms": at_ms, "roll_count": 0}.items()
    assert (told["pending"], told["offset"]) == (True, int(id[12:24], 16))
    rows = dict(line.split("\t", 1) for line in run("get", path, id).stdout.splitlines())
    assert rows["due"] == "2099-01-01T00:00:00.000Z"
    assert (rows["property p"], rows["body"], rows["rolled"]) == ("q", "a body", "0 times")
    shown = run("get", path, id, env={"FORCE_COLOR": "1", "COLUMNS": "100"}).stdout
    assert "d " in shown and "in " in shown

    with timerstore.open(path) as store:
        store.cancel(id)
    assert "is not pending in this store" in run("get", path, id, exits=1).stderr
    assert json.loads(run("get", path, id, "--json", exits=1).stdout) == {
        "id": id,
        "pending": False,
    }
    assert "another store" in run("get", path, "0" * 32, exits=1).stderr


def test_horizon(run: Run, path: Path) -> None:
    for delay_s in (50, 55, 500, 3_000, 80_000, 500_000, 9_000_000):
        put(path, b"x", delay=timedelta(seconds=delay_s))
    put(path, b"x", topic="mail", delay=timedelta(minutes=90))
    rows = dict(line.split("\t") for line in run("horizon", path).stdout.splitlines())
    assert list(rows.values()) == ["0", "0", "0", "2", "3", "4", "6", "7", "1"]
    told = json.loads(run("horizon", path, "--topic", "mail", "--json").stdout)
    assert (told["within an hour"], told["within a day"]) == (0, 1)
    buckets = run("horizon", path, "--bucket", "1h", "--end", "+2h", "--json").stdout.splitlines()
    assert sum(json.loads(line)["count"] for line in buckets) == 5
    assert all(json.loads(line)["start_ms"] % 3_600_000 == 0 for line in buckets)
    assert "█" in run("horizon", path, "--bucket", "1h", env={"FORCE_COLOR": "1"}).stdout
    assert "Use 1ms" in run("horizon", path, "--bucket", "0s", exits=2).stderr


def test_times_of_people_are_told_as_instants(run: Run, path: Path) -> None:
    put(path, b"x", delay=timedelta(minutes=30))
    found = run("pending", path, "--start", "now", "--end", "+1h")
    assert len(found.stdout.splitlines()) == 1
    assert "--start now: 20" in found.stderr and "--end +1h: 20" in found.stderr
    assert run("pending", path, "--start", "+1h").stdout == ""
    assert run("pending", path, "--end", "2099-01-01T00:00Z").stderr == ""
    told = run("put", path, "y", "--at", "tomorrow 09:00")
    assert "due tomorrow 09:00: 20" in told.stderr and "in " in told.stderr


def test_put_says_that_nothing_fires(run: Run, path: Path) -> None:
    assert "Nothing fires until a process has the store open" in run("put", path, "x").stderr
    assert run("put", path, "x", "--json").stderr == ""
    assert "a new one was made" in run("put", path.with_name("typo"), "x").stderr


def test_reschedule(run: Run, path: Path) -> None:
    (id,) = put(path, b"x")
    at_ms = 4_070_908_800_000
    new = json.loads(run("reschedule", path, id, "--at", "2099-01-01T00:00Z", "--json").stdout)
    assert (new["due_ms"], new["due"]) == (at_ms, "2099-01-01T00:00:00.000Z")
    assert "was fired or cancelled" in run("reschedule", path, id, "--delay", "1h", exits=1).stderr
    assert "Nothing to change was given" in run("reschedule", path, id, exits=2).stderr
    assert json.loads(run("get", path, new["id"], "--json").stdout)["due_ms"] == at_ms
    id = run("reschedule", path, new["id"], "--body", "-", "-p", "a=b", input=b"y").stdout.strip()
    found = json.loads(run("get", path, id, "--json").stdout)
    assert (found["due_ms"], found["body"], found["properties"]) == (at_ms, "y", {"a": "b"})


def test_foreign_variables_are_ignored_with_a_warning(path: Path) -> None:
    env = os.environ | {"TIMERSTORE_HOME": "x", "TIMERSTORE_DURABILTY": "process"}
    status, out, told = finish(process("count", path, env=env))
    assert (status, out) == (0, "0\n")
    assert "TIMERSTORE_HOME is no setting and is ignored\n" in told
    assert "did you mean TIMERSTORE_DURABILITY?" in told


def test_version(run: Run) -> None:
    assert run("--version").stdout.startswith("timerstore 1.")


def test_consume_acknowledges_what_a_reader_took_that_leaves(path: Path) -> None:
    """What was written is done, what was not comes again: nothing twice, nothing lost."""
    bodies = [b"%05d" % i + b"x" * 400 for i in range(1_000)]
    with timerstore.open(path, config=SMALL) as store:
        store.put_many(bodies)
    child = process("consume", path, "--timeout", "5")
    assert child.stdout is not None
    first = child.stdout.readline()
    child.stdout.close()
    assert (child.wait(timeout=120), first) == (0, bodies[0] + b"\n")
    assert child.stderr is not None
    child.stderr.close()
    with timerstore.open(path, config=SMALL) as store:
        again = [d.body for d in store.consume("default", timeout=0)]
    assert 1 <= len(bodies) - len(again) < 400, "a pipe holds some, and not a whole batch"
    assert again == bodies[len(bodies) - len(again) :]


def test_help_loads_no_kernels() -> None:
    code = "import sys, timerstore.cli.commands\n"
    code += "heavy = {'numba', 'numpy', 'pyarrow'} & set(sys.modules)\nassert not heavy, heavy"
    python("-c", code, timeout_s=60)


def test_finding_stores_and_copies_loads_no_engine() -> None:
    """Who asks an owner, lists copies, or plans a Spark query need not wait for it."""
    code = "import sys, timerstore.copies.destination, timerstore.tables.stores\n"
    python("-c", code + "assert 'timerstore.services.engine.engine' not in sys.modules")


def test_an_owner_that_is_silent_hinders_no_look(
    run: Run, path: Path, owner: timerstore.TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, say, or belongs to somebody else: its files tell as well."""

    def silent(*_: object, **__: object) -> None:
        raise timerstore.StoreAccessError("It does not answer.")

    timer = [*owner.pending()][-1]
    with monkeypatch.context() as patch:
        patch.setattr("timerstore.share.wire.Owner._send", silent)
        result = run("count", path, "--topic", "mail")
        assert result.stdout == "100\n"
        assert "It does not answer. This command reads the store's files instead." in result.stderr
        assert json.loads(run("get", path, timer.id, "--json").stdout)["id"] == timer.id
        assert len(run("pending", path, "--limit", 7).stdout.splitlines()) == 7
        assert run("horizon", path, "--bucket", "1d", "--end", "+2h").stdout
        assert "mail" in run("groups", path).stdout
        assert "It does not answer" in run("put", path, "x", exits=3).stderr
    monkeypatch.setattr("timerstore.cli.open_store.find_owner", silent)
    assert run("count", path, "--topic", "mail").stdout == "100\n"


def test_find_says_what_became_of_a_timer(run: Run, path: Path) -> None:
    with timerstore.open(path, config=SMALL) as store:
        id = store.put(b"x", topic="t", key="k")
        other = store.put(b"x", topic="t", delay=timedelta(hours=1))
        moved = store.reschedule(other, delay=timedelta(hours=2))
        store.pull("t", timeout=30).ack()
        asked = json.loads(run("find", path, id, "--json").stdout)  # of the process that has it
        assert asked == asdict(store.find(id)) | {"groups": asked["groups"]}
    told = json.loads(run("find", path, id, "--json").stdout)
    assert told == asked and told["state"] == "fired"
    assert told["groups"] == [{"group": "default", "state": "done", "attempt": 0}]
    rows = dict(line.split("\t", 1) for line in run("find", path, id).stdout.splitlines())
    assert (rows["state"], rows["key"], rows["group default"]) == ("fired", "k", "done, attempt 0")
    rows = dict(line.split("\t", 1) for line in run("find", path, other).stdout.splitlines())
    assert (rows["state"], rows["moved to"]) == ("moved", moved)
    told = json.loads(run("find", path, "of-a-broker", "--json", exits=1).stdout)
    assert (told["state"], told["due_ms"]) == ("unknown", None)


@pytest.mark.parametrize("command", [["pending"], ["pending", "--key", "k"], ["search", "text"]])
def test_a_limit_is_no_less_than_none(run: Run, path: Path, command: list[str]) -> None:
    put(path, b"a")
    assert "limit" in run(command[0], path, *command[1:], "--limit", -1, exits=2).stderr


def test_what_looks_into_a_damaged_store_says_so(run: Run, path: Path) -> None:
    put(path, b"some body", b"other")
    assert run("pending", path).stdout.count("\n") == 2
    flip_bit(path / "commitlog" / f"{0:020d}", b"some body")
    assert "is damaged" in run("pending", path, exits=1).stderr
    assert "is damaged" in run("search", path, "other", exits=1).stderr
