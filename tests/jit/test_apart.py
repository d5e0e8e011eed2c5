"""Work in a thread of its own."""

import os
import signal
import threading
from types import FrameType

import pytest

from tests.rigs.program import ended
from timerstore.jit.guards import apart


class RangError(Exception):
    """A signal came."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise RangError


def test_its_result_or_its_error_is_the_callers() -> None:
    assert apart(lambda: threading.current_thread() is threading.main_thread()) is False
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)


def test_one_within_another() -> None:
    assert apart(lambda: apart(lambda: 7)) == 7


def test_something_is_told_meanwhile() -> None:
    told, end = [], threading.Event()

    def tell() -> None:
        told.append(1)
        if len(told) == 3:
            end.set()

    assert apart(end.wait, tell)
    assert len(told) >= 3


def test_an_exception_ends_the_wait_and_not_the_work() -> None:
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGALRM)  # its handler runs in the main thread
        go.wait()
        done.set()

    before = signal.signal(signal.SIGALRM, _ring)
    try:
        with pytest.raises(RangError):
            apart(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    go.set()
    assert done.wait(10)


def test_the_end_of_a_program_waits_for_it() -> None:
    program = (
        "import signal, time\nfrom timerstore.jit.guards import apart\n"
        "def work():\n    signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "    time.sleep(0.5)\n    print('done', flush=True)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\napart(work)\n"
    )
    done = ended("-c", program, timeout_s=50)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stdout == "done\n"


def test_no_child_is_forked_in_the_midst_of_it() -> None:
    program = (
        "import os, threading, time\nfrom timerstore.jit.guards import apart\n"
        "lock, begun = threading.Lock(), threading.Event()\n"
        "def work():\n    with lock:\n        begun.set()\n        time.sleep(0.5)\n"
        "threading.Thread(target=apart, args=(work,)).start()\nbegun.wait()\n"
        "child = os.fork()\n"
        "if not child:\n    os._exit(0 if apart(lambda: lock.acquire(timeout=5)) else 1)\n"
        "print(os.waitpid(child, 0)[1])\n"
        "print(apart(lambda: os.waitstatus_to_exitcode(os.system('exit 3'))))\n"
    )
    done = ended("-c", program, timeout_s=50)
    assert done.stdout == "0\n3\n", done.stderr


def test_work_of_many_steps_hears_of_the_programs_end() -> None:
    program = (
        "import atexit, signal, time\nfrom timerstore.jit.guards import apart, is_ending\n"
        "def work():\n    while not is_ending():\n        time.sleep(0.01)\n"
        "    print('heard', flush=True)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2)\napart(work)\n"
    )
    done = ended("-c", program, timeout_s=50)
    assert done.stdout == "heard\n", done.stderr
