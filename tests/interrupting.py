"""A signal's exception at a chosen place: wherever a version of Python would look for signals.

All look behind a call, where a function begins, and where a loop goes back; 3.14 also behind the
`__enter__` of a `with` statement, outside its block. So this stops there, in the files that are
named or else in all of the product's, one place after the other, whichever version runs it. At a
jump back it stops before the jump, which the block around the loop may not cover, and where it
leads to. `everywhere` adds all instructions between, but not those that note which exception is
being handled, and forget it: Python breaks its own stack where an exception parts them.

What follows the last call of a block is no place: for Python that call is still inside it, but an
exception that is raised one step later is not.
"""

import builtins
import dis
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from timerstore.jit import guards
from timerstore.jit.cachefolder import PACKAGE

_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME"}
_JUMP = "JUMP_BACKWARD"
_HANDLES = {"PUSH_EXC_INFO", "POP_EXCEPT"}
_FOLDERS = tuple(
    {os.path.realpath(each.path) + os.sep for each in os.scandir(PACKAGE) if each.is_dir()}
)


class Interrupt(BaseException):
    """What the handler raises."""


@cache
def _is_unfit(code: CodeType) -> bool:
    """Tell whether an exception breaks what this belongs to, or gets lost in it.

    An import that is ended keeps its lock. Python only reports what a callback of the garbage
    collector, a weak reference's callback or a destructor raises, and goes on.
    """
    if code.co_name == "__del__" or code.co_filename.startswith("<frozen importlib"):
        return True
    if os.path.basename(code.co_filename) in ("weakref.py", "_weakrefset.py"):
        return True
    return any(code is getattr(each, "__code__", None) for each in gc.callbacks)


@contextmanager
def alarms(
    error: BaseException | type[BaseException],
    is_wanted: Callable[[FrameType | None], bool] = lambda _: True,
) -> Iterator[None]:
    """Have SIGALRM raise an error where it is wanted, a moment later where it would get lost."""
    is_deaf = False

    def ring(_: int, frame: FrameType | None) -> None:
        nonlocal is_deaf
        if is_deaf:  # the next signal may come before this one was dealt with
            return
        is_deaf, each = True, frame
        while each is not None and not _is_unfit(each.f_code):
            each = each.f_back
        if each is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, signal.getitimer(signal.ITIMER_REAL)[1])
        is_deaf = False
        if each is None and is_wanted(frame):
            raise error

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        is_deaf = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0.001)  # one that came before would find no handler, of which Python warns
        signal.signal(signal.SIGALRM, before)


@cache
def _places(code: CodeType, everywhere: bool) -> frozenset[int]:
    """The instructions before which it may be raised."""
    steps = list(dis.get_instructions(code))
    places = {step.offset for step in steps if everywhere or step.opname == _JUMP}
    places |= {step.argval for step in steps if step.opname == _JUMP}
    for before, step in pairwise(steps):
        if before.opname in _CALLS:
            if _handler(code, step.offset) == _handler(code, before.offset):
                places.add(step.offset)
    places -= {step.offset for step in steps if step.opname in _HANDLES}
    return frozenset(places - {each.target for each in _handled(code)})


def _handler(code: CodeType, offset: int) -> int | None:
    """Return where an exception at an instruction is handled."""
    for each in _handled(code):
        if each.start <= offset < each.end:
            return int(each.target)
    return None


def _handled(code: CodeType) -> Any:
    """Return which instructions' exceptions are handled, and where."""
    return dis._parse_exception_table(code)  # type: ignore[attr-defined]


class Count:
    """How many places were passed."""

    passed = 0
    raised = False


@contextmanager
def interrupted(at: int, *files: str, everywhere: bool = False) -> Iterator[Count]:
    """Raise Interrupt at the place of that number, from 0, in these files, for this thread."""
    count, mine, running = Count(), threading.get_ident(), set[CodeType]()
    frame = sys._getframe()
    while frame.f_back is not None:  # who asks for it is not ended
        frame = frame.f_back
        running.add(frame.f_code)

    @cache
    def is_meant(name: str) -> bool:
        return name.endswith(files) if files else os.path.realpath(name).startswith(_FOLDERS)

    def pass_by() -> None:
        count.passed += 1
        if count.passed > at:
            count.raised = True
            raise Interrupt

    def entered(steps: Any) -> bool:
        """Do what a guard's `__enter__` does, and look for signals before it returns."""
        taken = builtins.any(steps)
        del steps  # an exception's trace keeps this frame, which a built-in function has not
        is_here = not count.raised and threading.get_ident() == mine
        if is_here and is_meant(sys._getframe(1).f_code.co_filename):
            pass_by()
        return taken

    def step(code: CodeType, offset: int) -> Any:
        if code in running or not is_meant(code.co_filename):
            return _NEVER_AGAIN
        if offset not in _places(code, everywhere):
            return _NEVER_AGAIN
        if not count.raised and threading.get_ident() == mine:
            pass_by()
        return None

    vars(guards)["any"] = entered
    try:
        with _stepping(step, is_meant):
            yield count
    finally:
        del vars(guards)["any"]


if sys.version_info >= (3, 12):
    _NEVER_AGAIN: Any = sys.monitoring.DISABLE

    @contextmanager
    def _stepping(
        step: Callable[[CodeType, int], Any], is_meant: Callable[[str], bool]
    ) -> Iterator[None]:
        """Do the same, and pass by what returned _NEVER_AGAIN, until the next time."""
        del is_meant
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.DEBUGGER_ID, "interrupting")
        try:
            event = monitoring.events.INSTRUCTION
            monitoring.register_callback(monitoring.DEBUGGER_ID, event, step)
            monitoring.set_events(monitoring.DEBUGGER_ID, event)
            monitoring.restart_events()
            yield
        finally:
            monitoring.set_events(monitoring.DEBUGGER_ID, 0)
            monitoring.free_tool_id(monitoring.DEBUGGER_ID)

else:
    _NEVER_AGAIN = None

    @contextmanager
    def _stepping(
        step: Callable[[CodeType, int], Any], is_meant: Callable[[str], bool]
    ) -> Iterator[None]:
        """Call `step` before each instruction of what this thread calls in files that are meant."""

        def here(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                step(frame.f_code, frame.f_lasti)
            return here

        def called(frame: FrameType, _: str, __: Any) -> Any:
            if not is_meant(frame.f_code.co_filename):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return here

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)
