"""Importing a file: what becomes of each row, also where it was killed on the way."""

import base64
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import timerstore
from tests.cli.shell import SMALL, Run, finish, process
from timerstore.cli import import_rows
from timerstore.cli.import_rows import progress_path

pytestmark = pytest.mark.slow

FAR_MS = 4_070_908_800_000


def lines(*values: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in values)


def pending(path: Path) -> list[tuple[Any, ...]]:
    with timerstore.open(path, read_only=True) as store:
        return [
            (each.topic, each.body, each.due_ms, each.key, each.tag, each.properties)
            for each in store.pending()
        ]


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 95 rows of all kinds, read ten at a time."""
    monkeypatch.setattr(import_rows, "CHUNK_ROWS", 10)
    file = tmp_path / "many.jsonl"
    values: list[dict[str, Any]] = []
    for i in range(95):
        row: dict[str, Any] = {"body": f"row {i // 3}", "at_ms": FAR_MS + i // 5}
        if i % 4 == 0:
            row["topic"] = f"t{i % 3}"
        if i % 7 < 3:
            row["key"] = f"k{i}"
        if i % 11 == 0:
            row["properties"] = {"p": str(i)}
        if i % 13 < 5:
            row["tag"] = "t"
        values.append(row)
    file.write_text(lines(*values))
    return file


def expected(file: Path) -> Counter[str]:
    names = {"topic": "default", "key": None, "tag": None, "properties": {}}
    return Counter(json.dumps(names | json.loads(line)) for line in file.read_text().splitlines())


def found(path: Path) -> Counter[str]:
    seen = Counter[str]()
    for topic, body, due_ms, key, tag, properties in pending(path):
        names = {"topic": topic, "key": key, "tag": tag, "properties": properties}
        seen[json.dumps(names | {"body": body.decode(), "at_ms": due_ms})] += 1
    return seen


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "arrow"])
def test_what_was_exported_comes_back(run: Run, path: Path, tmp_path: Path, form: str) -> None:
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"plain", at_ms=FAR_MS)
        store.put(b"\xff\x00binary", at_ms=FAR_MS + 1, topic="mail", key="k", tag="t")
        store.put(b'two\nlines, "quoted"', at_ms=FAR_MS + 2, properties={"a": "1", "b": ', "'})
        store.put(b"123", at_ms=FAR_MS + 3, key="007")
    file, copy = tmp_path / f"out.{form}", tmp_path / "copy"
    run("export", path, file)
    result = run("import", copy, file)
    assert result.stdout == "4 rows put\n"
    assert "Nothing fires" in result.stderr
    assert pending(copy) == pending(path)


def test_columns_and_times(run: Run, tmp_path: Path) -> None:
    file, path = tmp_path / "in.csv", tmp_path / "new"
    file.write_text(
        "when,wait,text,to,who\n"
        "2099-01-01T00:00Z,,one,mail,\n"
        '4070908800001,,"two, three",,ann\n'
        ',1h30m,four,"",bob\n'
    )
    before_ms = time.time_ns() // 1_000_000
    options = ["--due", "when", "--delay", "wait", "--body", "text", "--key", "who"]
    topics = ["--topic-column", "to", "--topic", "other"]
    assert "row 3: topic is ''" in run("import", path, file, *options, *topics, exits=2).stderr
    assert not path.exists()
    file.write_text(file.read_text().replace('""', ""))
    told = json.loads(run("import", path, file, *options, *topics, "--json").stdout)
    assert told == {"file": str(file), "rows": 3, "put": 3}
    late, one, two = pending(path)
    assert late[0] == "other" and 0 <= late[2] - before_ms - 5_400_000 < 60_000
    assert (one[:3], one[3]) == (("mail", b"one", FAR_MS), None)
    assert (two[:3], two[3]) == (("other", b"two, three", FAR_MS + 1), "ann")


def test_parquet_with_times(run: Run, tmp_path: Path) -> None:
    file, path = tmp_path / "in.parquet", tmp_path / "new"
    due = pa.array([FAR_MS, FAR_MS + 5], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"at": due, "body": pa.array([b"a", b"\xff"]), "id": [1, 2]}), file)
    run("import", path, file)
    assert [each[1:3] for each in pending(path)] == [(b"a", FAR_MS), (b"\xff", FAR_MS + 5)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"body": "x"}, "neither a time nor a delay"),
        ({"body": "x", "at_ms": FAR_MS, "delay": "1h"}, "both a time and a delay"),
        ({"body": "x", "at_ms": 1_800_000_000}, "looks like seconds"),
        ({"body": "x", "at": "soon"}, "'soon' is no time"),
        ({"body": "x", "delay": 90}, "such as 1h30m"),
        ({"at_ms": FAR_MS}, "no body"),
        ({"body": "", "at_ms": FAR_MS}, "body is empty"),
        ({"body": {"a": 1}, "at_ms": FAR_MS}, "is not a text"),
        ({"body": "\ud800", "at_ms": FAR_MS}, "no valid Unicode"),
        ({"body_base64": "*", "at_ms": FAR_MS}, "no base64"),
        ({"body": "x", "at_ms": FAR_MS, "topic": "a/b"}, "topic is 'a/b'"),
        ({"body": "x", "at_ms": FAR_MS, "key": 7}, "key is 7"),
        ({"body": "x", "at_ms": FAR_MS, "properties": {"a": 1}}, "object of texts"),
        ({"body": "x", "at_ms": FAR_MS, "properties": {"KEYS": "a"}}, "belongs to the system"),
        (
            {"body": "x", "at_ms": FAR_MS, "properties": {"TIMER_EXPIRES_MS": str(FAR_MS - 1)}},
            "would never be handed out",
        ),
    ],
)
def test_a_bad_row_is_named_before_any_is_put(
    run: Run, tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    file, path = tmp_path / "in.jsonl", tmp_path / "new"
    file.write_text(lines({"body": "good", "at_ms": FAR_MS}, row))
    told = run("import", path, file, exits=2).stderr
    assert words in told and "row 2: " in told
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl"]


def test_what_a_retry_made_late_is_taken(run: Run, path: Path, tmp_path: Path) -> None:
    """It waits for longer than until it expires."""
    with timerstore.open(path, config=SMALL) as store:
        store.put(b"x", topic="t", expires=600)
        for d in store.consume("t", group="g", timeout=5):
            d.nack(delay=3_600)
            break
    file, copy = tmp_path / "out.jsonl", tmp_path / "copy"
    run("export", path, file)
    assert run("import", copy, file).stdout == "1 rows put\n"
    with timerstore.open(copy, config=SMALL) as store:
        (timer,) = store.pending()
    assert (timer.topic, timer.body, timer.expires_ms) == ("%RETRY%g", b"x", None)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("in.jsonl", b"{", "line 1 is no JSON"),
        ("in.jsonl", b"[]", "no JSON object"),
        ("in.parquet", b"PAR1", "cannot be read"),
        ("in.arrow", b"no stream", "cannot be read"),
        ("in.csv", b"a,b\n1,2,3\n", "cannot be read"),
        ("in.csv", b"", "cannot be read"),
        ("in.xls", b"", "pass --format"),
    ],
)
def test_a_file_that_is_none(
    run: Run, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in run("import", tmp_path / "new", tmp_path / name, exits=2).stderr
    assert not (tmp_path / "new").exists()


class Killed(BaseException):
    """As far as the process came."""


def interrupted(store_put: Any, count: int, calls: Iterator[int]) -> Any:
    """A put that does what it should `count` times, then ends the process."""

    def put(self: timerstore.TimerStore, *arguments: Any, **options: Any) -> Any:
        if next(calls) >= count:
            raise Killed
        return store_put(self, *arguments, **options)

    return put


@pytest.mark.parametrize("count", [0, 1, 7, 21, 50])
def test_an_import_that_was_killed_goes_on(
    run: Run, path: Path, many: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Each killed run puts some; the last one the rest: nothing twice, nothing missing."""
    for part in (count, 5):
        with monkeypatch.context() as patch:
            calls = iter(range(10_000))
            for name in ("put", "put_many"):
                plain = getattr(timerstore.TimerStore, name)
                patch.setattr(timerstore.TimerStore, name, interrupted(plain, part, calls))
            patch.setattr(timerstore.TimerStore, "close", timerstore.TimerStore.abandon)
            with pytest.raises((Killed, AssertionError)):
                run("import", path, many)
        with timerstore.open(path, config=SMALL) as store:  # somebody else was there meanwhile
            store.put(b"other", at_ms=FAR_MS + 10_000)
    told = json.loads(run("import", path, many, "--json").stdout)
    assert told["rows"] == 95
    others = {"topic": "default", "key": None, "tag": None, "properties": {}, "body": "other"}
    others |= {"at_ms": FAR_MS + 10_000}
    assert found(path) - Counter({json.dumps(others): 2}) == expected(many)
    assert json.loads(run("import", path, many, "--json").stdout)["put"] == 0


