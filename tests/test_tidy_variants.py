"""What a wrong variant of a kernel changes is there; who plays it says so much later."""

import ast
import textwrap

from tests.models.wrong_kernels import WRONG, Change
from tests.test_tidy import ROOT


def text_of(change: Change) -> str:
    """Return the text of the function that is changed."""
    inside = ROOT / "timerstore" / change.module.replace(".", "/")  # links lead to the engine
    text = inside.with_suffix(".py").read_text()
    found: ast.AST = ast.parse(text)
    for name in change.function.split("."):
        (found,) = [
            each
            for each in ast.iter_child_nodes(found)
            if isinstance(each, ast.FunctionDef | ast.ClassDef) and each.name == name
        ]
    assert isinstance(found, ast.FunctionDef) and found.end_lineno is not None
    return textwrap.dedent("\n".join(text.splitlines()[found.lineno - 1 : found.end_lineno]) + "\n")


def test_wrong_variants_change_what_is_there() -> None:
    for name, changes in WRONG.items():
        for change in changes:
            assert change.right in text_of(change), f"{name}: {change.function} is another"
