"""The shell: what each command writes, with which exit status."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import timerstore
from tests.cli.shell import Run, finish, process, put
from tests.rigs.program import ended
from tests.rigs.waiting import wait_until
from timerstore.cli.commands import app
from timerstore.cli.output import Status
from timerstore.errors import TimerStoreError
from timerstore.testing.damage import flip_bit
from timerstore.values.amounts import shown_bytes

pytestmark = pytest.mark.slow


# --- put, pending, cancel


def test_put_pending_cancel(run: Run, path: Path) -> None:
    id = run("put", path, "order:42", "-t", "mail", "--delay", "1h", "--key", "k").stdout.strip()
    (line,) = run("pending", path).stdout.splitlines()
    assert line.split("\t")[1:] == ["mail", id, "k", "", "order:42"]

    assert run("cancel", path, id).stdout == f"{id}\tcancelled\n"
    assert run("pending", path).stdout == ""
    late = json.loads(run("put", path, "now", "--json").stdout)
    run("consume", path, "--count", 1)
    verdict = json.loads(run("cancel", path, "-", "--json", input=late["id"], exits=1).stdout)
    assert verdict == {"id": late["id"], "cancelled": False}


def test_by_a_key(run: Run, path: Path) -> None:
    for key in ("user:7", "user:7", "user:71", "other"):
        run("put", path, key, "-t", "mail", "--delay", "1h", "--key", key)
    lines = run("pending", path, "-t", "mail", "--key", "user:7").stdout.splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["user:7", "user:7"]
    assert run("pending", path, "--key", "user:7").stdout.splitlines() == lines

    cancelled = run("cancel", path, "--topic", "mail", "--key", "user:7", "--json").stdout
    assert json.loads(cancelled)["cancelled"] == 2
    assert run("cancel", path, "-t", "mail", "--key", "user:7", exits=1).stdout == "0\n"
    assert run("cancel", path, "-t", "mail", "--key-prefix", "us").stdout == "1\n"
    assert run("cancel", path, "-t", "mail", "--key-prefix", "us", exits=1).stdout == "0\n"
    (left,) = run("pending", path).stdout.splitlines()
    assert left.endswith("other")
    for wrong in ([], ["--key", "k"], ["0" * 32, "-t", "mail"], ["-t", "mail"]):
        run("cancel", path, *wrong, exits=2)


def test_all_of_a_topic(run: Run, path: Path) -> None:
    for key in ("a", "ab", None):
        run("put", path, "x", "-t", "mail", "--delay", "1h", *(["--key", key] if key else []))
    run("put", path, "x", "-t", "other", "--delay", "1h")
    for which, count in (("--all", 3), ("--key=a", 1), ("--key-prefix=a", 2)):
        assert run("cancel", path, "-t", "mail", which, "--dry-run").stdout == f"{count}\n"
    assert "--all" in run("cancel", path, "-t", "mail", "--key-prefix", "", exits=2).stderr
    told = run("cancel", path, "-t", "mail", "--all", "--dry-run", "--json").stdout
    assert json.loads(told)["dry_run"] is True
    with timerstore.open(path):  # a dry run does not need to open the store itself
        dry = run("cancel", path, "-t", "mail", "--key=none", "--dry-run", exits=1)
        assert dry.stdout == "0\n"
    assert run("cancel", path, "-t", "mail", "--all").stdout == "3\n"
    assert run("cancel", path, "-t", "mail", "--all", exits=1).stdout == "0\n"
    for more in ([], ["--dry-run"]):
        said = run("cancel", path, "-t", "mial", "--all", *more, exits=2).stderr
        assert "no topic 'mial'" in said
    assert run("count", path).stdout == "1\n"
    run("cancel", path, "--all", exits=2)
    run("cancel", path, "--dry-run", "0" * 32, exits=2)


def test_what_has_fired_is_dropped(run: Run, path: Path) -> None:
    with timerstore.open(path) as store:
        store.put_many([b"%d" % i for i in range(5_000)], topic="mail")
        store.pull("mail", group="other", max_count=5_000, timeout=20)
        wait_until(lambda: store.count() == 0)
        store.pause("firing", keep=True)
        store.put(b"overdue", topic="mail")
    run("drop", path, "-t", "mail", exits=2)
    run("drop", path, "-t", "mial", "--fired", exits=2)
    for more in (["--dry-run"], []):
        assert run("drop", path, "-t", "mail", "-g", "g", "--fired", *more).stdout == "5000\n"
    assert json.loads(run("drop", path, "-t", "mail", "-g", "g", "--fired", "--json").stdout) == {
        "topic": "mail",
        "group": "g",
        "dropped": 0,
    }
    run("resume", path, "firing")
    assert run("consume", path, "-t", "mail", "-g", "g", "-n", 1).stdout == "overdue\n"


def test_put_makes_the_store_and_takes_every_option(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[timerstore]\ncommitlog_segment_bytes = 1048576\n")
    path, options = tmp_path / "new", ["--config", config, "--json"]
    given = ["--at", "2099-01-01T02:00+02:00", "--tag", "t", "-p", "a=1", "-p", "b==", "--key", "k"]
    made = json.loads(run("put", path, *given, "-", *options, input=b"\xff\x00").stdout)
    assert made["due_ms"] == 4_070_908_800_000

    (timer,) = map(json.loads, run("pending", path, *options).stdout.splitlines())
    assert (timer["key"], timer["tag"]) == ("k", "t")
    assert timer["properties"] == {"a": "1", "b": "="}
    assert timer["body_base64"] == "/wA="
    assert timer["id"] == made["id"]


def test_put_with_a_jitter(run: Run, path: Path) -> None:
    at, late = 4_070_908_800_000, 4_070_908_800_000 + 3_600_000
    run("put", path, "--lines", "--at-ms", at, "--jitter", "1h", input=b"1\n2\n3\n4")
    run("put", path, "x", "--at-ms", at, "--jitter", "1h", "--expires", "5000w")
    due = [
        json.loads(line)["due_ms"] for line in run("pending", path, "--json").stdout.splitlines()
    ]
    assert len(due) == 5 and len(set(due)) > 1 and at <= min(due) and max(due) <= late


def test_put_lines(run: Run, path: Path) -> None:
    lines = b"one\ntwo\r\n\nthree"
    ids = run("put", path, "--lines", "--at-ms", 4_070_908_800_000, input=lines).stdout.split()
    assert len(set(ids)) == 3
    pending = [json.loads(line) for line in run("pending", path, "--json").stdout.splitlines()]
    assert [(each["id"], each["body"]) for each in pending] == [
        (ids[0], "one"),
        (ids[1], "two"),
        (ids[2], "three"),
    ]


def test_pending_takes_bounds(run: Run, path: Path) -> None:
    for at in ("2090", "2091", "2092"):
        run("put", path, at, "--at", f"{at}-01-01T00:00Z")
    found = run("pending", path, "--start", "2091-01-01T00:00Z", "--end", "3850761600001")
    assert [line.split("\t")[-1] for line in found.stdout.splitlines()] == ["2091", "2092"]
    assert len(run("pending", path, "--limit", 1).stdout.splitlines()) == 1
    run("pending", path, "--topic", "other", exits=2)


def test_text_steers_no_terminal(run: Run, path: Path) -> None:
    put(path, b"two\nlines\x1b[2J", key="\x1b]0;title\x07[bold]")
    (line,) = run("pending", path).stdout.splitlines()
    assert line.split("\t")[-1] == r"two\nlines\x1b[2J"
    shown = run("pending", path, env={"FORCE_COLOR": "1", "COLUMNS": "200"}).stdout
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
    assert "[bold]" in shown


def test_pending_shows_bodies_whole_where_programs_read(run: Run, path: Path) -> None:
    """A body that was cut in the middle of a text had lost a quote, and nothing said so."""
    long = b'{"text": "' + b"a" * 300 + b'", "end": "quoted"}'
    put(path, long, "\N{BAR CHART}".encode() * 60 + b'"')
    lines = run("pending", path).stdout.splitlines()
    assert lines[0].split("\t")[-1] == long.decode()
    assert lines[1].endswith('\N{BAR CHART}"')
    shown = run("pending", path, env={"FORCE_COLOR": "1", "COLUMNS": "120"}).stdout
    assert shown.count("…") == 2


# --- consume


def test_consume_acknowledges_what_it_wrote(run: Run, path: Path) -> None:
    put(path, b"a", b"b", delay=None)
    for _ in range(2):
        assert run("consume", path, "--no-ack", "--count", 2).stdout == "a\nb\n"
    (first,) = run("consume", path, "--count", 1, "--json").stdout.splitlines()
    assert json.loads(first).items() >= {"body": "a", "attempt": 0, "topic": "default"}.items()
    assert run("consume", path, "--timeout", 0.5).stdout == "b\n"
    assert run("consume", path, "--timeout", 0).stdout == ""
    assert run("consume", path, "--count", 2, "--group", "other").stdout == "a\nb\n"


def test_consume_shows_lateness_on_a_terminal(run: Run, path: Path) -> None:
    (id,) = put(path, b"a", delay=None)
    shown = run("consume", path, "--count", 1, env={"FORCE_COLOR": "1"}).stdout
    assert f" ms\t{id}\ta\n" in shown


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_consume_ends_cleanly(path: Path, number: int, status: int) -> None:
    put(path, b"a", delay=None)
    child = process("consume", path)
    assert child.stdout is not None
    assert child.stdout.readline() == b"a\n"
    child.send_signal(number)
    assert finish(child)[0] == status
    assert not (path / "abort").exists()
    with timerstore.open(path) as store:
        assert store.core.findings.clean


# --- info, export


def test_info(run: Run, path: Path) -> None:
    put(path, b"a", b"b", topic="mail")
    put(path, b"c", topic="bills")
    plain = dict(line.split("\t", 1) for line in run("info", path).stdout.splitlines())
    assert plain["pending"] == "3"
    told = json.loads(run("info", path, "--json").stdout)
    pending = {each["topic"]: each["pending_count"] for each in told["topics"]}
    assert pending == {"bills": 1, "mail": 2}
    assert told["pending_count"] == 3
    assert told["recovery"]["clean"] is True
    assert "bills" in run("info", path, env={"FORCE_COLOR": "1"}).stdout


@pytest.mark.parametrize("end", ["closed", "reopened"])
def test_what_pending_timers_take_is_known_or_not_said(run: Run, path: Path, end: str) -> None:
    """Of a store that was opened with timers in it nobody has counted the messages' bytes."""
    put(path, *[b"x" * 1_000] * 40)
    with timerstore.open(path, read_only=True) as store:
        length = store.stats().commitlog_end
        assert store.stats().cleaning.pending_bytes == length  # and nothing else is in it
    if end == "closed":
        plain = dict(line.split("\t", 1) for line in run("info", path).stdout.splitlines())
        assert plain["pending take"] == shown_bytes(length)
        return
    with timerstore.open(path) as store:
        assert store.stats().cleaning.pending_bytes is None
        plain = dict(line.split("\t", 1) for line in run("info", path).stdout.splitlines())
        assert plain["pending take"] == f"more than their bodies' {shown_bytes(40_000)}"
        assert "pending take more than their bodies' 39.1 KiB\n" in str(store.stats())


