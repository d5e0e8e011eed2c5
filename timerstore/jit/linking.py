"""How helpers become part of a kernel: linked as they were lowered, then optimised once.

Numba optimises each helper together with all that it calls, emits machine code for it, and does
both again in every caller, up to the kernel in which all of it is inlined: two thirds of the time
that compiling the services took. Here a helper stays what it was lowered to. The kernel links all
that it reaches, and optimises and emits that once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numba
from numba import types
from numba._dynfunc import make_function
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target

from timerstore.errors import TimerStoreError
from timerstore.jit.packedentry import Entry
from timerstore.jit.recordtype import signature_of

_ENVIRONMENT: Final = "_ZN08NumbaEnv"
"""Where Numba keeps Python objects that a function names. Helpers name none, so LLVM drops it."""


class HelperLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A helper's code as it was lowered."""

    def finalize(self) -> None:
        """Leave it as it is: the kernel that links it optimises it."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        raise RuntimeError(f"{self.name}: a helper is called by kernels and helpers alone")


class KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """What calls a kernel from Python, with all helpers that it reaches."""

    def finalize(self) -> None:
        """Link what the helpers call too, then optimise all.

        What is not the entry itself is made private: nobody else calls this copy, so LLVM may fit
        it to its callers here, and it leaves no symbol. A symbol would be found by other modules
        that bring a function of that name, and be called in its place.
        """
        module = self._final_module
        own = {each.name for each in _defined(module)}
        helpers: dict[HelperLibrary, None] = {}
        others: dict[Any, None] = {}
        waiting = self._linking_libraries
        while waiting:
            library = waiting.pop()
            if not isinstance(library, HelperLibrary):
                others[library] = None
            elif library not in helpers:
                helpers[library] = None
                waiting += library._linking_libraries
        for library in [*helpers, *others]:  # of the others only what is called by now is taken
            module.link_in(_module_of(library), preserve=True)
        for function in _defined(module):
            if function.name not in own:
                function.linkage = "private"
        for helper in helpers:
            for each in helper._final_module.global_variables:
                if each.name.startswith(_ENVIRONMENT):
                    module.get_global_variable(each.name).linkage = "private"
        super().finalize()

    def _finalize_final_module(self) -> None:
        """Leave it there: who made this library has machine code emitted for it."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        raise RuntimeError(f"{self.name}: a kernel is linked by nobody")


def _module_of(library: Any) -> Any:
    if isinstance(library, HelperLibrary):
        return library._final_module
    return library._get_module_for_linking()


def _defined(module: Any) -> list[Any]:
    return [each for each in module.functions if not each.is_declaration]


_NEEDLESS: Final = ("inline_closure_likes", "nopython_rewrites")
"""Passes for closures and for expressions of whole arrays, of which kernels have none: they take an
tenth of the time."""


class HelperCompiler(Compiler):  # type: ignore[misc]
    """Compiles a helper as far as its callers need it: no machine code."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's own passes, without those that find nothing here."""
        (passes,) = super().define_pipelines()
        short = PassManager(passes.pipeline_name)
        short.passes = [each for each in passes.passes if each[0].name() not in _NEEDLESS]
        short.finalize()
        return [short]

    def compile_extra(self, func: Any) -> Any:
        """Compile a helper."""
        state = self.state
        state.library = HelperLibrary(state.targetctx.codegen(), func.__qualname__)
        state.flags.no_compile = True
        made = super().compile_extra(func)
        # What stands for it in its callers; nobody calls it from Python.
        module, keeps = made.fndesc.lookup_module(), (made.library,)
        entry = make_function(module, func.__name__, "", 0, made.environment, keeps)
        state.targetctx.insert_user_function(entry, made.fndesc, [made.library])
        return made._replace(entry_point=entry)


# --- What Numba makes of helpers: dispatchers, which hold the code of each set of types.

# Kernels divide by sizes that are never 0, and allocate nothing: no checks, no reference counts.
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def helper(function: Callable[..., Any], **options: Any) -> Any:
    """Return the dispatcher of a helper that only kernels call."""
    made = numba.njit(pipeline_class=HelperCompiler, **(_OPTIONS | options))(function)
    return _without_literals(made)


def _without_literals(dispatcher: Any) -> Any:
    """Make a helper be compiled once for each set of types.

    Numba would compile it anew for each constant argument, and once more for each variable that
    begins as a constant; LLVM sees the constants anyway when it inlines the helper.
    """
    get_call_template = dispatcher.get_call_template

    def call_template(args: Any, kws: Any) -> Any:
        return get_call_template(
            tuple(types.unliteral(each) for each in args),
            {name: types.unliteral(each) for name, each in dict(kws).items()},
        )

    dispatcher.get_call_template = call_template
    return dispatcher


def external(symbol: str, result: str, *arguments: str) -> Any:
    """Return a function in C, by the names that Numba has for its types."""
    kinds = [getattr(types, name) for name in arguments]
    return types.ExternalFunction(symbol, getattr(types, result)(*kinds))


def type_of(made: Any) -> Any:
    """Return the type that Numba has for something that a kernel names."""
    context = cpu_target.typing_context
    context.refresh()  # an instruction may be a moment old
    return context.resolve_value_type(made)


# --- Compiling a kernel: an object file of its machine code, with what calls it from Python.

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
