"""A signal's exception at a chosen place: wherever Python would look for signals.

It looks behind a call, where a function begins, and where a loop goes back; so this stops there,
in the files that are named, one place after the other. A `with` statement's first step is none.
Neither is what follows the last call of a block: for Python that call is still inside it, but an
exception that is raised one step later is not.
"""

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

_LOOKS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}


class Interrupt(BaseException):
    """What the handler raises."""


@cache
def _places(code: CodeType) -> frozenset[int]:
    """The instructions before which Python looks for signals."""
    steps = list(dis.get_instructions(code))
    places = set[int]()
    for before, step in pairwise(steps):
        if before.opname in _LOOKS:
            place = before.argval if before.opname == "JUMP_BACKWARD" else step.offset
            if _handler(code, place) == _handler(code, before.offset):
                places.add(place)
    return frozenset(places)


def _handler(code: CodeType, offset: int) -> int | None:
    """Return where an exception at an instruction is handled."""
    for each in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        if each.start <= offset < each.end:
            return int(each.target)
    return None


class Count:
    """How many places were passed."""

    passed = 0
    raised = False


@contextmanager
def interrupted(at: int, *files: str) -> Iterator[Count]:
    """Raise Interrupt at the place of that number, from 0, in these files, for this thread."""
    count = Count()

    def here(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and frame.f_lasti in _places(frame.f_code) and not count.raised:
            count.passed += 1
            if count.passed > at:
                count.raised = True
                raise Interrupt
        return here

    def called(frame: FrameType, _: str, __: Any) -> Any:
        if count.raised or not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return here

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield count
    finally:
        sys.settrace(before)