def test_export(run: Run, path: Path, tmp_path: Path) -> None:
    ids = put(path, b"a", b"\xff", properties={"p": "q"}, key="k")
    line, other = map(json.loads, run("export", path, "-").stdout.splitlines())
    assert (line["id"], line["body"], line["properties"]) == (ids[0], "a", {"p": "q"})
    assert other["body_base64"] == "/w=="

    parquet, arrow = tmp_path / "out.parquet", tmp_path / "out.arrow"
    assert run("export", path, parquet).stdout == f"2 rows written to {parquet}\n"
    told = json.loads(run("export", path, arrow, "--json").stdout)
    assert told == {
        "file": str(arrow),
        "table": "pending",
        "format": "arrow",
        "count": 2,
        "as_of_ms": None,
    }
    table = pq.read_table(parquet)
    assert table.column("id").to_pylist() == ids
    assert table.column("body").to_pylist() == [b"a", b"\xff"]
    with pa.OSFile(str(arrow)) as file:
        assert pa.ipc.open_stream(file).read_all().column("id").to_pylist() == ids


def test_export_of_other_tables(run: Run, path: Path, tmp_path: Path) -> None:
    put(path, b"late", delay=None)
    run("consume", path, "--count", 1)
    put(path, b"early")
    target = tmp_path / "out.jsonl"
    run("export", path, target, "--table", "fired")
    assert [json.loads(line)["body"] for line in target.read_text().splitlines()] == ["late"]
    run("export", path, target, "--table", "messages", "--format", "jsonl")
    assert len(target.read_text().splitlines()) == 3


