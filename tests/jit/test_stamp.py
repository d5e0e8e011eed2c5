"""What a kernel's digest notices."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

from tests.rigs.program import python
from timerstore.jit.kernel import INTERPRETED
from timerstore.jit.loading import stamp_of

SOURCE = """
import numpy as np

LIMIT = 3
TABLE = np.arange(4)

def kernel(x):
    return helper(x) + TABLE[0]

def helper(x):
    return min(x, LIMIT)

def other(x):
    return x
"""
_names = (f"stamped_{i}" for i in itertools.count())


def stamp(path: Path, source: str) -> str:
    file = path / f"{next(_names)}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("stamped", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return stamp_of(module.kernel)


def test_comments_and_what_is_not_used_change_nothing(tmp_path: Path) -> None:
    before = stamp(tmp_path, SOURCE)
    assert stamp(tmp_path, SOURCE.replace("LIMIT = 3", "# why\n\nLIMIT = 3")) == before
    assert stamp(tmp_path, SOURCE.replace("    return x\n", "    return x + 1\n")) == before
    docstring = SOURCE.replace("    return helper(x)", '    """Help."""\n    return helper(x)')
    assert stamp(tmp_path, docstring) == stamp(tmp_path, docstring.replace("Help", "Do help"))


def test_constants_helpers_and_tables_count(tmp_path: Path) -> None:
    changed = [
        SOURCE.replace("LIMIT = 3", "LIMIT = 4"),
        SOURCE.replace("min(x, LIMIT)", "max(x, LIMIT)"),
        SOURCE.replace("arange(4)", "arange(5)"),
        SOURCE.replace("helper(x) +", "helper(x) -"),
    ]
    assert len({stamp(tmp_path, each) for each in [SOURCE, *changed]}) == 5


def test_constants_of_other_modules_count(tmp_path: Path) -> None:
    source = "import numbers_of_a_test as numbers\ndef kernel(x):\n    return x + numbers.ONE\n"
    stamps = set()
    for one in (1, 1, 2):
        numbers = ModuleType("numbers_of_a_test")
        numbers.ONE = one  # type: ignore[attr-defined]
        sys.modules["numbers_of_a_test"] = numbers
        stamps.add(stamp(tmp_path, source))
    del sys.modules["numbers_of_a_test"]
    assert len(stamps) == 2


TUPLES = """
from typing import NamedTuple

class Pair(NamedTuple):
    first: int
    second: int

def kernel(x):
    return Pair(x, 1).first
"""


def test_the_order_of_a_tuple_s_fields_counts(tmp_path: Path) -> None:
    changed = TUPLES.replace("    first: int\n    second: int", "    second: int\n    first: int")
    assert stamp(tmp_path, TUPLES) == stamp(tmp_path, TUPLES) != stamp(tmp_path, changed)


TYPED = """
from typing import NamedTuple
from timerstore.jit.record import Bytes, Int32s, ReadBytes, Words

class Pair(NamedTuple):
    words: Words
    count: int

def kernel(pair: Pair, data: Bytes) -> int:
    return len(data)
"""


def test_types_that_annotations_say_count(tmp_path: Path) -> None:
    changed = [
        TYPED.replace("data: Bytes", "data: ReadBytes"),
        TYPED.replace("data: Bytes", "data: Words"),
        TYPED.replace("    words: Words", "    words: Int32s"),
    ]
    assert stamp(tmp_path, TYPED) == stamp(tmp_path, TYPED)
    assert len({stamp(tmp_path, each) for each in [TYPED, *changed]}) == 4


RECORDS = """
from timerstore.jit.record import record, record_at

@record
class Inner:
    first: int = 0

@record
class Outer:
    inner: Inner

at = record_at(Outer)

def kernel(address):
    return at(address).inner.first
"""

if not INTERPRETED:

    def test_a_record_that_is_known_by_its_address_counts(tmp_path: Path) -> None:
        changed = RECORDS.replace("    first:", "    before: int = 0\n    first:")
        assert stamp(tmp_path, RECORDS) == stamp(tmp_path, RECORDS)
        assert stamp(tmp_path, RECORDS) != stamp(tmp_path, changed)


def test_it_is_the_same_in_every_process() -> None:
    code = (
        "from timerstore.jit.loading import stamp_of;"
        "from timerstore.services.running.steps import run;"
        "print(stamp_of(run))"
    )
    printed = [python("-c", code) for _ in range(2)]
    assert len(printed[0].strip()) == 64
    assert printed[0] == printed[1]