def test_a_file_that_has_grown_is_not_put_twice(run: Run, path: Path, many: Path) -> None:
    run("import", path, many)
    with many.open("a") as file:
        file.write(many.read_text().splitlines()[-1] + "\n")
    text = run("import", path, many, exits=2).stderr
    assert "was imported before" in text and "--again" in text
    assert json.loads(run("count", path, "--json").stdout)["count"] == 95
    assert run("import", path, many, "--again").stdout == "96 rows put\n"


def test_progress_is_noted_in_a_folder(run: Run, path: Path, many: Path, tmp_path: Path) -> None:
    """One for all files: each has a file of its own there."""
    (tmp_path / "progress").mkdir()
    other = tmp_path / "other.jsonl"
    other.write_text(lines({"body": "other", "at_ms": FAR_MS}))
    for put in (95, 0):
        for file, count in ((many, put), (other, min(put, 1))):
            told = run("import", path, file, "--progress", tmp_path / "progress", "--json").stdout
            assert json.loads(told)["put"] == count
    assert len(list((tmp_path / "progress").iterdir())) == 2
    assert not list(tmp_path.glob("*.import"))


def test_properties_that_are_no_object_are_refused(run: Run, path: Path, tmp_path: Path) -> None:
    for value in ("[1]", '[["a", "b"]]', "7", '{"a": 1}'):
        file = tmp_path / "import_rows.jsonl"
        file.write_text(f'{{"at": "+1h", "body": "x", "properties": {value}}}\n')
        assert "properties" in run("import", path, file, exits=2).stderr


