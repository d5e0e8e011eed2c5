"""Calls that a signal ends, at each of their lines in turn."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class SignalError(BaseException):
    """What a signal's handler raises."""


def ended_at(line: int, file_name: str, call: Callable[[], Any]) -> bool:
    """Make a call; end it before its line number `line` in a file. False: it came to its end."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(file_name):
            return None
        if event == "line":
            left -= 1
            if left == -1:
                raise SignalError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except SignalError:
        return True
    finally:
        sys.settrace(before)
    return False


def ended_everywhere(
    file_name: str, make: Callable[[], tuple[Callable[[], Any], Callable[[], None]]]
) -> int:
    """End a call at each of its lines in a file; return how many there were.

    `make` returns the call, and what looks afterwards at what it left; each time anew.
    """
    for line in range(2_000):  # a call that is longer than that is none for this
        call, look = make()
        was_ended = ended_at(line, file_name, call)
        look()
        if not was_ended:
            return line
    raise AssertionError
