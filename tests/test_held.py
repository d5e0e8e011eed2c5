"""What is taken is given back, whenever a signal comes: a rule over the syntax of the source.

Python runs a signal's handler between two bytecodes. So nothing may be taken by a call that an
exception can part from the block that gives it back. A lock is taken by its guard alone.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("timelog", "wheel", "services", "timerstore")

UNDONE = {"acquire": {"release"}, "add": {"discard", "remove"}, "append": {"remove", "pop"}}
"""What takes, and what gives it back."""
PYTHON_LOCKS = {"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier"}
"""Their `with` blocks, and the methods in Python of some, can be ended half-way."""
NAMES = {*UNDONE, *set().union(*UNDONE.values()), *PYTHON_LOCKS, "guard"}
THREADS_OF_OURS = {
    "timerstore/consumer/handling.py",
    "timerstore/consumer/threads.py",
    "timerstore/share/server.py",
    "timerstore/share/answers.py",
}
"""No signal's exception falls into these: they are run by threads of ours."""
OF_PYTHON = {"timerstore/jit/guards.py", "services/world/background.py"}
"""They make what others use instead of a lock of Python's, or of its `Event`."""

Finding = tuple[int, str]
Rule = Callable[[ast.Module], Iterator[Finding]]


def functions(tree: ast.Module) -> Iterator[ast.AST]:
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Its nodes, but for those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from own_nodes(child)


def calls(nodes: Iterator[ast.AST]) -> Iterator[tuple[str, str, int]]:
    """What is called of what, and where."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in NAMES:
            assert isinstance(node.func, ast.Attribute)
            yield ast.unparse(node.func.value), node.func.attr, node.lineno


def taken_and_given_back(tree: ast.Module) -> Iterator[Finding]:
    """A lock that one function takes by a call, and gives back by another."""
    for function in functions(tree):
        mine = list(calls(own_nodes(function)))
        given_back = {of for of, name, _ in mine if name == "release"}
        for of, name, line in mine:
            if name == "acquire" and of in given_back:
                yield line, f"{of}.acquire() … {of}.release(): use `with {of}.guard()`"


def done_before_its_try(tree: ast.Module) -> Iterator[Finding]:
    """A statement before `try` that `finally`, or `except BaseException`, undoes."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            for before, after in pairwise(block if isinstance(block, list) else []):
                if not isinstance(after, ast.Try):
                    continue
                ends = [*after.finalbody, *(s for h in after.handlers for s in h.body)]
                undone = {(of, name) for end in ends for of, name, _ in calls(ast.walk(end))}
                for of, name, line in calls(own_nodes(before)):
                    if any((of, undo) in undone for undo in UNDONE.get(name, ())):
                        yield line, f"{of}.{name}() stands before the `try` that undoes it"


def python_locks(tree: ast.Module) -> Iterator[Finding]:
    for of, name, line in calls(ast.walk(tree)):
        if of == "threading" and name in PYTHON_LOCKS:
            yield line, f"threading.{name}: a signal can leave it held; see guards.py, or `Flag`"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "threading":
            if found := PYTHON_LOCKS & {each.name for each in node.names}:
                yield node.lineno, f"{found}: say threading.… where one is made"


def guards_kept(tree: ast.Module) -> Iterator[Finding]:
    """A guard that more than a `with` statement has: the trace of an exception may keep it."""
    allowed = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            allowed |= {item.context_expr for item in node.items}
        elif isinstance(node, ast.Return) and node.value is not None:
            allowed.add(node.value)
    allowed |= {
        way for each in allowed if isinstance(each, ast.IfExp) for way in (each.body, each.orelse)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in allowed:
            for of, name, line in calls(iter([node])):
                if name == "guard":
                    yield line, f"{of}.guard(): make it in the `with` statement"


RULES = (taken_and_given_back, done_before_its_try, python_locks, guards_kept)


def findings(text: str, rules: Sequence[Rule] = RULES) -> list[Finding]:
    tree = ast.parse(text)
    return [found for rule in rules for found in rule(tree)]


@pytest.mark.long
def test_nothing_is_left_held() -> None:
    wrong = []
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            if name not in THREADS_OF_OURS and file.resolve() == file:
                rules = [
                    each for each in RULES if name not in OF_PYTHON or each is not python_locks
                ]
                found = findings(file.read_text(), rules)
                wrong += [f"{name}:{line}: {text}" for line, text in found]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(self):\n if not self._lock.acquire(blocking=False):\n  return\n"
        " try:\n  g()\n finally:\n  self._lock.release()",
        "def f(lock):\n lock.acquire()\n try:\n  g()\n"
        " except BaseException:\n  lock.release()\n  raise",
        "def f(lock):\n if lock.acquire(False):\n  try:\n   g()\n  finally:\n   lock.release()",
        "def f(inside, me):\n inside.add(me)\n try:\n  g()\n finally:\n  inside.discard(me)",
        "import threading\nlock = threading.Condition()",
        "import threading\nlock = threading.Lock()",
        "from threading import RLock",
        "def f(lock):\n guard = lock.guard()\n with guard:\n  g()",
        "def f(stack, lock):\n stack.enter_context(lock.guard())",
    ],
)
def test_the_rule_finds(text: str) -> None:
    assert findings(text)


@pytest.mark.parametrize(
    "text",
    [
        "def f(lock):\n with lock.guard():\n  g()",
        "def f(lock, none):\n with lock.guard() if g() else none:\n  g()",
        "def f(lock):\n with lock.if_free.guard() as taken:\n  if taken:\n   g()",
        "def f(self):\n return self.lock.guard()",
        "def f(inside, me):\n try:\n  inside.add(me)\n  g()\n finally:\n  inside.discard(me)",
        "def f(gate):\n gate.acquire()\n def g():\n  gate.release()",
    ],
)
def test_the_rule_passes(text: str) -> None:
    assert not findings(text)
