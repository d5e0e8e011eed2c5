"""What was captured is read through its hold: else "gone" would be taken for "fired"."""

import ast
from collections.abc import Iterator

from tests.test_tidy import OURS, nodes_of, shown, tree_of

ROOMS = ("services/looking/", "timerstore/calls/pending/")
WHO_LOOKS_AGAIN = {
    "services/looking/timer_places.py read_kept",  # `read_held` asks behind it
    "timerstore/calls/pending/cancel.py get",
    "timerstore/calls/pending/is_pending.py find",
    "timerstore/calls/pending/pending.py _find",
    "timerstore/calls/pending/pending.py _read_found",
    "timerstore/calls/pending/pending.py _read_id",
    "timerstore/calls/pending/cancel.py find_ours",
}
"""They hold no place for longer than a look: what is gone is looked for by id or by key again."""
ASKS = {"pass_missing", "check"}


def reads_past_the_hold(tree: ast.AST) -> Iterator[str]:
    """Functions that learn that a segment is missing, and do not ask a hold what that means."""
    for function in nodes_of(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        learns = asks = False
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                learns |= "CorruptStoreError" in ast.unparse(node.type)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                learns |= node.func.attr in ("map_from", "pin")
                learns |= node.func.attr == "suppress" and "CorruptStoreError" in ast.unparse(node)
                asks |= node.func.attr in ASKS
        if learns and not asks:
            yield function.name


def test_what_was_captured_is_read_through_its_hold() -> None:
    found = {
        f"{shown(path)} {name}"
        for path in OURS
        if shown(path).startswith(ROOMS)
        for name in reads_past_the_hold(tree_of(path))
    }
    # `read_units.py` reads the units of who removes them, and asks for the log's start.
    assert found - {"services/looking/read_units.py read_units"} == WHO_LOOKS_AGAIN
    bad = "def f():\n try:\n  look()\n except CorruptStoreError:\n  pass\ndef g(p):\n p.map_from(1)"
    assert list(reads_past_the_hold(ast.parse(bad))) == ["f", "g"]
