"""Kernels are at hand once a store is open."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.program import ended, python
from tests.rigs.together import together
from timerstore.core import load_kernels as ahead
from timerstore.jit.kernel import INTERPRETED, LOADED_AHEAD, Kernel
from timerstore.jit.recordtype import signature_of

pytestmark = pytest.mark.long

LIFE = '''
"""All that a program calls on an open store; prints each kernel that came with a call."""

import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

import timerstore
from timerstore import Config, Consumer, ManualClock, Retry, Tuning
from timerstore.jit.kernel import Kernel
from timerstore.jit.loading import COMPILED


def in_memory():
    found = set()
    for module in [each for name, each in sys.modules.items() if name[:11] == "timerstore."]:
        for name, value in vars(module).items():
            if isinstance(value, Kernel) and value.entry is not None:
                found.add((value.__module__, name))
    return found


def step(what):
    global known
    for module, name in sorted(in_memory() - known):
        print(what, module, name)
    known = in_memory()


MINUTE = timedelta(minutes=1)
FAR = datetime(2090, 1, 1, tzinfo=UTC)
clock = ManualClock()
tuning = Tuning(commitlog_segment_bytes=1 << 16, **SIZES)
config = Config(durability="process", tuning=tuning)
store = timerstore.open(sys.argv[1], config=config, clock=clock)
known = in_memory()
first = store.put(b"a", delay=MINUTE)
step("put")
for more in ({"key": "k"}, {"tag": "t"}, {"properties": {"p": "v"}}, {"key": "k", "tag": "t"}):
    store.put(b"a", delay=MINUTE, **more)
store.put(b"a", at=FAR)
store.put(b"a", at_ms=4_000_000_000_000)
level = store.put(b"a", delay_level=1)
store.put(b"a", topic="other", delay_level=2)
store.put(b"a", topic="other", delay_level=2)
step("ways of a put")
lots = store.put_many([b"b"] * 50, delay_ms=[60_000] * 50)
step("put_many")
store.put_many(pa.array([b"c", b"d"]), delay_ms=np.array([600_000, 700_000]))
store.put_many(np.zeros((3, 10), np.uint8), at_ms=np.full(3, 4_000_000_000_000))
keyed = store.put_many([b"e", b"f"], delay_ms=[1, 2], keys=["k", "l"])
store.put_many([b"e", b"f"], delay_level=1)
step("kinds of bodies")
assert store.get(first).body == b"a"
store.get(level)
store.get(lots[3])
step("get")
assert store.cancel(lots[0])
store.cancel(level)
step("cancel")
store.cancel_many(lots[1:3])
store.cancel_many(list(lots[3:5]))
store.cancel_many(lots[10:20:2])
elsewhere = store.put_many([b"g", b"h"], topic="other", delay_ms=[1, 2])
store.cancel_many([lots[21], elsewhere[0], lots[22], elsewhere[1]])
step("cancel_many")
moved = store.reschedule(lots[6], delay=MINUTE)
first = store.reschedule(first, at=FAR)
store.reschedule(first, body=b"other", properties={"x": "y"})
step("reschedule")
assert list(store.pending())
list(store.pending(topic="other"))
step("pending")
store.horizon(bucket_ms=60_000)
store.count()
store.count("default")
store.stats()
step("horizon, count, stats")
clock.advance(timedelta(minutes=2))
step("advance")
batch = store.pull("default", timeout=0)
batch.to_arrow()
batch.ack()
step("pull")
for delivery in store.consume("default", group="g", timeout=0):
    delivery.nack()
    break
for delivery in store.consume("default", group="h", timeout=0):
    delivery.nack(timedelta(seconds=1))
    break
for delivery in store.consume("default", group="i", timeout=0):
    delivery.ack()
store.get(moved)
step("consume")
store.flush()
step("flush")
for i in range(400):
    store.put_many([bytes(300)] * 20, delay_ms=[1_000 + i] * 20)
for _ in range(20):
    clock.advance(timedelta(seconds=10))
    batch = store.pull("default", timeout=0)
    batch.ack()
    store.flush()
step("many")
store.clean()
step("clean")
far = store.put_many([b"far"] * 10, at_ms=[4_000_000_000_000] * 10)
store.flush()
store.cancel_many(far[:5])
store.cancel(far[5])
store.put(b"near", delay=timedelta(seconds=2))
store.cancel(store.put(b"near", delay=timedelta(seconds=3)))
if sys.argv[2] == "handover":
    store.handover()  # it reads the closed store, with kernels that are loaded then
else:
    store.close()
    step("close")
print(*COMPILED, "done")
'''
SIZES = "consumequeue_segment_bytes=20_000, timerlog_segment_bytes=52_000"


def played(folder: Path, end: str) -> list[str]:
    program = LIFE.replace("**SIZES", SIZES)
    return python("-c", program, folder / "store", end, timeout_s=170).splitlines()


def named(name: str, load: Callable[[], object]) -> Any:
    made = Kernel(signature_of)
    made.name, made.load = name, load  # type: ignore[method-assign]
    return made


@pytest.fixture
def on_trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kernels that are not loaded yet, and what was loaded of them."""
    loaded: list[str] = []
    monkeypatch.setattr(ahead, "_ready_count", len(LOADED_AHEAD))
    monkeypatch.setattr(ahead, "is_compiled", lambda each: True)
    LOADED_AHEAD.extend(named(name, partial(loaded.append, name)) for name in "ab")
    yield loaded
    LOADED_AHEAD[:] = [each for each in LOADED_AHEAD if each.name not in ("a", "b")]


