"""What Numba makes when it is first needed, not before."""

from pathlib import Path

import numpy as np
import pytest

import timerstore
from tests.rigs.program import ended, python
from tests.rigs.together import together
from timerstore.jit.intrinsics import get_u8
from timerstore.jit.kernel import INTERPRETED, Kernel
from timerstore.jit.later import Instruction
from timerstore.jit.record import Bytes

LOADED = "print(*sorted({'numba', 'llvmlite'} & set(sys.modules)))\n"


def ran(program: str, *arguments: str) -> str:
    return python("-c", "import sys\n" + program, *arguments, timeout_s=100)


def test_no_module_that_a_program_imports_imports_the_compiler() -> None:
    program = "import timerstore, timerstore.aio, timerstore.store.store, timerstore.cli\n" + LOADED
    assert ran(program) == "\n"


CLIENT = """
import timerstore
from datetime import timedelta
timerstore.connect(sys.argv[1]).close()
with timerstore.open(sys.argv[1], share=True) as store:
    assert not store.is_owner
    id = store.put(b"a", delay=timedelta(milliseconds=1), key="k")
    moved = store.put(b"b", delay=timedelta(hours=1))
    assert store.cancel(store.reschedule(moved, delay=timedelta(hours=2)))
    store.put_many([b"c"] * 3, delay_ms=[1, 2, 60_000], keys=["k", "l", "m"])
    assert store.count() >= 0 and store.stats() is not None
    assert store.horizon(bucket_ms=60_000) is not None
    list(store.pending(topic="default"))
    batch = store.pull("default", group="h", timeout=20)
    batch.to_arrow()
    batch.ack()
    for delivery in store.consume("default", group="g", timeout=20):
        if delivery.id == id:
            delivery.ack()
            break
"""


@pytest.mark.whole
@pytest.mark.timeout(170)
def test_a_client_needs_no_compiler(tmp_path: Path) -> None:
    with timerstore.open(tmp_path) as store, timerstore.serve(store):
        assert ran(CLIENT + LOADED, str(tmp_path)) == "\n"


PLAIN_CLIENT = """
import timerstore
with timerstore.open(sys.argv[1], share=True) as store:
    assert store.cancel(store.put(b"a", delay=3600))
    store.put_many([b"b"] * 3, keys=["a", "b", "c"])
    batch = store.pull("default", timeout=20)
    batch.to_arrow()
    batch.ack()
    store.pull("default", timeout=0)
    assert "pandas" not in sys.modules  # 42 MB: Arrow imports it for arrays made of lists
    assert "pyarrow.compute" not in sys.modules  # 30 ms
    for delivery in store.consume("default", group="g", timeout=20):
        delivery.ack()
        break
engine = ("timerstore.services.", "timerstore.store.", "timerstore.core.core")
light = ("timerstore.services.world", "timerstore.services.world.background")
print([each for each in sys.modules if each.startswith(engine) and each not in light])
"""


@pytest.mark.whole
@pytest.mark.timeout(170)
def test_a_client_that_puts_and_consumes_loads_no_engine(tmp_path: Path) -> None:
    with timerstore.open(tmp_path) as store, timerstore.serve(store):
        assert ran(PLAIN_CLIENT, str(tmp_path)) == "[]\n"


if not INTERPRETED:

    @Kernel
    def _first(data: Bytes) -> int:
        return get_u8(data, 0)

    def test_several_threads_make_one() -> None:
        data = np.array([7], np.uint8)
        assert together(_first, [data] * 4) == [7] * 4
        assert _first.entry is not None

    def test_without_numba_an_error_says_what_to_install(tmp_path: Path) -> None:
        program = "sys.modules['numba'] = None\nimport timerstore\ntimerstore.open(sys.argv[1])"
        empty = {"KERNEL_LEVEL": "none", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = ended("-c", f"import sys\n{program}", tmp_path / "store", **empty)
        assert done.returncode == 1
        assert "TimerStoreError: A kernel has to be compiled" in done.stderr
        assert "pip install 'timerstore[compile]'" in done.stderr

    def test_python_cannot_say_what_kernels_say() -> None:
        assert isinstance(get_u8, Instruction)
        with pytest.raises(NotImplementedError, match=r"codegen.loader\(1, True, False\)"):
            get_u8(np.zeros(1, np.uint8), 0)