def test_export_that_fails_leaves_nothing(run: Run, tmp_path: Path) -> None:
    run("export", tmp_path / "none", tmp_path / "out.jsonl", exits=3)
    assert list(tmp_path.iterdir()) == []


# --- verify, handover


def test_verify_of_a_sound_store(run: Run, path: Path) -> None:
    put(path, b"a", b"b")
    (line,) = run("verify", path).stdout.splitlines()
    assert line.startswith(f"{path}: no damage found in 2 messages")
    told = json.loads(run("verify", path, "--json").stdout)
    assert (told["ok"], told["problems"], told["message_count"]) == (True, [], 2)


def test_verify_finds_damage(run: Run, path: Path) -> None:
    put(path, b"some body", b"other")
    flip_bit(path / "commitlog" / f"{0:020d}", b"some body")
    verdict, first, *_ = run("verify", path, exits=1).stdout.splitlines()
    assert first.split("\t")[:2] == ["commitlog", "0"]
    assert "damaged places in" in verdict
    assert json.loads(run("verify", path, "--json", exits=1).stdout)["ok"] is False
    assert "commitlog" in run("verify", path, exits=1, env={"FORCE_COLOR": "1"}).stdout


def test_handover(run: Run, path: Path) -> None:
    put(path, b"a")
    told = json.loads(run("handover", path, "--json").stdout)
    assert told["handed_over"] is True and Path(told["broker_conf"]).is_file()
    assert told["open_before_ms"] > time.time_ns() // 1_000_000 + 5 * 86_400_000
    names, broker, proxy = told["commands"]
    assert (names, proxy) == ("sh bin/mqnamesrv", "sh bin/mqproxy -n localhost:9876")
    assert broker == f"sh bin/mqbroker -n localhost:9876 -c {told['broker_conf']}"
    said = run("handover", path).stdout
    assert "Start the broker before" in said and all(
        f"  {each}\n" in said for each in told["commands"]
    )
    assert not (path / "abort").exists()
    assert json.loads(run("info", path, "--json").stdout)["pending_count"] == 1


