"""A store's files are reached by its folder's descriptor while it is open: never by the path."""

import ast
import re
from typing import Final

from tests.test_tidy import ROOT, SOURCES, nodes_of, shown, tree_of

ROOMS: Final = (
    *("services/", "wheel/", "timelog/reading/", "timerstore/aio/"),
    *(
        "timerstore/consumer/",
        "timerstore/calls/consuming/",
        "timerstore/calls/pending/",
        "timerstore/calls/putting/",
    ),
    *("timerstore/watching/", "timerstore/validation/"),
    "timerstore/store/handover.py",
    *("timelog/files/segments.py", "timelog/files/reader_end.py"),
    *("timelog/files/checkpoint.py", "timelog/files/refuse_rocksdb.py"),
    *("timerstore/copies/follow_status.py", "timerstore/copies/follower.py"),
    *(
        "timerstore/copies/backup.py",
        "timerstore/copies/backup_content.py",
        "timerstore/core/core.py",
    ),
    *("timerstore/core/offsets.py", "timerstore/core/switches.py"),
    *("timerstore/share/server.py", "timerstore/store/store.py"),
    *("timerstore/tables/reading.py", "timerstore/tables/timers.py"),
)
"""What is there reads a store that is open, or that somebody may move meanwhile."""
OF_OS: Final = {
    *("open", "rename", "replace", "unlink", "remove", "stat", "lstat", "listdir", "scandir"),
    *("makedirs", "mkdir", "rmdir", "truncate", "link", "symlink", "utime", "chmod"),
}
OF_PATHS: Final = {
    *("exists", "is_file", "is_dir", "is_symlink", "iterdir", "stat", "lstat", "glob", "rglob"),
    *("read_bytes", "read_text", "write_bytes", "write_text", "touch", "mkdir", "rmdir", "unlink"),
    "rename",
}
READERS: Final = {
    "StoreReader": 6,
    "find_batch_queues": 2,
    "find_identity": 2,
    "is_standby": 2,
    "is_manual": 2,
    "list_names": 2,
    "read_copy": 2,
    "read_file": 2,
    "read_head": 3,
    "read_json": 2,
    "read_small": 2,
    "read_statuses": 2,
    "refuse_rocksdb": 2,
    "take_point": 7,
    "Follower": 9,
}
"""Functions that look for a path as it is unless told how, with how many arguments tell it."""
TOLD_BY: Final = {"at", "read", "folder", "store", "disk"}
"""The arguments that tell it by name."""


def has_fd(call: ast.Call) -> bool:
    """Whether what is asked about is an open file."""
    return bool(call.args) and ast.unparse(call.args[0]).endswith("fd")


def asks_by_path(call: ast.Call) -> bool:
    """Whether a call has the system look for a path, where something else may lie by now."""
    given = {each.arg for each in call.keywords}
    match call.func:
        case ast.Name(id="open"):
            return True
        case ast.Name(id=name) if name in READERS:
            return len(call.args) < READERS[name] and not given & TOLD_BY
        case ast.Attribute(value=ast.Name(id="os"), attr=name):
            return name in OF_OS and not given & {"dir_fd", "src_dir_fd"} and not has_fd(call)
        case ast.Attribute(value=owner, attr=name):
            return name in OF_PATHS and not ast.unparse(owner).endswith("disk")
    return False


def test_an_open_stores_files_are_reached_by_its_folder() -> None:
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in SOURCES
        if shown(path).startswith(ROOMS)
        for node in nodes_of(tree_of(path))
        if isinstance(node, ast.Call) and asks_by_path(node)
    ]
    assert found == [], "use engine.disk, or give the reader disk.at"


def test_the_rule_sees_each_way() -> None:
    wrong = (
        *("open(p)", "os.open(p, 0)", "os.rename(a, b)", "p.exists()", "(p / 'a').stat()"),
        *("read_head(p, 9)", "list_names(p)", "read_json(p)", "os.makedirs(p)", "p.unlink()"),
        *("StoreReader(p, levels)", "read_json(p / 'a')", "Follower(p, find)", "os.listdir(p)"),
    )
    right = (
        *("os.open(n, 0, dir_fd=f)", "self.disk.exists(p)", "engine.disk.unlink(p)"),
        *("read_head(p, 9, disk.at)", "read_small(p, at=disk.at)", "read_json(p, disk.read)"),
        *("StoreReader(p, levels, folder=disk.folder)", "os.truncate(fd, 0)", "os.listdir(fd)"),
    )
    for text in wrong + right:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert asks_by_path(call) == (text in wrong), text


def test_scripts_name_tests_that_are_there() -> None:
    """A folder that was moved would be left out by who plays it, without a word."""
    scripts = [ROOT / "run", *(ROOT / ".ci").glob("*"), *(ROOT / ".github/workflows").glob("*")]
    named = {
        (shown(script), path)
        for script in scripts
        for path in re.findall(r"\btests/[\w/]+(?:\.py)?(?![\w.*])", script.read_text())
    }
    assert {path for _, path in named} > {"tests/jit", "tests/timelog"}
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []
