"""The repository's own rules, as a test."""

import ast
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.rigs.program import python

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent

LINE_COUNT_MAX = 600  # what one can still hold in mind as one file

# From the bottom up: a folder imports from itself, and from those before it.
LAYERS = [
    "timerstore.jit",
    "timerstore.timelog",
    "timerstore.wheel",
    "timerstore.values",
    "timerstore.services",
    "timerstore",
]
FOLDER_OF = {name: f"timerstore.{name}" for name in ("timelog", "wheel", "services")}

BESIDE = (
    *("metrics", "otel", "page", "offline", "validation", "audit", "pipeline", "spark", "rocketmq"),
    *("testing", "cli", "django"),
)
"""The folders of `timerstore/` that stand beside the product; the others are the product."""

FLOORS_MAX = 10  # of the face: as many rooms stand on each other at most

# Put together here, so that this file does not find itself.
FORBIDDEN = {
    "an open end": re.compile(r"\bTO" + r"DO\b|\bFIX" + r"ME\b"),
    "a machine's path": re.compile(
        r"(?<![\w.~)}])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me|tm" + r"p)\b"
    ),
}


def files(suffixes: tuple[str, ...]) -> list[Path]:
    """The repository's files with one of the suffixes, each once: symlinks are not followed."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name
            for name in subfolders
            if (not name.startswith(".") or name == ".ci")
            and name not in {"build", "dist", "htmlcov", "site", "__pycache__"}
            and not name.endswith(".egg-info")
        ]
        found += [Path(folder) / name for name in names if name.endswith(suffixes)]
    return sorted(found)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = files((".py",))
FOLDERS = [
    path.parent
    for path in SOURCES
    if path.name == "__init__.py"
    and path.relative_to(ROOT).parts[0] in {"timerstore", *FOLDER_OF}
    and path.parent != ROOT / "timerstore"
]
TEXTS = files((".py", ".md", ".toml", ".yaml", ".lock", ".sh", ".ipynb", ".java", "run"))


def module_name(path: Path) -> str:
    """The import name: wheel/timerwheel.py is timerstore.wheel.timerwheel."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in FOLDER_OF:
        parts.insert(0, "timerstore")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def rank(module: str) -> int:
    """Which layer a module of ours belongs to, counted from the bottom."""
    for index, layer in enumerate(LAYERS):
        if module == layer or module.startswith(layer + "."):
            return index
    raise AssertionError(f"{module} is none of ours")


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Each of our modules that the file imports, with its line.

    ``from timerstore import errors`` is the module timerstore.errors, and
    ``from . import slots`` is looked up from the file's own package.
    """
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "timerstore":
                yield node.lineno, name


def wrong_imports(path: Path) -> list[str]:
    """The imports that point up, or anything that timerstore.errors imports from us."""
    own = module_name(path)
    wrong = []
    for line, name in imported_modules(path):
        if own == "timerstore.errors":
            wrong.append(f"{shown(path)}:{line}: errors imports {name}")
        elif (name + ".").startswith("timerstore.errors."):
            continue
        elif rank(name) > rank(own):
            wrong.append(f"{shown(path)}:{line}: {own} imports {name}, which lies above it")
    return wrong


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


@cache
def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_files_are_short() -> None:
    """Split one that is longer where the thought splits."""
    assert [shown(path) for path in SOURCES if len(lines_of(path)) > LINE_COUNT_MAX] == []


def test_each_file_says_what_it_is_for() -> None:
    docstring = re.compile(r'(#.*\n|\n)*r?""".')
    assert [shown(path) for path in SOURCES if not docstring.match(path.read_text())] == []


def test_a_folder_has_a_map() -> None:
    """The docstring of `__init__.py` has a line for each file."""
    for folder in FOLDERS:
        text = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
        named = set(re.findall(r"^ *([a-z_]+\.py) ", text, re.MULTILINE))
        assert named == {path.name for path in folder.glob("*.py")} - {"__init__.py"}, folder


def test_imports_point_down() -> None:
    folders = {"timerstore", *FOLDER_OF}
    ours = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    assert [line for path in ours for line in wrong_imports(path)] == []


def import_graph(paths: list[Path]) -> dict[str, set[str]]:
    """What each of our modules imports of ours, wherever in the file it stands."""
    names = {module_name(path) for path in paths}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in paths:
        for _, name in imported_modules(path):
            target = name if name in names else name.rpartition(".")[0]
            if target in names and target != module_name(path):
                graph[module_name(path)].add(target)
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that each reach all others of their set."""

    def reached_from(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            new = graph[left.pop()] - found
            found |= new
            left += new
        return found

    reached = {name: reached_from(name) for name in graph}
    inside = [name for name in graph if name in reached[name]]
    found = [
        {other for other in inside if other in reached[name] and name in reached[other]}
        for name in inside
    ]
    return [each for i, each in enumerate(found) if each not in found[:i]]


def test_tests_import_public_names() -> None:
    """What a test needs of a file is what another file may use."""
    own = re.compile(r"^from timerstore\S* import .*\b_[A-Za-z]", re.MULTILINE)
    assert [
        path for path in sorted((ROOT / "tests").rglob("*.py")) if own.search(path.read_text())
    ] == []


def test_imports_make_no_circle() -> None:
    """Neither at run time nor for types, nor inside a function."""
    folders = {"timerstore", *FOLDER_OF}
    ours = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    graph = import_graph(ours)
    assert sum(map(len, graph.values())) > 500 and circles(graph) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [{"b", "c"}, {"d"}]


def rooms_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """What each room imports: a folder is one, a file beside `timerstore/__init__.py` too."""
    packages = {"timerstore", *(module_name(folder / "__init__.py") for folder in FOLDERS)}

    def room(name: str) -> str:
        above = name.rpartition(".")[0]
        return name if name in packages or above == "timerstore" else above

    rooms: dict[str, set[str]] = {room(name): set() for name in graph}
    for name, others in graph.items():
        rooms[room(name)] |= {room(other) for other in others} - {room(name)}
    return rooms


def test_rooms_make_no_circle() -> None:
    folders = {"timerstore", *FOLDER_OF}
    ours = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    rooms = rooms_of(import_graph(ours))
    assert {"timerstore.services.pipeline", "timerstore.errors"} <= set(rooms)
    assert circles(rooms) == []


@pytest.mark.parametrize("folder", ["timelog", "services"])
def test_rooms_stand_on_those_before_them(folder: str) -> None:
    """The map of the folder names its rooms from the bottom up."""
    text = ast.get_docstring(tree_of(ROOT / folder / "__init__.py")) or ""
    order = re.findall(r"^ +([a-z]+)  +\S", text, re.MULTILINE)
    assert set(order) == {each.name for each in FOLDERS if each.parent == ROOT / folder}
    ours = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in FOLDER_OF]
    rooms = rooms_of(import_graph(ours))
    known = set[str]()
    for name in (f"{FOLDER_OF[folder]}.{room}" for room in order):
        siblings = {other for other in rooms[name] if other.startswith(f"{FOLDER_OF[folder]}.")}
        assert siblings <= known, name
        known.add(name)


def test_the_face_has_few_floors() -> None:
    folders = {"timerstore", *FOLDER_OF}
    ours = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    rooms = rooms_of(import_graph(ours))
    below = ("timerstore.jit.", *(f"{package}." for package in FOLDER_OF.values()))
    face = {room for room in rooms if not f"{room}.".startswith(below)}
    face -= {"timerstore.__main__", "timerstore.pytestplugin"}  # ways in from outside, no rooms

    @cache
    def floor(room: str) -> int:
        return 1 + max((floor(other) for other in rooms[room] & face), default=0)

    assert max(map(floor, face)) <= FLOORS_MAX


def test_the_product_stands_without_what_is_beside_it() -> None:
    """Folders of `timerstore/` with all below them make no circle; the two blocks one edge."""
    folders = {"timerstore", *FOLDER_OF}
    ours = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    blocks: dict[str, set[str]] = {}
    for name, others in import_graph(ours).items():
        own = name.split(".")[1:2]
        if own and own[0] not in ("__main__", "pytestplugin"):
            blocks.setdefault(own[0], set()).update(other.split(".")[1] for other in others)
    found = {name: others - {name} for name, others in blocks.items()}
    assert {"store", "calls", *BESIDE} <= set(found)
    assert circles(found) == []
    product = set(found) - set(BESIDE)
    assert {name: found[name] & set(BESIDE) for name in product if found[name] & set(BESIDE)} == {}
    head = ast.get_docstring(tree_of(ROOT / "timerstore" / "__init__.py")) or ""
    above, below = head.split("Beside it, ")
    assert {name for name in found if re.search(rf"^ {{4}}{name} ", above, re.MULTILINE)} == {
        name for name in product if (ROOT / "timerstore" / name).is_dir()
    }
    assert all(re.search(rf"\b{name}\b", below) for name in BESIDE)


def test_text_speaks_of_the_project_alone() -> None:
    found = [
        f"{shown(path)}:{number}: {what}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(lines_of(path), 1)
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]
    assert found == []


def test_symlinks_are_relative() -> None:
    for name in FOLDER_OF:
        link = ROOT / "timerstore" / name
        # Where Git cannot make symlinks it writes the target into a plain file.
        target = os.readlink(link) if link.is_symlink() else link.read_text()
        assert target == f"../{name}"


# Called from Python, what `inlined` compiled is a crash: it has no wrapper for that.
HELPER_DECORATORS = {"inlined", "inlined_always", "inlined_view", "twinned", "instruction"}
KERNELS = {"kernel", "kernel_ahead", "kernel_ahead_with_gil", "kernel_later", "intrinsic"}


def decorators(function: ast.FunctionDef) -> set[str]:
    named = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    return {each.id for each in named if isinstance(each, ast.Name)}


def helpers_of(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef) and decorators(node) & HELPER_DECORATORS:
            yield node.name


def plain_calls(tree: ast.AST, helpers: set[str], compiled: set[str]) -> Iterator[str]:
    """Calls of helpers by their names, outside of what is compiled, such as what is named so."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            if node.name in compiled or decorators(node) & (HELPER_DECORATORS | KERNELS):
                continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in helpers:
                yield f"{node.func.id} in line {node.lineno}"
        yield from plain_calls(node, helpers, compiled)


def compiled_by_name(tree: ast.AST) -> Iterator[str]:
    """Functions that are compiled where they are used, without a decorator."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id == "kernel":
                yield getattr(node.args[0], "id", "")


def test_python_calls_no_inlined_helper() -> None:
    folders = ("timerstore", *FOLDER_OF)
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    defined = {path: set(helpers_of(tree_of(path))) for path in paths}
    by_module = {module_name(path): names for path, names in defined.items()}
    calls = []
    for path in paths:
        known, tree = set(defined[path]), tree_of(path)
        for node in nodes_of(tree):
            if isinstance(node, ast.ImportFrom):
                names = {each.name for each in node.names}
                known |= names & by_module.get(node.module or "", set())
        compiled = set(compiled_by_name(tree))
        calls += [f"{shown(path)}: {call}" for call in plain_calls(tree, known, compiled)]
    assert sum(map(len, defined.values())) > 100 and calls == []
    bad = ast.parse("@inlined\ndef a(): ...\n@kernel\ndef b(): a()\ndef c(): a()\n")
    assert list(plain_calls(bad, {"a"}, set())) == ["a in line 5"]


PLACES_OF_NONZERO = {"flatnonzero", "nonzero", "argwhere"}


def looked_at_twice(tree: ast.AST) -> Iterator[int]:
    """Lines that ask NumPy where an array is not zero that others may hold as well."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in PLACES_OF_NONZERO:
                array = node.args[0] if node.args else node.func.value
                if isinstance(array, ast.Attribute | ast.Subscript):
                    yield node.lineno