# --- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["put", "STORE", "x", "--delay", "90"], 2, "such as 1h30m"),
        (["put", "STORE", "x", "--delay", "9" * 30 + "w"], 2, "too long"),
        (["put", "STORE", "x", "--at", "next year"], 2, "is no time. Write now"),
        (["put", "STORE", "x", "--jitter", "soon"], 2, "such as 1h30m"),
        (["put", "STORE", "x", "--delay-level", "99"], 2, "This store has 1 to 18"),
        (["put", "STORE", "x", "--delay-level", "0"], 2, "This store has 1 to 18"),
        (["put", "STORE", "x", "--at-ms", "1800000000"], 2, "looks like seconds"),
        (["put", "STORE", "x", "--at-ms", "1800000000000", "--delay", "1s"], 2, "Pass one of"),
        (["put", "STORE", "x", "-p", "name"], 2, "Write NAME=VALUE"),
        (["put", "STORE", "x", "--topic", "a/b"], 2, "topic is 'a/b'"),
        (["put", "STORE", "x", "--lines"], 2, "Leave out BODY"),
        (["put", "STORE", "x", "--config", "MISSING"], 2, "No such file"),
        (["cancel", "STORE", "0" * 32], 2, "0" * 32),
        (["export", "STORE", "out.xls"], 2, "pass --format"),
        (["consume", "STORE", "--group", "a b"], 2, "group is 'a b'"),
        (["info", "MISSING"], 3, "does not exist"),
        (["info", "EMPTY"], 3, "is no timer store"),
        (["verify", "EMPTY"], 3, "no commit log"),
        (["verify", "MISSING"], 3, "no commit log"),
        (["info", "FILE"], 3, "is no timer store"),
        (["info", "OTHER"], 3, "belong to no store"),
        (["put", "OTHER", "x"], 3, "belong to no store"),
    ],
)
def test_errors_say_what_to_do(
    run: Run, path: Path, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "other" / "notes.txt").touch()
    named = {"STORE": path} | {n: tmp_path / n.lower() for n in ("EMPTY", "OTHER", "FILE")}
    given = [named.get(each, tmp_path / "no" if each == "MISSING" else each) for each in arguments]

    result = run(*given, exits=status)
    assert message in result.stderr
    assert result.stdout == ""
    told = json.loads(run(*given, "--json", exits=status).stderr)
    assert message in told["message"]
    assert sorted(each.name for each in (tmp_path / "other").iterdir()) == ["notes.txt"]
    assert not list((tmp_path / "empty").iterdir())


