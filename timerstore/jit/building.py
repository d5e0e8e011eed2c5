"""Compiling a kernel: an object file of its machine code, with what calls it from Python."""

from __future__ import annotations

import re
from typing import Any, Final

import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from timerstore.errors import TimerStoreError
from timerstore.jit.linking import KernelLibrary
from timerstore.jit.packedentry import Entry
from timerstore.jit.recordtype import signature_of

TRIED: Final = (0, 68)
"""The newest Numba with which all tests have passed."""


def compiled(kernel: Any, symbol: str, machine: Any = None) -> bytes:
    """Return the object file of a kernel, whose entry has the name `symbol`. Takes seconds.

    `machine`: LLVM's target machine; without it, this processor.
    """
    try:
        return _compiled(kernel, symbol, machine)
    except Exception as e:
        if tuple(map(int, re.findall(r"\d+", numba.__version__)[:2])) <= TRIED:
            raise
        raise TimerStoreError(
            f"Kernels cannot be compiled with Numba {numba.__version__} ({type(e).__name__}: {e}). "
            f"Install Numba {TRIED[0]}.{TRIED[1]}, the newest that was tried."
        ) from e


def _compiled(kernel: Any, symbol: str, machine: Any) -> bytes:
    types = signature_of(kernel.py_func)
    with global_compiler_lock:
        dispatcher = kernel.helper.made
        dispatcher.compile(types)
        made = dispatcher.overloads[types]
        codegen = cpu_target.target_context.codegen()
        library = KernelLibrary(codegen, symbol)
        module = library.create_ir_module(f"entry of {symbol}")
        Entry(module, symbol).emit(made.fndesc, keeps_gil=kernel.keeps_gil)
        library.add_ir_module(module)
        library.add_linking_library(made.library)
        library.finalize()
        code: bytes = (machine or codegen._tm).emit_object(library._final_module)
        return code