def test_put_once_and_again(run: Run, path: Path, many: Path, tmp_path: Path) -> None:
    run("import", path, many)
    assert "all 95 rows had been put before" in run("import", path, many).stdout
    assert run("import", tmp_path / "other", many).stdout == "95 rows put\n", "another store"
    assert run("import", path, many, "--again").stdout == "95 rows put\n"
    with timerstore.open(path, read_only=True) as store:
        assert store.count() == 190
    many.write_text(lines({"body": "new", "at_ms": FAR_MS}))
    assert run("import", path, many).stdout == "1 rows put\n", "another file of that name"


def test_an_import_that_was_begun_is_of_that_file(
    run: Run, path: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(timerstore.TimerStore, "flush", interrupted(None, 0, iter([1])))
        with pytest.raises(Killed):
            run("import", path, many)
    assert "other options" in run("import", path, many, "--topic", "x", exits=2).stderr
    whole = many.read_text()
    many.write_text(whole + lines({"body": "more", "at_ms": FAR_MS}))
    assert "was changed after" in run("import", path, many, exits=2).stderr
    many.write_text(whole)
    run("import", path, many)
    assert found(path) == expected(many)
    (state,) = many.parent.glob("*.import")
    state.write_text("{")
    assert "Put back a copy" in run("import", path, many, exits=2).stderr


def test_what_is_overdue_is_put_once_too(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its due time in the log is when it was put, which is not the row's."""
    file = tmp_path / "in.jsonl"
    file.write_text(lines(*({"body": f"{i}", "at_ms": 1_600_000_000_000 + i} for i in range(30))))
    with monkeypatch.context() as patch:
        patch.setattr(timerstore.TimerStore, "flush", interrupted(None, 0, iter([1])))
        with pytest.raises(Killed):
            run("import", path, file)
    assert json.loads(run("import", path, file, "--json").stdout) == {
        "file": str(file),
        "rows": 30,
        "put": 0,
    }
    with timerstore.open(path) as store:
        bodies = [d.body for d in store.consume("default", timeout=1)]
    assert sorted(map(int, bodies)) == list(range(30))


@pytest.mark.prove
def test_a_process_that_is_killed(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    with file.open("w") as out:
        for i in range(20_000):
            body = base64.b64encode(b"%d" % i).decode()
            out.write(f'{{"body_base64": "{body}", "at_ms": {FAR_MS + i}}}\n')
    child = process("import", path, file)
    state = None
    while child.poll() is None and state is None:
        state = next(iter(tmp_path.glob("*.import")), None)
        time.sleep(0.01)
    time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    finish(child)
    status, out_text, _ = finish(process("import", path, file))
    assert (status, "rows" in out_text) == (0, True)
    with timerstore.open(path, read_only=True) as store:
        bodies = store.pending_columns(columns=["body"])["body"].to_pylist()
    assert sorted(map(int, bodies)) == list(range(20_000))
    assert state == progress_path(file, int(state.name.split(".")[-2], 16)) if state else True


def test_two_imports_of_one_file_are_refused(run: Run, path: Path, many: Path) -> None:
    import fcntl

    with many.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "is importing" in run("import", path, many, exits=3).stderr


def test_long_lines_are_put_in_parts(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a client has a limit in bytes."""
    monkeypatch.setattr("timerstore.cli.changes._BYTES_AT_ONCE", 100)
    sizes, put_many = list[int](), timerstore.TimerStore.put_many

    def noted(store: timerstore.TimerStore, bodies: list[bytes], **options: Any) -> Any:
        sizes.append(sum(map(len, bodies)))
        return put_many(store, bodies, **options)

    monkeypatch.setattr(timerstore.TimerStore, "put_many", noted)
    lines = b"\n".join(b"x" * size for size in range(1, 90))
    run("put", path, "--lines", "--delay", "1h", input=lines)
    assert len(sizes) > 20 and max(sizes) < 200 and sum(sizes) == sum(range(1, 90))