def test_shared_arrays_are_copied_before_numpy_looks_twice() -> None:
    """NumPy counts, then collects; `timelog/files/nonzero.py` is for what grows in between."""
    folders = ("timerstore", *FOLDER_OF)
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    assert [shown(path) for path in paths if [*looked_at_twice(tree_of(path))]] == []
    bad = ast.parse("np.flatnonzero(a.b)\nnp.nonzero(a[1:])\na.b.nonzero()\nnp.flatnonzero(a > 1)")
    assert list(looked_at_twice(bad)) == [1, 2, 3]


def test_every_thread_is_one_whose_end_is_seen() -> None:
    folders = ("timerstore", *FOLDER_OF)
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in folders]
    makers = [shown(path) for path in paths if re.search(r"\bThread\(", path.read_text())]
    assert makers == ["services/world/background.py"]


def copy_source(tmp_path: Path) -> Path:
    """A copy of what a distribution is made of, without what was compiled."""
    source = tmp_path / "source"
    source.mkdir()
    for name in [
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "MANIFEST.in",
        "requirements.lock",
        "mkdocs.yml",
    ]:
        shutil.copy(ROOT / name, source)
    for name in ["timerstore", "docs", "examples", *FOLDER_OF]:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    return source


INSTALLED = """
import datetime, pathlib, sys
import timerstore
assert pathlib.Path(timerstore.__file__).is_relative_to(sys.argv[1]), timerstore.__file__
clock = timerstore.ManualClock()
with timerstore.open("store", clock=clock) as store:
    store.put(b"it fires", at_ms=clock.now_ms + 50)
    clock.advance(datetime.timedelta(seconds=1))
    print(*[d.body.decode() for d in store.pull("default", timeout=0)])
"""


