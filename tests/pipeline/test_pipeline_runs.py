"""A run: which stores it reads, what it leaves where one is gone, repeated, or killed."""

import os
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timerstore
from tests.pipeline.planted_stores import CONFIG, START_MS
from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, make_store
from tests.table_stores import eventful
from timerstore import Config, InvalidArgumentError, NotAStoreError, pipeline
from timerstore.errors import StoreAccessError, TimerStoreError
from timerstore.pipeline import TABLES
from timerstore.pipeline.runs import find_members
from timerstore.pipeline.tablefiles import TableFiles
from timerstore.pipeline.thresholds import Thresholds
from timerstore.validation import validate

pytestmark = pytest.mark.slow
DAY_MS = 86_400_000


def small(path: Path, count: int = 3) -> Path:
    """A store of a few pending timers."""
    clock = timerstore.ManualClock(START_MS)
    with timerstore.open(path, config=CONFIG, clock=clock) as store:
        store.put_many([b"x"] * count, delay_ms=[60_000 + i for i in range(count)])
        clock.advance(timedelta(0))
    return path


@pytest.fixture
def three(tmp_path: Path) -> Path:
    folder = tmp_path / "stores"
    for name in ("a", "b", "c"):
        small(folder / name)
    return folder


def all_rows(out: Path, **which: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tables but those that say how long it took."""
    found = {name: pipeline.read(out, name, **which).to_pylist() for name in TABLES}
    del found["runs"], found["metrics"]
    return found


# --- which stores


def names(stores: Any) -> list[str]:
    return [each.name for each in find_members(stores)]


def test_ways_to_name_stores(three: Path) -> None:
    paths = {name: str(three / name) for name in "abc"}
    assert names(str(three)) == names(three / "*") == ["a", "b", "c"]
    assert names([three / "a", str(three / "[bc]"), three / "a"]) == ["a", "b", "c"]
    assert names({"x": three / "a"}) == names([("x", str(three / "a"))]) == ["x"]
    table = pa.table({"name": list(paths), "path": list(paths.values())})
    assert names(table) == names(table.to_pandas()) == ["a", "b", "c"]
    frame = table.to_pandas().assign(note=[object()] * 3)
    frame["path"] = [Path(each) for each in frame["path"]]
    assert names(frame) == ["a", "b", "c"]
    assert dict(find_members(table)) == dict(find_members(paths)) == paths
    assert names([three / "a", three / "gone"]) == ["a", "gone"]


def test_stores_of_one_name_have_their_paths(three: Path, tmp_path: Path) -> None:
    other = small(tmp_path / "other" / "a")
    assert names([three, other]) == [str(three / "a"), "b", "c", str(other)]
    for wrong in ([("x", three / "a"), ("x", other)], [], 7, [(1, "a")]):
        with pytest.raises(InvalidArgumentError):
            find_members(wrong)
    with pytest.raises(NotAStoreError, match="is not there"):
        find_members(str(three / "no*"))


# --- what cannot be read


def test_what_cannot_be_read_is_a_row(three: Path, tmp_path: Path) -> None:
    make_store(three / "d")
    FAULTS["unit_topic"].plant(Patient(three / "d"))
    (three / "e").mkdir()
    (three / "e" / "timerstore.json").write_text("{")
    (three / "e" / "commitlog").write_text("no folder")
    paths = [three / name for name in ("a", "gone", "d", "e", "b")]
    found = pipeline.run(paths, tmp_path / "tables", run="one")
    assert found.verdict == "fail" and not found.ok
    states = {each.name: (each.state, each.verdict) for each in found.stores}
    assert states["gone"] == ("unreadable", "fail")
    assert states["d"] == states["e"] == ("damaged", "fail") and states["a"] == states["b"] == (
        "sound",
        "ok",
    )
    assert "NotAStoreError" in (found["gone"].error or "") and "gone" in str(found)
    assert [each.name for each in found["d"].findings if each.verdict == "fail"] == ["unit_topic"]
    assert found["d"].findings[0].places
    rows = {row["store"]: row for row in pipeline.read(tmp_path / "tables", "stores").to_pylist()}
    assert {name: row["state"] for name, row in rows.items()} == {
        name: state for name, (state, _) in states.items()
    }
    (run,) = pipeline.read(tmp_path / "tables", "runs").to_pylist()
    assert (run["stores"], run["unreadable"], run["verdict"]) == (5, 1, "fail")
    assert found.to_dict()["stores"][2]["findings"][0]["verdict"] == "fail"


def test_folders_that_are_refused_are_rows(three: Path, tmp_path: Path) -> None:
    """The operating system refuses each name below them, also to root."""
    for name in ("d", "e"):
        (three / name).symlink_to("x" * 300)
    for stores in (three, three / "*", [three / "a", three / "[de]"]):
        found = pipeline.run(stores, tmp_path / "tables")
        states = {each.name: each.state for each in found.stores}
        assert states["d"] == states["e"] == "unreadable" and states["a"] == "sound"
    assert "StoreAccessError" in (found["d"].error or "")
    with pytest.raises(StoreAccessError):
        timerstore.read(three / "*")


def test_a_folder_that_cannot_be_listed_is_a_row(three: Path, monkeypatch: Any) -> None:
    """It may be gone through, as one with the mode 0711."""
    (three / "closed" / "within").mkdir(parents=True)
    listdir = os.listdir

    def refuse(path: Any = ".") -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert names(three) == names(three / "*") == ["a", "b", "c", "closed"]


def test_a_store_that_is_open_is_read_to_its_checkpoint(tmp_path: Path) -> None:
    store, _ = eventful(tmp_path / "store", body=b"last", delay=timedelta(seconds=99))
    with store:
        store.flush()
        found = pipeline.run(tmp_path / "store", tmp_path / "tables", now_ms=START_MS + 7_000)
        assert found["store"].state == "sound"
        (row,) = pipeline.read(tmp_path / "tables", "stores").to_pylist()
        assert row["was_open"] and row["at_ms"] == START_MS + 7_000
        assert row["pending"] == store.count()


# --- tables


def test_the_rows_are_those_of_the_stores_tables(tmp_path: Path) -> None:
    eventful(tmp_path / "store", body=b"last", delay=timedelta(seconds=99))[0].close()
    out = tmp_path / "tables"
    pipeline.run(tmp_path / "store", out, run="one")
    pending = timerstore.read(tmp_path / "store", "timers").to_pylist()
    due = Counter[tuple[str, int]]()
    for row in pipeline.read(out, "due").to_pylist():
        due[row["topic"], row["minute_ms"]] += row["timers"]
        assert row["minute"].timestamp() * 1_000 == row["minute_ms"]
        assert row["hour_ms"] <= row["minute_ms"] < row["hour_ms"] + 3_600_000
    assert due == Counter((each["topic"], each["due_ms"] // 60_000 * 60_000) for each in pending)
    fired = timerstore.read(tmp_path / "store", "fired").to_pylist()
    lateness = pipeline.read(out, "lateness").to_pylist()
    assert sum(row["fired"] for row in lateness) == len(fired)
    (row,) = pipeline.read(out, "stores").to_pylist()
    assert row["pending"] == len(pending) == sum(row["due_profile"])
    assert row["fired"] == len(fired) == sum(row["late_profile"])
    slots = pipeline.read(out, "slot_load").to_pylist()
    assert sum(each["live"] for each in slots) >= len(pending)
    assert {each["top_topic"] for each in slots} == {"default"}
    growth = pipeline.read(out, "growth").to_pylist()
    assert sum(each["messages"] for each in growth) == row["messages"]
    assert {each["kind"] for each in growth} >= {"put", "fired", "cancelled"}


@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_a_broker_s_store(name: str, golden_unpacked: Any, tmp_path: Path) -> None:
    """Its slots hold what its messages say, though it rolls by other rules."""
    path = golden_unpacked(name)
    found = pipeline.run({name: path}, tmp_path, run="one")
    (row,) = pipeline.read(tmp_path, "stores").to_pylist()
    assert row["by_broker"] and row["state"] == "sound" and row["rolling"] > 100
    assert row["pending"] == timerstore.read(path, "timers", ["topic"]).num_rows
    rules = {each.name for each in found[name].findings}
    assert rules == ({"age_overdue"} if name == "crashed" else set())


@pytest.mark.parametrize("split_bytes", [500, 20_000])
def test_where_it_is_cut_changes_nothing(split_bytes: int, tmp_path: Path) -> None:
    eventful(tmp_path / "store", body=b"last", delay=timedelta(seconds=99))[0].close()
    pipeline.run(tmp_path / "store", tmp_path / "a", run="one")
    pipeline.run(tmp_path / "store", tmp_path / "b", run="one", split_bytes=split_bytes)
    assert all_rows(tmp_path / "a") == all_rows(tmp_path / "b")


def test_each_store_is_read_once(three: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """However many tables and rules there are, each range is looked at by one call."""
    from timerstore.pipeline import runs
    from timerstore.validation import rounds

    looked, planned = Counter[Any](), Counter[str]()
    look_at, make_plan = rounds.look_at, runs.make_plan

    def look(scope: Any, ranges: Any) -> Any:
        looked.update((scope.cut.path, *each) for each in ranges)
        return look_at(scope, ranges)

    def plan(path: str, *args: Any, **options: Any) -> Any:
        planned[path] += 1
        return make_plan(path, *args, **options)

    monkeypatch.setattr(rounds, "look_at", look)
    monkeypatch.setattr(runs, "make_plan", plan)
    pipeline.run(three, tmp_path / "tables")
    assert set(planned.values()) == set(looked.values()) == {1}
    assert len(planned) == 3 and {part for _, part, *_ in looked} >= {"commitlog", "timerlog"}


# --- repeated, killed


def test_a_run_replaces_what_it_wrote(three: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    pipeline.run(three, out, run="nightly", now_ms=START_MS)
    before = all_rows(out)
    files = sorted(out.rglob("*.parquet"))
    pipeline.run(three, out, run="nightly", now_ms=START_MS + DAY_MS)  # it keeps its day
    assert sorted(out.rglob("*.parquet")) == files and all_rows(out) == before
    pipeline.run(three / "a", out, run="other", now_ms=START_MS + DAY_MS)
    assert len(pipeline.read(out, "runs")) == 2
    assert all_rows(out, run="nightly") == before
    days = set(pipeline.read(out, "stores", run="other").column("day").to_pylist())
    assert days == {"2027-01-16"}

    pipeline.run([three / "a", three / "b"], out, run="nightly")
    left = all_rows(out, run="nightly")
    assert {row["store"] for rows in left.values() for row in rows} == {"a", "b"}
    assert [path for path in files if "store=c" in str(path) and path.exists()] == []
    assert not [path for path in out.rglob("*") if path.is_file() and path.suffix != ".parquet"]


@pytest.mark.promise
def test_killed_it_does_not_count_until_it_is_repeated(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "tables"
    pipeline.run(three, out, run="first")
    write = TableFiles.write
    for later, files_before in enumerate((0, 1, 3, 5, 11, 20)):
        left, now_ms = files_before, START_MS + later * DAY_MS

        def stop(self: TableFiles, *arguments: Any) -> str:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return write(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(TableFiles, "write", stop)
            with pytest.raises(KeyboardInterrupt):
                pipeline.run(three, out, run="second", now_ms=now_ms)
        assert not any(all_rows(out, run="second").values())
        assert len(all_rows(out, run="first")["stores"]) == 3
    pipeline.run(three, out, run="second", now_ms=now_ms + DAY_MS)
    assert {row["store"] for row in all_rows(out, run="second")["findings"]} == {"a", "b", "c"}
    # Nothing of it is left on another day, which Spark would count too.
    assert len({path.relative_to(out).parts[1] for path in out.rglob("second.parquet")}) == 1


def test_a_store_before_its_first_checkpoint(tmp_path: Path) -> None:
    config = Config(flush_interval_ms=86_400_000)
    with timerstore.open(tmp_path / "store", config=config) as store:
        store.put_many([b"x"] * 7, topic="t", delay_ms=[3_600_000] * 7)
        found = pipeline.run(tmp_path / "store")
        assert (found.verdict, found["store"].messages) == ("ok", 7)
        (row,) = found.read("stores").to_pylist()
        assert row["pending"] == validate(tmp_path / "store").counts["pending"] == 7
        assert timerstore.read(tmp_path / "store").num_rows == 7


def test_what_killed_runs_were_writing_is_removed(three: Path, tmp_path: Path) -> None:
    """Not what another run is writing now."""
    out = tmp_path / "tables"
    pipeline.run(three / "a", out, run="first")
    old, new = (out / "_unfinished" / f"second-{'0' * 31}{i}" for i in range(2))
    for each in (old, new):
        each.write_bytes(b"half")
    hours_ago_s = old.stat().st_mtime - 2 * 3_600
    os.utime(old, (hours_ago_s, hours_ago_s))
    pipeline.run(three / "a", out, run="third")
    assert list((out / "_unfinished").iterdir()) == [new]
    assert pipeline.read(out, "stores").num_rows == 2


# --- what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"roll_window_slots": 0},
        {"upto": "now"},
        {"delay_levels": "1x"},
        {"delay_levels": 7},
        {"split_bytes": 0},
    ],
)
def test_options_that_fit_no_store(wrong: dict[str, Any], three: Path, tmp_path: Path) -> None:
    """They are refused, before a store is looked at."""
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=name):
        pipeline.run(three, tmp_path / "tables", **wrong)
    assert not (tmp_path / "tables").exists()


def test_stores_that_are_no_paths(tmp_path: Path) -> None:
    for wrong in (b"stores", [b"stores"], [7], {"a": b"stores"}, [("a",)], [("a", "b", "c")]):
        with pytest.raises(InvalidArgumentError, match=r"Pass (a|pairs)"):
            pipeline.run(wrong, tmp_path / "tables")
    with pytest.raises(InvalidArgumentError, match="path is b'"):
        pipeline.run("stores", b"tables")  # type: ignore[arg-type]


def test_a_run_s_name_is_no_pattern(three: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    pipeline.run(three, out, run="one")
    for run in ("*", "on?", "", 7):
        with pytest.raises(InvalidArgumentError, match="run is"):
            pipeline.read(out, "stores", run=run)  # type: ignore[arg-type]
    assert pipeline.read(out, "stores", store="*").num_rows == 0
    with pytest.raises(InvalidArgumentError, match="no finished run"):
        pipeline.report(out, run="*")
    for wrong in ({"out": b"tables"}, {"out": out, "store": 7}):
        with pytest.raises(InvalidArgumentError):
            pipeline.read(table="stores", **wrong)  # type: ignore[arg-type]


def test_refusals(three: Path, tmp_path: Path) -> None:
    for run in ("", "a/b", "_a", ".", "a" * 101, 7):
        with pytest.raises(InvalidArgumentError, match="run is"):
            pipeline.run(three, tmp_path / "tables", run=run)  # type: ignore[arg-type]
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(TimerStoreError):
        pipeline.run(three, file)
    with pytest.raises(InvalidArgumentError, match="Did you mean due"):
        pipeline.read(tmp_path, "dew")
    with pytest.raises(InvalidArgumentError, match="no column"):
        pipeline.read(tmp_path, "due", columns=["topics"])
    assert pipeline.read(tmp_path, "due").num_rows == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[load_minutes]\nwarn = 1", "Did you mean load_minute"),
        ("[load_minute]\nwarm = 1", "Did you mean warn"),
        ("load_minute = 1", r"Write \[load_minute\]"),
        ("[load_minute]\nwarn = 2", "has a fail below its warn"),
        ("[load_minute]\nwarn = true", "Use a number from 0 on"),
        ("[load_minute]\nwarn = nan", "Use a number from 0 on"),
        ("fire_rate_per_s = 0", "Use a number"),
        ("fire_rate_per_s = inf", "Use a number"),
        ("[load", "is no TOML"),
        ("x = 1" + "0" * 5_000, "is no TOML"),
    ],
)
def test_wrong_thresholds(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(content)
    with pytest.raises(InvalidArgumentError, match=says):
        Thresholds.of(path)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        Thresholds.of(tmp_path / "gone.toml")


def test_other_versions_of_the_tables(three: Path, tmp_path: Path) -> None:
    """A column that came later is null; a newer version is refused."""
    out = tmp_path / "tables"
    pipeline.run(three / "a", out, run="one")
    (path,) = out.glob("stores/*/*/one.parquet")
    older = pq.read_table(path, partitioning=None).drop_columns(["hops"])
    pq.write_table(older, path)
    (row,) = pipeline.read(out, "stores").to_pylist()
    assert row["hops"] is None and row["pending"] == 3
    pq.write_table(older.replace_schema_metadata({"timerstore.pipeline.version": "2"}), path)
    with pytest.raises(InvalidArgumentError, match=re.escape("Use a newer timerstore.")):
        pipeline.read(out, "stores")


def test_names_that_no_folder_can_have(tmp_path: Path) -> None:
    small(tmp_path / "store")
    out = tmp_path / "tables"
    for name in ("a/b", "ä=1", "..", "50%"):
        found = pipeline.run({name: str(tmp_path / "store")}, out, run="one")
        assert found[name].verdict == "ok"
        assert set(pipeline.read(out, "due").column("store").to_pylist()) == {name}
        assert pipeline.read(out, "due", store=name).num_rows


def test_names_that_tables_cannot_have(tmp_path: Path) -> None:
    """A folder whose name is no UTF-8 has a mark in it; what is too long is refused at once."""
    odd = small(tmp_path / "stores" / "caf\udce9")
    found = pipeline.run(tmp_path / "stores", tmp_path / "tables", run="one")
    assert found["caf\ufffd"].verdict == "ok"
    (row,) = pipeline.read(tmp_path / "tables", "stores").to_pylist()
    assert row["store"] == "caf\ufffd" and row["path"].endswith("/caf\ufffd")
    for name in ("\udce9", "x" * 241, "日" * 81):
        with pytest.raises(InvalidArgumentError, match=r"Pass a str|too long"):
            find_members({name: odd})
    too_long = "/" + "x" * 300  # the operating system refuses it; no other store suffers
    assert names([odd, too_long[:240]]) == ["caf\ufffd", "x" * 239]
    state = pipeline.run({"a": odd, "b": too_long}, tmp_path / "tables")["b"].state
    assert state == "unreadable"
    assert names([odd, "/" + "x" * 300 + "/b"]) == ["caf\ufffd", "b"]
    with pytest.raises(InvalidArgumentError, match="path is None"):
        find_members({"a": None})
    with pytest.raises(KeyError):
        found["gone"]


def test_a_topic_that_is_no_utf_8(tmp_path: Path) -> None:
    """A message whose topic was damaged is a finding; the store's tables are there."""
    path = small(tmp_path / "store") / "commitlog" / ("0" * 20)
    content = path.read_bytes()
    assert content.count(b"REAL_TOPIC\x01default") == 3
    path.write_bytes(content.replace(b"REAL_TOPIC\x01default", b"REAL_TOPIC\x01\x80efault", 1))
    found = pipeline.run(tmp_path / "store", tmp_path / "tables")
    assert found["store"].state == "damaged"
    topics = pipeline.read(tmp_path / "tables", "due").column("topic").to_pylist()
    assert sorted(topics) == ["default", "\ufffdefault"]


def test_tables_below_a_folder_named_as_a_day(three: Path, tmp_path: Path) -> None:
    out = tmp_path / "day=2020-01-01" / "store=x" / "tables"
    for now_ms in (START_MS, START_MS + DAY_MS):
        pipeline.run(three, out, run="one", now_ms=now_ms)
    rows = pipeline.read(out, "stores").to_pylist()
    assert [(row["day"], row["store"]) for row in rows] == [("2027-01-15", x) for x in "abc"]


def test_a_damaged_table(three: Path, tmp_path: Path) -> None:
    """It is no fault of the store: the next run passes it over, who reads it is told."""
    out = tmp_path / "tables"
    pipeline.run(three / "a", out, run="one")
    (path,) = out.glob("stores/*/*/one.parquet")
    for content in (b"", b"junk", path.read_bytes()[:-9] + bytes(9)):
        path.write_bytes(content)
        assert pipeline.run(three / "a", out, run="two").verdict == "ok"
        with pytest.raises(InvalidArgumentError, match="Remove it, or repeat its run"):
            pipeline.read(out, "stores")
    pipeline.run(three / "a", out, run="one")
    assert pipeline.read(out, "stores").num_rows == 2


def test_a_newer_version_among_older_ones(three: Path, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "tables"
    with monkeypatch.context() as patch:
        patch.setattr("timerstore.pipeline.tablefiles.VERSION", 2)
        pipeline.run(three / "a", out, run="new")
    assert pipeline.run(three, out, run="old").verdict == "ok"
    with pytest.raises(InvalidArgumentError, match="Use a newer timerstore"):
        pipeline.read(out, "stores")
    assert pipeline.read(out, "stores", run="old").num_rows == 3
