"""Machine code that LLVM brings into memory; that needs nothing of Numba."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from timerstore.jit.numpylayout import NDARRAY_SYMBOL

_SETTINGS: Final = ("NUMBA_BOUNDSCHECK", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT")
"""What the environment says of the code that Numba makes."""
_ndarray: Final = ctypes.c_void_p(id(np.ndarray))


@cache
def target() -> tuple[Any, ...]:
    """Return what decides the code of a kernel, but for what the kernel itself says."""
    return (
        llvmlite.__version__,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        *map(os.environ.get, _SETTINGS),
    )


def load(symbol: str, code: bytes) -> int:
    """Load an object file; return the address of one of its functions."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(symbol)
    return address


@cache
def _engine() -> Any:
    # LLVM would not notice that memory may not be executable, and the first call would crash.
    prot = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    mmap.mmap(-1, mmap.PAGESIZE, prot=prot).close()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.add_symbol(NDARRAY_SYMBOL, ctypes.addressof(_ndarray))
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