def test_each_is_loaded_once(on_trial: list[str]) -> None:
    together(lambda _: ahead.load_kernels(), range(4))
    ahead.load_kernels()
    assert on_trial == ["a", "b"]


def test_one_that_fails_is_tried_again(on_trial: list[str]) -> None:
    bad = named("bad", lambda: 1 // 0)
    LOADED_AHEAD.append(bad)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            ahead.load_kernels()
    LOADED_AHEAD.remove(bad)
    ahead.load_kernels()
    assert on_trial == ["a", "b"] * 3


def test_what_is_called_later_is_compiled_with_the_others(
    on_trial: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = named("later", partial(on_trial.append, "later"))
    monkeypatch.setattr(ahead, "LOADED_LATER", [later])
    monkeypatch.setattr(ahead, "_may_start_workers", lambda missing: False)
    ahead.load_kernels()
    assert on_trial == ["a", "b"]
    monkeypatch.setattr(ahead, "is_compiled", lambda each: each.name == "a")
    monkeypatch.setattr(ahead, "_ready_count", ahead._ready_count - 2)
    ahead.load_kernels()
    assert on_trial == ["a", "b", "a", "b", "later"]


def test_the_end_of_a_program_waits_for_no_more_than_one(tmp_path: Path) -> None:
    program = (
        "import signal, time, timerstore\nfrom timerstore.core import load_kernels as ahead\n"
        "from timerstore.jit.kernel import LOADED_AHEAD, Kernel\n"
        "def load():\n    print('one', flush=True)\n    time.sleep(0.5)\n"
        "slow = Kernel(load)\nslow.load = load\n"
        "LOADED_AHEAD[:] = [slow] * 40\nahead.is_compiled = lambda each: True\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.2)\nahead.load_kernels()\n"
    )
    done = ended("-c", program, timeout_s=50)
    assert "KeyboardInterrupt" in done.stderr and "Exception in" not in done.stderr
    assert done.stdout == "one\n"


if not INTERPRETED:

    def test_every_kernel_ahead_has_types() -> None:
        import_module("timerstore.store.store")
        assert len(LOADED_AHEAD) > 40
        assert len({each.name for each in LOADED_AHEAD}) == len(LOADED_AHEAD)
        for each in LOADED_AHEAD:
            signature_of(each.py_func)

    def test_workers_fill_the_cache(tmp_path: Path) -> None:
        few = "services.engine.engine._step_count", "timelog.bytes.decode.write_ids"
        program = (
            "import sys, timerstore.store.store\n"
            "from timerstore.core import load_kernels as ahead\n"
            "from timerstore.jit.kernel import LOADED_AHEAD\n"
            "from timerstore.jit.loading import is_compiled\n"
            f"few = [each for each in LOADED_AHEAD if each.name[11:] in {few}]\n"
            "print(len(few), *map(is_compiled, few))\n"
            "ahead._worker_count = lambda missing: 2\n"
            "print(ahead._may_start_workers(few))\n"
            "ahead._compile_side_by_side(few)\n"
            "print(*map(is_compiled, few))\n"
            "sys.executable = '/bin/something-else'\n"
            "print(ahead._may_start_workers(few))\n"
        )
        printed = python("-c", program, NUMBA_CACHE_DIR=str(tmp_path))
        assert printed.split("\n")[:4] == ["2 False False", "True", "True True", "False"]

    @pytest.mark.tier("prove", only=("handover",))
    @pytest.mark.timeout(180)
    @pytest.mark.parametrize("end", ["close", "handover"])
    def test_no_call_on_an_open_store_compiles_anything(tmp_path: Path, end: str) -> None:
        assert played(tmp_path, end) == ["done"]

    INTERRUPTED = """
import signal, sys, threading
import timerstore.store.store
from timerstore.core.load_kernels import load_kernels

class Alarm(Exception):
    pass

def ring(*args):
    raise Alarm

signal.signal(signal.SIGALRM, ring)
rung = 0
for i in range(60):
    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.004 * i)
    try:
        load_kernels()
        signal.setitimer(signal.ITIMER_REAL, 0)
        break
    except Alarm:
        rung += 1
def use():
    with timerstore.open(sys.argv[1]) as store:
        store.put(b"x")
        store.pull("default", timeout=5).ack()
        print(rung > 0)
thread = threading.Thread(target=use)
thread.start()
thread.join()
"""

    @pytest.mark.timeout(120)
    def test_an_exception_while_kernels_are_loaded_locks_nobody_out(tmp_path: Path) -> None:
        assert python("-c", INTERRUPTED, tmp_path, timeout_s=110) == "True\n"
