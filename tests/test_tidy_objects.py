"""More rules of the house, as a test."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.test_tidy import (
    FOLDERS,
    KERNEL_FOLDERS,
    OURS,
    ROOT,
    SOURCES,
    module_name,
    nodes_of,
    shown,
    tree_of,
)

pytestmark = pytest.mark.long


def classes_changed(tree: ast.AST) -> Iterator[int]:
    """Lines that make an object one of another class."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if node.attr == "__class__":
                yield node.lineno


def test_an_object_stays_what_it_was_made_as() -> None:
    found = [f"{shown(path)}:{line}" for path in OURS for line in classes_changed(tree_of(path))]
    assert found == []
    bad = ast.parse("self.__class__ = B\na.b.__class__, c = B, 1\nprint(self.__class__)")
    assert list(classes_changed(bad)) == [1, 2]


def vague_parameters(tree: ast.AST) -> Iterator[str]:
    """Parameters of kernels that do not say their types."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef):
            marks = " ".join(map(ast.unparse, node.decorator_list))
            if re.search("kernel|inlined|entry|section", marks):
                given = {each.arg: ast.unparse(each.annotation or node) for each in node.args.args}
                yield from (f"{node.name}({name})" for name in given if given[name] == "Any")


def test_kernels_say_what_they_take() -> None:
    """Also those that kernels alone call; what generates machine code takes any array."""
    kernels = [path for path in OURS if "jit" not in path.parts]
    assert [
        f"{shown(path)}: {each}" for path in kernels for each in vague_parameters(tree_of(path))
    ] == []
    assert list(vague_parameters(ast.parse("@inlined\ndef f(a: Any, b: int): pass"))) == ["f(a)"]


KEPT_TO_THEMSELVES = ("aio", "consumer", "calls/consuming", "rocketmq", "share")
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}
PYTHONS_OWN = NAMED_TUPLE | {"_get_running_loop", "_is_owned"}
"""What the standard library lets others use, or has no other name for."""


def underscores_read(tree: ast.AST) -> Iterator[int]:
    """Lines that use an underscore name of an object that is not their own."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            mine = ast.unparse(node.value) in {"self", "cls", "super()"}
            if not mine and node.attr not in PYTHONS_OWN:
                yield node.lineno


def test_nobody_reads_an_underscore_of_others() -> None:
    """What another needs is a public name of an inner class, or is passed to it."""
    folders = [ROOT / "timerstore" / name for name in KEPT_TO_THEMSELVES]
    ours = [path for path in OURS if path.parent in folders]
    found = [f"{shown(path)}:{line}" for path in ours for line in underscores_read(tree_of(path))]
    assert len(ours) > 40 and found == []
    bad = ast.parse("a._b\nself._a\nself._a._b\nsuper()._a()\nrow._replace(x=1)\nd[0]._e = 1")
    assert list(underscores_read(bad)) == [1, 3, 6]


PARAMETERS_MAX = 7


def wide_kernels(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Kernels with more parameters than a reader keeps apart, and how many each has."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef):
            marks = " ".join(map(ast.unparse, node.decorator_list))
            if re.search("kernel|inlined", marks):
                if len(node.args.args) > PARAMETERS_MAX:
                    yield node.name, len(node.args.args)


def test_kernels_take_what_belongs_together_as_one() -> None:
    found = [each for path in OURS for each in wide_kernels(tree_of(path))]
    assert found == [("_pull", 10)]  # integers, for which Python would have to make tuples
    many = ", ".join(f"p{i}" for i in range(8))
    bad = f"@inlined\ndef f({many}): pass\ndef g({many}): pass\n@kernel_ahead\ndef h({many}): pass"
    assert list(wide_kernels(ast.parse(bad))) == [("f", 8), ("h", 8)]


ADDRESS = re.compile(
    r"\.ctypes\.|block_address|from_address|addressof|string_at|\bid\(\w+\) [+-] "
    r"|(?:address_of|object_at)\(|view_(?:bytes|words)\((?!0, 0\))"
    r"|(?:buffer|data|file|map|view)\.address\b"
)
GIVEN_OBJECTS = {
    "services/calls/by_id.py",
    "services/calls/key_search.py",
    "timerstore/calls/putting/short_way.py",
}
"""Their kernels are given objects of Python's by their addresses, while the caller keeps them."""


def test_addresses_stay_in_the_compiler_s_corner() -> None:
    """Everybody else has the array, or lends it to kernels: `timerstore/jit/mapping.py`."""
    outside = [path for path in OURS if "jit" not in path.parts]
    assert {shown(path) for path in outside if ADDRESS.search(path.read_text())} == GIVEN_OBJECTS
    bad = ["a.ctypes.data", "id(body) + 32", "view_bytes(at, 9)", "file.address", "r.block_address"]
    assert all(map(ADDRESS.search, bad)) and not ADDRESS.search("view_bytes(0, 0)")


def test_the_house_is_drawn_whole() -> None:
    """The table of docs/design.md has each room, and no other."""
    rows = re.findall(r"^\| (`.*?/`) \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE)
    drawn = [name for row in rows for name in re.findall(r"([a-z]+)/`", row)]
    rooms = [folder.name for folder in FOLDERS if any(folder.glob("[a-z]*.py"))]
    assert sorted(drawn) == sorted(rooms)


def test_a_constant_of_kernels_has_one_number() -> None:
    """No type tells a wrong one apart: to a kernel each is an integer."""
    numbers: dict[str, set[int]] = {}
    for path in SOURCES:
        if shown(path).startswith(KERNEL_FOLDERS):
            module = import_module(module_name(path))
            for node in tree_of(path).body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    name = node.target.id
                    value = getattr(module, name, None)
                    if name.isupper() and name[0] != "_" and isinstance(value, int):
                        numbers.setdefault(name, set()).add(value)
    found = {name for name, values in numbers.items() if len(values) > 1}
    assert len(numbers) > 300 and found == set()
