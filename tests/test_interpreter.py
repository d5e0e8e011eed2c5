"""A Python in which a store would hang is refused in words, before anything is made."""

import importlib.util
import sys
from pathlib import Path

import pytest

import timerstore
from tests.rigs.program import ended
from timerstore import TimerStoreError

pytestmark = pytest.mark.long

REPLACED = {
    "threads": """
import _thread, threading
def inline(function, args=(), *, handle=None, daemon=True):  # in this very thread, as a greenlet
    function(*args)
    if handle is not None:
        joinable(lambda: None, handle=handle, daemon=daemon)
joinable = getattr(threading, "_start_joinable_thread", None)
_thread.start_new_thread = threading._start_new_thread = threading._start_joinable_thread = inline
""",
    "poll": "import select; select.poll = lambda: None",
    "no poll": "import select; del select.poll",
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent without threads": "from gevent import monkey; monkey.patch_all(thread=False)",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
    "eventlet without threads": "import eventlet; eventlet.monkey_patch(thread=False)",
}
TRIED = """
import sys
import timerstore, timerstore.share.client
path = sys.argv[1]
for each in (
    lambda: timerstore.open(path),
    lambda: timerstore.open(path, share=True),
    lambda: timerstore.open(path, read_only=True),
    lambda: timerstore.connect(path),
):
    try:
        each()
    except timerstore.TimerStoreError as e:
        assert "has replaced them" in str(e) and "-k gthread" in str(e), e
    else:
        raise AssertionError("it was opened")
"""


def is_there(what: str) -> bool:
    library = what.partition(" ")[0]
    return library not in ("gevent", "eventlet") or importlib.util.find_spec(library) is not None


@pytest.mark.timeout(100)
@pytest.mark.parametrize("what", [each for each in REPLACED if is_there(each)])
def test_replaced_threads_are_refused(tmp_path: Path, what: str) -> None:
    """Those libraries are played if they are installed; the others show what they replace."""
    done = ended("-W", "ignore", "-c", REPLACED[what] + "\n" + TRIED, tmp_path / "s", timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "s").exists()


def test_a_free_threaded_build_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    for options in ({}, {"share": True}, {"read_only": True}):
        with pytest.raises(TimerStoreError, match="free-threaded build"):
            timerstore.open(tmp_path / "s", **options)  # type: ignore[call-overload]
    assert not (tmp_path / "s").exists()


def test_a_sleep_that_a_test_replaces_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with timerstore.open(tmp_path / "s") as store:
        assert store.put(b"x") and store.count() <= 1
