"""A log's folder that is read by some, or taken by one alone."""

import os
import threading
import time
from pathlib import Path

import pytest

from timerstore.timelog.files import sharing
from timerstore.timelog.files.sharing import FolderShare, take_alone


def test_readers_share_and_keep_the_owner_out(tmp_path: Path) -> None:
    first, second = FolderShare(tmp_path), FolderShare(tmp_path)
    assert take_alone(tmp_path) == -1
    del first
    assert take_alone(tmp_path) == -1
    del second
    alone = take_alone(tmp_path)
    assert alone >= 0
    os.close(alone)


def test_a_reader_waits_for_the_owner(tmp_path: Path) -> None:
    alone = take_alone(tmp_path)
    shares: list[FolderShare] = []
    reader = threading.Thread(target=lambda: shares.append(FolderShare(tmp_path)))
    reader.start()
    time.sleep(0.01)
    assert not shares
    os.close(alone)
    reader.join()
    assert shares and take_alone(tmp_path) == -1


def test_a_reader_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_WAIT_S_MAX", 0.01)
    alone = take_alone(tmp_path)
    FolderShare(tmp_path)
    os.close(alone)


def test_no_folder(tmp_path: Path) -> None:
    FolderShare(tmp_path / "none")
    assert take_alone(tmp_path / "none") == -1
