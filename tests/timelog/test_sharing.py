"""A log's folder that is read by some, or taken by one alone."""

import contextlib
import itertools
import threading
import time
from pathlib import Path

import pytest

from tests.interrupting import Interrupt, interrupted
from timerstore.timelog.files import folders
from timerstore.timelog.files.folders import FolderAlone, FolderShare


def is_free(folder: Path) -> bool:
    """Tell whether nobody has the lock."""
    with FolderAlone(folder) as is_alone:
        return is_alone


def test_readers_share_and_keep_the_owner_out(tmp_path: Path) -> None:
    first, second = FolderShare(tmp_path), FolderShare(tmp_path)
    assert not is_free(tmp_path)
    del first
    assert not is_free(tmp_path)
    del second
    assert is_free(tmp_path)


def test_a_reader_waits_for_the_owner(tmp_path: Path) -> None:
    shares: list[FolderShare] = []
    reader = threading.Thread(target=lambda: shares.append(FolderShare(tmp_path)))
    with FolderAlone(tmp_path) as is_alone:
        assert is_alone
        reader.start()
        time.sleep(0.01)
        assert not shares
    reader.join()
    assert shares and not is_free(tmp_path)


def test_a_reader_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_WAIT_S_MAX", 0.01)
    with FolderAlone(tmp_path):
        FolderShare(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    FolderShare(tmp_path / "none")
    assert not is_free(tmp_path / "none")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_may_end_its_owner_anywhere(tmp_path: Path) -> None:
    for at in itertools.count():
        with contextlib.suppress(Interrupt), interrupted(at, "folders.py") as count:
            is_free(tmp_path)
        assert is_free(tmp_path)
        if not count.raised:
            break
    assert at > 4