@pytest.mark.prove
@pytest.mark.slow
def test_the_source_distribution_can_be_installed(tmp_path: Path) -> None:
    build = "from setuptools import build_meta; build_meta.build_sdist('..')"
    python("-c", build, cwd=copy_source(tmp_path))
    (built,) = tmp_path.glob("timerstore-*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"docs/design.md", "examples/mailer.py", "requirements.lock"} <= names
    assert not [name for name in names if name.endswith((".pyc", ".o"))]
    target = tmp_path / "installed"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    python(*install, "--target", str(target), str(built), cwd=tmp_path)
    env = {"PYTHONPATH": str(target), "NUMBA_DISABLE_JIT": "1"}
    assert python("-c", INSTALLED, str(target), cwd=tmp_path, **env) == "it fires\n"


def test_wheel_contains_timerstore_alone(tmp_path: Path) -> None:
    source = copy_source(tmp_path)
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    python(*build, "--wheel-dir", str(tmp_path), str(source), cwd=tmp_path)

    (built,) = tmp_path.glob("timerstore-*.whl")
    names = set(zipfile.ZipFile(built).namelist())
    tops = {name.split("/")[0] for name in names}
    ours = {"timerstore", "pyspark_timerstore"}  # the second is what PySpark looks for
    assert {top for top in tops if not top.endswith(".dist-info")} == ours

    missing = []
    for path in SOURCES:
        parts = path.relative_to(ROOT).parts
        expected = "/".join(parts if parts[0] == "timerstore" else ("timerstore", *parts))
        if parts[0] in {"timerstore", *FOLDER_OF} and expected not in names:
            missing.append(expected)
    assert missing == [], "name each new package in pyproject.toml"
    assert "timerstore/py.typed" in names


KERNEL_FOLDERS = ("timerstore/jit/", "timelog/", "wheel/", "services/")


def large_products(path: Path) -> Iterator[int]:
    """The lines that multiply by a constant with which an int64 soon overflows."""
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for side in (node.left, node.right):
                if isinstance(side, ast.Constant) and isinstance(side.value, int):
                    if abs(side.value) >= 1 << 31:
                        yield node.lineno


def test_hashes_multiply_by_wrapping() -> None:
    """To LLVM a plain product never overflows; one that does is another thing in each caller.

    `wrapping_multiply` is for these.
    """
    kernels = [path for path in SOURCES if shown(path).startswith(KERNEL_FOLDERS)]
    found = [f"{shown(path)}:{line}" for path in kernels for line in large_products(path)]
    assert found == []


def imports_compiler(tree: ast.AST) -> bool:
    """Whether a file imports Numba or LLVM, anywhere in it."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        if {name.partition(".")[0] for name in names} & {"numba", "llvmlite"}:
            return True
    return False


def test_the_compiler_is_touched_in_its_corner_alone() -> None:
    found = {path.parent for path in OURS if imports_compiler(tree_of(path))}
    assert {shown(folder) for folder in found} == {"timerstore/jit"}
    assert imports_compiler(ast.parse("def f():\n    from numba.core import types"))


OURS = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in {"timerstore", *FOLDER_OF}]

# Who may do what with the address of bytes. Everybody else borrows them, see
# timelog/files/segments.py.
BORROWING = {
    "an array at an address": (
        re.compile(r"\.from_address\("),
        {
            "timerstore/jit/mapping.py",
            "timerstore/jit/intrinsics.py",
            "timerstore/jit/numpylayout.py",
        },
    ),
    "a view that may lose what it was made of": (re.compile(r"\.view\(np\.ndarray\)"), set()),
    "a table whose segments may go": (
        re.compile(r"\bshared_table\b"),
        {"timelog/files/segments.py", "timelog/files/blocks.py", "services/engine/engine.py"},
    ),
}


@pytest.mark.parametrize("what", BORROWING)
def test_bytes_are_borrowed_from_who_owns_them(what: str) -> None:
    pattern, allowed = BORROWING[what]
    found = {shown(path) for path in OURS if pattern.search(path.read_text())}
    assert found == allowed


MAPPED_BEFORE = {
    "timelog/writing/append.py",
    "timelog/reading/scan.py",
}
"""What is to be appended to was looked up before, and `SegmentedFile.trim` leaves it. Texts are
copied out of a table of one's own."""
HAVE_ROOM = ("segment_at", "append_unit")  # the second writes where `find_unit_room` looked
WHO_ASK = ("find_source", "_find_first_put", "_find_of_topic")
"""Kernels that are given a segment and ask for its length."""


def looked_up_carelessly(tree: ast.AST) -> Iterator[str]:
    """Uses of a segment that may not be mapped: it is looked up once, and its length asked for."""
    for function in nodes_of(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in HAVE_ROOM:
            continue
        kept, asked, passed_on = dict[str, int](), set[str](), set[int]()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if is_call(node.value, "segment_at"):
                    kept[node.targets[0].id] = node.lineno
                    passed_on.add(id(node.value))
            elif isinstance(node, ast.Return) and is_call(node.value, "segment_at"):
                passed_on.add(id(node.value))
            elif is_call(node, "len") and isinstance(node.args[0], ast.Name):
                asked.add(node.args[0].id)
            elif is_call(node, "prefetch"):  # which may be asked for any address
                passed_on |= {id(each) for each in node.args}
                asked |= {each.id for each in node.args if isinstance(each, ast.Name)}
            elif any(is_call(node, each) for each in WHO_ASK):
                asked |= {each.id for each in node.args if isinstance(each, ast.Name)}
        for node in ast.walk(function):
            if is_call(node, "segment_at") and id(node) not in passed_on:
                yield f"line {node.lineno}: give it a name"
        yield from (f"line {kept[name]}: ask for len({name})" for name in kept.keys() - asked)


def is_call(node: ast.AST | None, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def test_a_segment_is_looked_up_once_and_may_be_missing() -> None:
    found = [
        f"{shown(path)}, {line}"
        for path in OURS
        if shown(path) not in MAPPED_BEFORE
        for line in looked_up_carelessly(tree_of(path))
    ]
    assert found == []
    bad = "def f():\n a = segment_at(t, 1)\n g(segment_at(t, 1))\n b = segment_at(t, 2)\n len(b)"
    lines = list(looked_up_carelessly(ast.parse(bad)))
    assert lines == ["line 3: give it a name", "line 2: ask for len(a)"]