def test_wrong_usage(run: Run, path: Path) -> None:
    run("put", exits=2)
    run("info", path, "--colour", exits=2)
    run("nothing", exits=2)


def test_help_names_every_command(run: Run) -> None:
    told = run("--help").stdout
    for name in [
        "info",
        "put",
        "consume",
        "cancel",
        "pending",
        "verify",
        "export",
        "handover",
    ]:
        assert name in told
        assert "--json" in run(name, "--help", env={"COLUMNS": "200"}).stdout


def test_a_setting_of_the_environment_is_checked(run: Run, path: Path) -> None:
    result = run("info", path, exits=2, env={"TIMERSTORE_DURABILITY": "none"})
    assert 'Use "group" or "process"' in result.stderr


def test_another_error_has_its_own_status(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise timerstore.StoreFullError("The disk is full. Make room.")

    monkeypatch.setattr(timerstore.TimerStore, "put", fail)
    assert issubclass(timerstore.StoreFullError, TimerStoreError)
    assert "Make room" in run("put", path, "x", exits=4).stderr


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyError("x"), 70, "Please report it"),
        (AssertionError(), 70, "Please report it"),
        (RecursionError("deep"), 70, "Please report it"),
        (RuntimeError("never"), 70, "Please report it"),
        (MemoryError(), 4, "the memory does not suffice"),
        (OSError(errno.EROFS, "Read-only file system"), 3, "read-only file system. Mount"),
        (OSError(errno.EIO, "Input/output error"), 4, "Check the disk"),
        (timerstore.FlushFailedError("It failed. Check."), 4, "It failed"),
        (timerstore.CorruptStoreError("commitlog", 0, "odd"), 1, "damaged at offset 0"),
    ],
)
def test_only_damage_leaves_with_one(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(timerstore.TimerStore, "put", fail)
    assert words in run("put", path, "x", exits=status).stderr
    told = json.loads(run("put", path, "x", "--json", exits=status).stderr)
    assert told["error"]
    assert ("traceback" in told) == (status == 70)


def test_dead_retry(path: Path, run: Run) -> None:
    with timerstore.open(path, clock=timerstore.ManualClock()) as store:
        consumer = timerstore.Consumer(store, "mailer", max_attempts=0)
        consumer.subscribe("t", lambda d: timerstore.Retry())
        ids = list(store.put_many([b"a", b"b", b"c"], topic="t"))
        assert consumer.step() == 3
        consumer.close()
    assert run("dead", "retry", path, "mailer", "--limit", 2).stdout == "2\n"
    told = json.loads(run("dead", "retry", path, "mailer", "--json").stdout)
    assert told == {"group": "mailer", "retried": 1}
    assert "group" in run("dead", "retry", path, "no/group", exits=2).stderr
    served = path.with_name("served")
    with timerstore.open(served) as store, timerstore.serve(store):
        for _ in range(2):  # the first one leaves no trace
            assert "typo" in run("dead", "retry", served, "typo", exits=2).stderr
            assert "typo" in run("dead", "drop", served, "typo", "--all", exits=2).stderr
            assert "typo" in run("dead", "show", served, "typo", "x", exits=2).stderr
        assert not [each for each in store.stats().groups if "typo" in each.group]
    with timerstore.open(path, clock=timerstore.ManualClock()) as store:
        again = list(store.consume("t", group="mailer", timeout=0))
        assert [(d.id, d.attempt) for d in again] == [(id, 0) for id in ids]


@pytest.mark.slow
def test_a_store_in_use_names_its_holder(path: Path) -> None:
    with timerstore.open(path):
        status, out, err = finish(process("handover", path))
        told = finish(process("handover", path, "--json"))
    assert (status, out) == (3, "")
    assert f"pid {os.getpid()}" in err
    assert json.loads(told[2])["error"] == "StoreLockedError"


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(path: Path) -> None:
    with timerstore.open(path) as store:
        store.put_many([b"x" * 50] * 4_000, delay_ms=3_600_000)
    child = process("pending", path)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=120) == 0
    assert child.stderr is not None
    with child.stderr:
        assert child.stderr.read() == b""


