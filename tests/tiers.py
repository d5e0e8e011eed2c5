"""How much is played: what every change must pass, beside what `./run prove` looks for.

The marks `prove`, `long`, `promise` and `whole` stand at the tests; `tier` gives one to some of a
test's parameters alone. docs/testing.md says what each means.
"""

import os
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest

PROVING: Final = os.environ.get("PROVE", "0") not in ("", "0")
SEED: Final = int(os.environ.get("SEED", "1"))
"""What random plays begin with; `./run prove` gives each batch its own."""


def add_tiers(items: Iterable[pytest.Item]) -> set[str]:
    """Add the marks of `tier(name, only=…)` and `tier(name, but=…)`; return the idle ones.

    `only`, `but`: patterns of the parameters' ids that have the mark, or do not. If no id fits,
    because a parameter got another name, say, the mark is idle.
    """
    all_marks, used = set[str](), set[str]()
    for item in items:
        id = item.callspec.id if hasattr(item, "callspec") else ""
        for mark in item.iter_markers("tier"):
            only = "only" in mark.kwargs
            fits = any(fnmatchcase(id, each) for each in mark.kwargs["only" if only else "but"])
            if fits is only:
                item.add_marker(mark.args[0])
            said = f"{item.nodeid.partition('[')[0]}: {mark.args[0]}, {mark.kwargs}"
            all_marks.add(said)
            if fits:
                used.add(said)
    return all_marks - used


Told = Callable[[str, object], None]
"""The fixture `record_property`: how much a test has played of which play of `tests/proving.py`."""


def how_many(name: str, few: int, many: int) -> int:
    """Return what a variable of the environment says, else few, or many where all is proved."""
    return int(os.environ.get(name) or (many if PROVING else few))


def some(values: Iterable[Any], every: int) -> list[Any]:
    """Return parameters of which one in `every` is tried always, and the others are proved."""
    proved = pytest.mark.prove
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=proved)
        if number % every
        else value
        for number, value in enumerate(values)
    ]
