"""A store's files are reached by its folder's descriptor while it is open: never by the path."""

import ast
from typing import Final

from tests.test_tidy import SOURCES, shown, tree_of

SERVICES: Final = (
    *("calls", "cleaning", "durable", "looking", "mending", "pipeline", "running", "world"),
)
FACE: Final = ("aio", "closing", "consumer", "consuming", "pending", "putting", "watching")
ROOMS: Final = tuple(
    [f"services/{room}/" for room in SERVICES] + [f"timerstore/{room}/" for room in FACE]
)
"""What is there runs while a store is open."""
OF_OS: Final = {
    *("open", "rename", "replace", "unlink", "remove", "stat", "lstat", "listdir", "scandir"),
    *("makedirs", "mkdir", "rmdir", "truncate", "link", "symlink", "utime", "chmod"),
}
OF_PATHS: Final = {
    *("exists", "is_file", "is_dir", "is_symlink", "iterdir", "stat", "lstat", "glob", "rglob"),
    *("read_bytes", "read_text", "write_bytes", "write_text", "touch", "mkdir", "rmdir", "unlink"),
    "rename",
}
READERS: Final = {"read_head": 3, "read_small": 3, "read_file": 2, "list_names": 2, "read_json": 2}
"""Functions that look for a path as it is unless told how, with how many arguments tell it."""


def asks_by_path(call: ast.Call) -> bool:
    """Whether a call has the system look for a path, where something else may lie by now."""
    given = {each.arg for each in call.keywords}
    match call.func:
        case ast.Name(id="open"):
            return True
        case ast.Name(id=name) if name in READERS:
            return len(call.args) < READERS[name] and not given & {"at", "read"}
        case ast.Attribute(value=ast.Name(id="os"), attr=name):
            return name in OF_OS and "dir_fd" not in given
        case ast.Attribute(value=owner, attr=name):
            return name in OF_PATHS and not ast.unparse(owner).endswith("disk")
    return False


def test_an_open_stores_files_are_reached_by_its_folder() -> None:
    found = [
        f"{shown(path)}:{node.lineno}"
        for path in SOURCES
        if shown(path).startswith(ROOMS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and asks_by_path(node)
    ]
    assert found == [], "use engine.disk, or give the reader disk.at"


def test_the_rule_sees_each_way() -> None:
    wrong = (
        *("open(p)", "os.open(p, 0)", "os.rename(a, b)", "p.exists()", "(p / 'a').stat()"),
        *("read_head(p, 9)", "list_names(p)", "read_json(p)", "os.makedirs(p)", "p.unlink()"),
    )
    right = (
        *("os.open(n, 0, dir_fd=f)", "self.disk.exists(p)", "engine.disk.unlink(p)"),
        *("read_head(p, 9, disk.at)", "read_small(p, at=disk.at)", "read_json(p, disk.read)"),
    )
    for text in wrong + right:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert asks_by_path(call) == (text in wrong), text
