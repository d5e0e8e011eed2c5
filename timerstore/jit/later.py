"""What Numba makes when it is first needed: these stand for it until then.

Importing Numba with LLVM takes as long, and as much memory, as all of timerstore. So helpers,
instructions and records are described without it, and only who compiles a kernel imports it. The
modules of this folder that import Numba or LLVM are named here only as text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from timerstore.errors import TimerStoreError
from timerstore.jit.guards import apart

_FOLDER: Final = __name__.rpartition(".")[0]


@contextmanager
def told() -> Iterator[None]:
    """Tell what keeps machine code from being loaded as that, not as a fault of a store's files."""
    try:
        yield
    except (OSError, ImportError) as e:
        if isinstance(e, ModuleNotFoundError) and e.name in ("numba", "llvmlite"):
            raise TimerStoreError(
                "A kernel has to be compiled, because this installation brings none that fits, and "
                "Numba is not installed. No store was changed. Run: "
                "pip install 'timerstore[compile]'"
            ) from e
        raise TimerStoreError(
            f"The kernels' machine code could not be loaded or compiled ({type(e).__name__}: {e}). "
            "No store was changed. See that the working directory exists, that memory is left and "
            "may be executable (systemd: MemoryDenyWriteExecute=no), then start the program again."
        ) from e


def compiler(module: str) -> Any:
    """Import a module of this folder that needs Numba or LLVM.

    TimerStoreError says why it cannot be.
    """
    with told():
        return import_module(f"{_FOLDER}.{module}")


class Later:
    """Something that Numba makes. In a kernel it is what was made."""

    def __init__(self, maker: str, *arguments: Any, **options: Any) -> None:
        """`maker`: a module of this folder and its function, which is called with the others."""
        self._maker, self._arguments, self._options = maker, arguments, options

    @property
    def made(self) -> Any:
        """What was made; it is made once."""
        found = self.__dict__.get("_made")
        if found is None:  # of two threads that make it at once one made it in vain
            with told():
                found = self.__dict__.setdefault("_made", apart(self._make))
        return found

    def _make(self) -> Any:
        return self._maker_itself()(*self._arguments, **self._options)

    def _maker_itself(self) -> Any:
        module, name = self._maker.split(".")
        return getattr(compiler(module), name)

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks if a kernel names this."""
        return compiler("linking").type_of(self.made)


class Instruction(Later):
    """What only kernels can say: LLVM code, or a function in C."""

    twin: Callable[..., Any]
    """What does the same in Python, if there is one."""

    def __call__(self, *args: Any) -> Any:
        """Refuse: Python cannot say it."""
        raise NotImplementedError(f"{self} is for kernels alone.")

    def _make(self) -> Any:
        # Without arguments it is what stands there.
        return super()._make() if self._arguments else self._maker_itself()

    def __repr__(self) -> str:
        """Return what a kernel's digest knows of it: who makes it from what."""
        named = [getattr(each, "layout", each) for each in self._arguments]
        return f"{self._maker}({', '.join(map(str, named))})"


class Helper(Later):
    """A function of Python that becomes part of the kernels that call it."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        """`options`: those of Numba's decorator."""
        super().__init__("linking.helper", function, **options)
        functools.update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *args: Any) -> Any:
        """Refuse: it has no machine code of its own."""
        raise NotImplementedError(f"{self.py_func.__qualname__} is called by kernels alone.")
