"""Wrong kinds of files in a store's folder: what comes of it is an error of ours, or a report.

A folder, a link, nothing at all, a hole of a terabyte, a pipe, or what may not be read stands in
place of each file of a store. What a file's content may do is told elsewhere.
"""

import errno
import io
import os
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.markdown import ROOT
from tests.small_store import SMALL
from tests.sparse_copy import copy_tree
from tests.table_stores import exported
from tests.tiers import some
from timerstore.tables import TABLES, read_table
from timerstore.testing.disk import QuietDisk
from timerstore.timelog.files.oserrors import store_error, told_of
from timerstore.validation import validate

pytestmark = pytest.mark.slow

START_MS = 1_800_000_000_000
HUGE_BYTES = 1 << 40


def put_folder(path: Path) -> None:
    path.mkdir()
    (path / "x").touch()


def put_link(path: Path) -> None:
    path.symlink_to("/dev/null")


def put_loop(path: Path) -> None:
    path.symlink_to(path)


def put_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


WRONG: dict[str, Callable[[Path], object]] = {
    "folder": put_folder,
    "link": put_link,
    "loop": put_loop,
    "empty": Path.touch,
    "huge": put_huge,
    "pipe": os.mkfifo,
    "nothing": lambda path: None,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store that was closed, in which every kind of file is used."""
    path, clock = tmp_path_factory.mktemp("store") / "whole", timerstore.ManualClock(START_MS)
    with timerstore.TimerStore(path, config=SMALL, clock=clock, disk=QuietDisk()) as store:
        store.put_many([b"a", b"b"], topic="t")
        store.put_many([b"c"] * 20, topic="t", delay_ms=range(0, 80_000, 4_000))
        store.put(b"e", topic="t", delay_level=1)
        store.put(b"f", topic="t", delay=timedelta(hours=1), key="k")
        assert store.get_key("t", "k")
        clock.advance(timedelta(seconds=5))
        store.pull("t", max_count=1, timeout=0).ack()
    (path / "abort").write_text("123")
    return path


def look(path: Path, call: Callable[[], object]) -> None:
    """Call; an error is one of ours, and says what to do."""
    told = "."
    try:
        call()
    except timerstore.TimerStoreError as e:
        told = str(e)
    assert told.endswith((".", ")")), told


def open_and_close(path: Path, **options: Any) -> None:
    clock = timerstore.ManualClock(START_MS + 6_000)
    with timerstore.open(path, clock=clock, **options) as store:
        listed = [timer.body for timer in store.pending() if timer.key == "k"]
        store.count()
        found = store.get_key("t", "k")
        assert [found.body] == listed if found else listed == []
        if not options:
            store.put(b"x", topic="t", key="other")
            store.pull("t", timeout=0).ack()


def parts() -> list[str]:
    """Every file and folder of a store, by its name."""
    return [
        *("timerstore.json", "lock", "abort", "checkpoint", "timerwheel", "commitlog", "config"),
        *("consumequeue", "consumequeue/t", "consumequeue/t/0", "timerlog", "config/timercheck"),
        *("config/consumerOffset.json", "config/delayOffset.json", "config/timermetrics"),
        *("config/timerstoreGroups.json", "config/wheelsums", "config/topiccounts"),
        *("config/switches.json", "config/aheadcounts", "config/restored.json"),
        *("config/cancelledset", "config/firstpages"),
        *(f"{folder}/{0:020d}" for folder in ("commitlog", "timerlog", "consumequeue/t/0")),
        *("consumequeue/rmq_sys_wheel_timer", "config/consumerOffset.json.bak"),
        *("config/timercheck.tmp", "config/consumerOffset.json.tmp"),
        *("index", "index/20270115080000000", "config/keyindex"),
    ]


def replaced(whole: Path, tmp_path: Path, part: str, wrong: str) -> Path:
    path = copy_tree(whole, tmp_path / "store")
    victim = path / part
    if victim.is_dir():
        victim.rename(tmp_path / "away")
    else:
        victim.unlink(missing_ok=True)
    WRONG[wrong](victim)
    return path


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("part", "wrong"), some(product(parts(), WRONG), 9))
def test_whatever_stands_there(whole: Path, tmp_path: Path, part: str, wrong: str) -> None:
    path = replaced(whole, tmp_path, part, wrong)
    look(path, lambda: timerstore.verify(path))
    look(path, lambda: open_and_close(path, read_only=True))
    look(path, lambda: open_and_close(path))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("part", "wrong"),
    some(product([part for part in parts() if "index" not in part], WRONG), 19),
)
def test_whatever_stands_there_is_looked_at(
    whole: Path, tmp_path: Path, part: str, wrong: str
) -> None:
    path = replaced(whole, tmp_path, part, wrong)
    look(path, lambda: validate(path))
    look(path, lambda: exported(path))
    for table in TABLES:
        look(path, lambda table=table: read_table(path, table))  # type: ignore[misc]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wrong", [name for name in WRONG if name != "nothing"])
def test_whatever_stands_in_place_of_the_store(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "store"
    WRONG[wrong](path)
    for each in (path, path / "below"):
        look(each, lambda each=each: timerstore.open(each, config=SMALL).close())  # type: ignore[misc]
        look(each, lambda each=each: timerstore.open(each, read_only=True).close())  # type: ignore[misc]
        look(each, lambda each=each: timerstore.verify(each))  # type: ignore[misc]
        look(each, lambda each=each: validate(each))  # type: ignore[misc]
        look(each, lambda each=each: read_table(each, "timers"))  # type: ignore[misc]


NUMBERS = [
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOSPC, errno.EIO, errno.EMFILE),
    *(errno.ENOMEM, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENOENT),
    *(errno.EINVAL, errno.ESTALE, errno.EDQUOT, errno.ENXIO),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", some(NUMBERS, 9), ids=errno.errorcode.get)
def test_what_the_system_refuses(
    whole: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is refused in turn, with each number, to whoever opens the store."""
    path = copy_tree(whole, tmp_path / "store")
    real, real_io = os.open, io.open
    refused = ""

    def check(name: Any) -> None:
        if refused and str(name).endswith(refused):
            raise OSError(number, os.strerror(number), str(name))

    def fake(name: Any, *rest: Any, **options: Any) -> int:
        check(name)
        return real(name, *rest, **options)

    def fake_io(name: Any, *rest: Any, **options: Any) -> Any:
        check(name)
        return real_io(name, *rest, **options)

    monkeypatch.setattr(os, "open", fake)
    monkeypatch.setattr(io, "open", fake_io)
    for part in parts():
        refused = part
        look(path, lambda: timerstore.verify(path))
        look(path, lambda: open_and_close(path, read_only=True))
        look(path, lambda: open_and_close(path))
    refused = ""
    open_and_close(path)  # nothing was lost by it


@pytest.mark.parametrize("number", NUMBERS, ids=errno.errorcode.get)
def test_an_error_names_the_file_and_what_to_do(tmp_path: Path, number: int) -> None:
    told = store_error(OSError(number, os.strerror(number)), tmp_path / "x")
    assert str(tmp_path) in str(told)
    assert str(told).endswith(".")
    assert not isinstance(told, OSError) or told.errno == number
    with pytest.raises(type(told)), told_of(tmp_path):
        raise OSError(number, os.strerror(number), "x")


def test_nothing_is_read_whole_but_small_files() -> None:
    """`Path.read_bytes` follows links, waits for pipes, takes a terabyte: see smallfile.py."""
    folders = [ROOT / name for name in ("timerstore", "timelog", "wheel", "services")]
    # packing.py reads what it has just built, memory.py what the system says, rule.py the package.
    allowed = {"loading.py", "packing.py", "memory.py", "rule.py"}
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert {"store.py", "jsonfile.py", "timerwheel.py"} <= {file.name for file in files}
    for file in files:
        text = file.read_text("utf-8")
        reads = "read_bytes()" in text or ".read_text(" in text
        assert not reads or file.name in allowed, file


def test_a_reader_that_has_gone_is_left_to_the_writer() -> None:
    with pytest.raises(BrokenPipeError), told_of("x"):
        raise BrokenPipeError(errno.EPIPE, "gone")