@pytest.mark.tier("prove", but=("pending", "export", "--help"))
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", ["pending", "info", "verify", "validate", "export", "--help"])
def test_no_reader_at_all_is_no_damage(path: Path, command: str) -> None:
    """Rich, Typer and Python's own end would each leave with 1 where a pipe is broken."""
    put(path, b"x" * 50)
    arguments = [command, path, "-"] if command == "export" else [command, path]
    read, write = os.pipe()
    os.close(read)
    try:
        child = process(*arguments, stdout=write)
    finally:
        os.close(write)
    assert finish_errors(child) == (0, "")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_damage_is_told_to_nobody_too(path: Path) -> None:
    put(path, b"some body")
    flip_bit(path / "commitlog" / f"{0:020d}", b"some body")
    read, write = os.pipe()
    os.close(read)
    child = process("verify", path, stdout=write)
    os.close(write)
    assert finish_errors(child)[0] == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("words", [["pending"], ["--help"], ["put", "--help"], ["--version"]])
def test_a_full_disk_behind_the_output(path: Path, words: list[str]) -> None:
    put(path, b"x" * 50)
    command = [*words, path] if words == ["pending"] else words
    with open("/dev/full", "w") as full:
        status, told = finish_errors(process(*command, stdout=full))
    assert status == 4
    assert "There is no space left for standard output" in told
    assert told.count("\n") == 1


@pytest.mark.tier("prove", but=("1>&-", "0<&- 1>&- 2>&-"))
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_files_take_no_store_s_place(path: Path, closed: str) -> None:
    """The next file that is opened would get the number, and be written to by whoever prints."""
    put(path, b"x" * 50)
    code = "from timerstore.cli import main; main()"
    command = f'exec "$0" -P -c "$1" pending "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, code, str(path)], capture_output=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert timerstore.verify(path).ok


def finish_errors(child: "subprocess.Popen[bytes]") -> tuple[int, str]:
    _, told = child.communicate(timeout=100)
    return child.returncode, told.decode()


@pytest.mark.slow
def test_an_error_outside_the_commands_is_our_own(path: Path) -> None:
    code = "import timerstore.cli.commands as c\n"
    code += "def fail(*_, **__): raise KeyError('x')\n"
    code += "c.app = fail\nfrom timerstore.cli import main; main()"
    done = ended("-c", code)
    assert done.returncode == 70
    assert (
        "this is a fault of timerstore, not yours: KeyError: 'x'. Please report it" in done.stderr
    )


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_a_missing_extra_is_named(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from timerstore.cli import main; main()"
    done = ended("-c", code, "info")
    assert done.returncode == 2
    assert done.stderr == (
        f"timerstore: this command needs {name}. Install it: pip install {name}\n"
    )


# --- what another user has


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
@pytest.mark.parametrize("name", ["s", "inside/s", "none/s"])
@pytest.mark.parametrize("command", ["put", "count", "cancel", "info"])
def test_a_folder_of_another_user_is_told_as_that(run: Run, name: str, command: str) -> None:
    """No process has it open, and standard output is fine: neither is blamed."""
    with tempfile.TemporaryDirectory() as top:  # one that others may enter
        folder = Path(top)
        folder.chmod(0o755)
        for each in ("inside", "none"):
            (folder / each).mkdir(mode=0o700)
        put(folder / "sound", b"x")  # as root, so that all is imported
        if not name.startswith("none"):
            put(folder / name, b"x")
        more = {"put": ["x"], "cancel": ["019C0F3A5B7C00000000000051C4D1E0"]}.get(command, [])
        CliRunner().invoke(app, [command, str(folder / "sound"), *more])
        os.seteuid(65_534)
        try:
            told = run(command, folder / name, *more, exits=Status.NO_STORE).stderr
        finally:
            os.seteuid(0)
        assert "rights" in told and "is open" not in told, told
        assert "standard output" not in told and str(folder / name).split("/s")[0] in told, told
