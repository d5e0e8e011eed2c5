"""`./run prove` loses nothing of what it has played."""

import argparse
import sys
from pathlib import Path

import pytest

from tests import proving
from tests.proving import PLAYS, ROOT, Play, Proof

pytestmark = [pytest.mark.slow, pytest.mark.outside]


def proof(folder: Path, *plays: str) -> Proof:
    return Proof(folder, argparse.Namespace(plays=plays, pythons=[sys.executable], hours=1.0))


def test_it_plays_until_all_have_had_their_amount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proving, "discomforts", lambda: {"none": proving.nullcontext})
    plays = {
        "few": Play("tests of damage", 20, "tests/testing/test_damage.py", "DAMAGED=1"),
        "bad": Play("tests that are not there", 1, "tests/test_of_nothing.py"),
    }
    monkeypatch.setattr(proving, "PLAYS", plays)
    first = proof(tmp_path, "few", "bad")
    first.work()
    assert first.count("few") >= 20 and first.count("bad") == 0
    assert [each["failed"] for each in first.played].count(True) == proving.FAILURES_MAX
    (kept, *_) = tmp_path.glob("bad-*.txt")
    assert "test_of_nothing" in kept.read_text()
    shown = capsys.readouterr().out
    assert f"SEED={kept.stem.removeprefix('bad-')}" in shown
    again = proof(tmp_path, "few")
    assert again.next() is None and "| tests of damage | 20 | " in again.summary()


@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_what_is_played_is_there(play: Play) -> None:
    for each in play.tests.split():
        file, _, name = each.partition("::")
        assert f"def {name}" in (ROOT / file).read_text()
