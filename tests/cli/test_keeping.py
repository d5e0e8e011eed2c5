"""The shell: copies of a store."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.cli.shell import SMALL, Run
from tests.sparse_copy import copy_tree

pytestmark = pytest.mark.slow


def test_backup_and_restore(run: Run, path: Path, tmp_path: Path) -> None:
    dest, new = tmp_path / "backup", tmp_path / "restored"
    with timerstore.open(path, config=SMALL) as store:  # an owner, also while it is backed up
        store.put(b"first", delay=timedelta(hours=1))
        store.flush()
        assert "point 1 of 1" in run("backup", path, dest).output
        store.put(b"second", delay=timedelta(hours=1))
        told = json.loads(run("backup", path, dest, "--keep", 2, "--json").stdout)
        assert told["ok"] and told["message_count"] == 1 and told["point"]["number"] == 2
    points = [json.loads(line) for line in run("restore", dest, "--json").stdout.splitlines()]
    assert [point["number"] for point in points] == [1, 2]
    assert run("restore", dest).stdout.splitlines()[0].startswith("1\t")
    assert "1 timers pending" in run("restore", dest, new, "--at", points[0]["time_ms"]).output
    assert run("pending", new).output.count("first") == 1
    assert run("pending", dest).output.count("\n") >= 2
    noted = run("count", dest)
    assert noted.stdout == "2\n"
    assert f"{dest} is a backup. What follows is as of its last point" in noted.output
    assert "was not closed" not in noted.output and "/timerstore-" not in noted.output
    assert "no damage" in run("verify", dest).output
    assert "exists and is not empty" in run("restore", dest, new, exits=2).output
    assert "DEST is missing" in run("restore", dest, "--at", "now", exits=2).output
    assert "earliest point" in run("restore", dest, tmp_path / "x", "--at", "-9h", exits=2).output
    assert "no backup" in run("restore", path, tmp_path / "x", exits=3).output
    assert "lies inside" in run("backup", path, path / "backup", exits=2).output
    assert run("backup", tmp_path / "nothing", dest, exits=3)
    assert "is a backup" in run("put", dest, "x", exits=3).output
    last = run("restore", dest, tmp_path / "last", "--json")
    assert json.loads(last.stdout)["pending_count"] == 2


def test_damage_is_status_1(run: Run, path: Path, tmp_path: Path) -> None:
    with timerstore.open(path, config=SMALL) as store:
        store.put_many([b"body"] * 10, delay_ms=3_600_000)
    run("backup", path, tmp_path / "backup")
    bad = copy_tree(tmp_path / "backup", tmp_path / "bad")
    for log in (bad / "log", path / "commitlog"):
        with next(each for each in log.rglob("*") if each.is_file()).open("r+b") as file:
            file.seek(300)
            file.write(b"?")
    assert "is damaged" in run("restore", bad, tmp_path / "new", exits=1).output
    assert not (tmp_path / "new").exists()
    assert run("verify", bad, exits=1).output
    out = run("backup", path, tmp_path / "again", exits=1).output
    assert "DAMAGED: commitlog at" in out
    assert "9 timers" in run("restore", tmp_path / "again", tmp_path / "new", exits=1).output


def test_salvage(run: Run, path: Path, tmp_path: Path) -> None:
    with timerstore.open(path, config=SMALL) as store:
        store.put_many([b"body"] * 10, delay_ms=3_600_000)
    with next((path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(300)
        file.write(b"?")
    out = run("salvage", path, tmp_path / "new", exits=1).output
    assert "9 timers are pending" in out and "lost: commitlog at" in out
    assert "no damage" in run("verify", tmp_path / "new").output
    told = json.loads(run("salvage", tmp_path / "new", tmp_path / "next", "--json").stdout)
    assert told["ok"] and told["pending_count"] == 9 and told["lost"] == []
    (tmp_path / "empty").mkdir()
    assert (
        "no file of a commit log"
        in run("salvage", tmp_path / "empty", tmp_path / "x", exits=3).output
    )
