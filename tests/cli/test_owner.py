"""Commands that change a store, asked of the process that has it open."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerstore
from tests.cli.shell import SMALL, Run
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.slow

FAR_MS = 4_070_908_800_000


@pytest.fixture
def owner(path: Path) -> Iterator[timerstore.TimerStore]:
    """A program that has the store open."""
    with timerstore.open(path, config=SMALL) as store:
        yield store


def test_put_get_reschedule_cancel(run: Run, path: Path, owner: timerstore.TimerStore) -> None:
    options = ["--at", "2099-01-01T00:00Z", "--key", "k", "--tag", "t", "-p", "a=b", "-t", "mail"]
    result = run("put", path, "-", *options, input=b"\xffx")
    assert "Nothing fires" not in result.stderr
    id = result.stdout.strip()
    timer = owner.get(id)
    assert timer is not None
    assert (timer.body, timer.key, timer.tag, timer.topic) == (b"\xffx", "k", "t", "mail")
    assert (timer.due_ms, timer.properties) == (FAR_MS, {"a": "b"})
    assert json.loads(run("get", path, id, "--json").stdout)["body_base64"] == "/3g="
    assert run("count", path, "--topic", "mail").stdout == "1\n"

    new = run("reschedule", path, id, "--at-ms", FAR_MS + 1).stdout.strip()
    assert owner.get(id) is None and owner.get(new) is not None
    new = run("reschedule", path, new, "--body", "other").stdout.strip()
    timer = owner.get(new)
    assert timer is not None and (timer.body, timer.due_ms) == (b"other", FAR_MS + 1)
    assert (timer.key, timer.tag, timer.properties) == ("k", "t", {"a": "b"})
    assert run("cancel", path, new).stdout == f"{new}\tcancelled\n"
    run("reschedule", path, new, "--delay", "1h", exits=1)
    assert run("cancel", path, "--topic", "mail", "--key", "k", exits=1).stdout == "0\n"
    for key in ("k1", "k1", "k2"):
        owner.put(b"x", topic="mail", at_ms=FAR_MS, key=key)
    assert run("cancel", path, "--topic", "mail", "--key", "k1").stdout == "2\n"
    assert run("cancel", path, "--topic", "mail", "--key-prefix", "k").stdout == "1\n"
    assert owner.count() == 0


def test_lines_and_levels(run: Run, path: Path, owner: timerstore.TimerStore) -> None:
    ids = run("put", path, "--lines", "--at-ms", FAR_MS, input=b"one\ntwo\n").stdout.split()
    assert [timer.id for timer in owner.pending()] == ids
    run("put", path, "x", "--delay-level", 18)
    assert "1 to 18" in run("put", path, "x", "--delay-level", 19, exits=2).stderr
    assert owner.count() == 3


def test_what_the_owner_refuses_is_refused_here(
    run: Run, path: Path, owner: timerstore.TimerStore
) -> None:
    assert "looks like seconds" in run("put", path, "x", "--at-ms", 1_800_000_000, exits=2).stderr
    assert "topic is 'a/b'" in run("put", path, "x", "--topic", "a/b", exits=2).stderr
    run("cancel", path, "0" * 32, exits=2)


def test_import_and_clean(
    run: Run, path: Path, owner: timerstore.TimerStore, tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    rows = [{"body": f"{i}", "at_ms": FAR_MS + i // 9, "topic": f"t{i % 2}"} for i in range(300)]
    rows[7]["properties"] = {"p": "q"}  # type: ignore[assignment]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("import", path, file).stdout == "300 rows put\n"
    assert sorted(int(timer.body) for timer in owner.pending()) == list(range(300))
    (state,) = tmp_path.glob("*.import")
    told = json.loads(state.read_text())
    # As after a kill in the last chunk, of which all was put.
    told |= {"is_whole": False, "done_count": 0, "log_end": 0}
    state.write_text(json.dumps(told))
    owner.put(b"300", at_ms=FAR_MS)
    assert run("import", path, file).stdout.startswith("Nothing was put, because all 300")
    assert owner.count() == 301
    assert "on disk" in run("clean", path).stdout


def test_dead_retry_and_groups(run: Run, path: Path, owner: timerstore.TimerStore) -> None:
    consumer = timerstore.Consumer(owner, "mailer", max_attempts=0)

    @consumer.on("t")
    def fail(d: timerstore.Delivery) -> None:
        raise OSError(f"no {d.body.decode()}")

    ids = list(owner.put_many([b"a", b"b", b"c"], topic="t", keys=["k", "l", "m"]))
    with consumer:
        wait_until(lambda: any(each.dead_letter_count == 3 for each in owner.stats().groups))
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "120"}
    (row,) = [json.loads(line) for line in run("groups", path, "--json").stdout.splitlines()]
    assert (row["topic"], row["group"], row["dead_letter_count"]) == ("t", "mailer", 3)
    told = dict(line.split("\t", 1) for line in run("info", path).stdout.splitlines())
    assert (told["pending"], told["dead letters"]) == ("0", "3")
    assert told["fired, not handled"] == "0"
    _, line = run("groups", path).stdout.splitlines()
    assert line.split("\t")[:2] == ["t", "mailer"]
    assert "mailer" in run("groups", path, env=terminal).stdout

    told = run("dead", path, "mailer", "--json").stdout.splitlines()
    letters = [json.loads(line) for line in told]
    assert {each["error_type"] for each in letters} == {"OSError"}
    _, *plain = run("dead", "list", path, "mailer").stdout.splitlines()  # behind the header
    assert {line.split("\t")[-1] for line in plain} == {f"OSError: no {each}" for each in "abc"}
    found = sorted((each["id"], each["body"], each["key"]) for each in letters)
    assert found == [*zip(ids, "abc", "klm", strict=True)]
    assert letters[0]["id"] in run("dead", path, "mailer", "-n", 1, env=terminal).stdout
    assert run("dead", "retry", path, "mailer", ids[1]).stdout == "1\n"
    _, *plain = run("dead", path, "mailer").stdout.splitlines()
    left = [line.split("\t")[2] for line in plain]
    assert sorted(left) == [ids[0], ids[2]]
    shown = run("dead", "show", path, "mailer", ids[0], env=terminal).stdout
    assert "OSError: no a" in shown and "first failed" in shown
    assert json.loads(run("dead", "show", path, "mailer", ids[0], "--json").stdout)["key"] == "k"
    assert run("dead", "drop", path, "mailer", ids[0]).stdout == "1\n"
    run("dead", "show", path, "mailer", ids[0], exits=1)
    assert "--all" in run("dead", "drop", path, "mailer", exits=2).stderr
    assert "--all" in run("dead", "drop", path, "mailer", ids[2], "--all", exits=2).stderr
    assert run("dead", "retry", path, "mailer").stdout == "1\n"
    assert json.loads(run("dead", "drop", path, "mailer", "--all", "--json").stdout) == {
        "group": "mailer",
        "dropped": 0,
    }
    none = run("dead", path, "mailer")
    assert len(none.stdout.splitlines()) == 1  # the header
    assert "The group mailer has no dead letters" in none.stderr
