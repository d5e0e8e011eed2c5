"""Locks that firing needs are taken by kernels; where Python still takes one is named."""

import ast
import re
from collections.abc import Iterator

from tests.test_tidy import OURS, shown, tree_of

OF_THE_SERVICES = re.compile(r"\blocks(\.(fire|near|wheel))?\.guard\(\)")
WHERE_PYTHON_TAKES_THEM = {
    # a manual clock leaps, and whoever moved it plays the services: nobody fires meanwhile
    "services/running/leap.py leap",
}
"""A new one is to be a kernel, or to work on what a kernel captured."""


def holders(tree: ast.AST) -> Iterator[str]:
    """Functions that take a lock of the services in a `with` statement."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and any(
            isinstance(node, ast.With)
            and any(OF_THE_SERVICES.search(ast.unparse(item)) for item in node.items)
            for node in ast.walk(function)
        ):
            yield function.name


def test_python_takes_the_locks_of_the_services_only_where_it_is_said() -> None:
    found = {f"{shown(path)} {name}" for path in OURS for name in holders(tree_of(path))}
    assert found == WHERE_PYTHON_TAKES_THEM


def test_a_holder_is_found() -> None:
    tree = ast.parse("def f():\n    with acting(), self.locks.fire.guard():\n        pass\n")
    assert list(holders(tree)) == ["f"]
    assert list(holders(ast.parse("def f():\n    with blocks.guard():\n        pass\n"))) == []
