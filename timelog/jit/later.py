"""What Numba makes when it is first needed: these stand for it until then.

Importing Numba with LLVM takes as long, and as much memory, as all of timerstore. So kernels,
helpers, instructions and records are described without it. Who compiles one imports it, and so does
who calls one whose machine code is not in memory yet. The modules of this folder that import Numba
are named here only as text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from timerstore.errors import TimerStoreError
from timerstore.timelog.jit.apart import apart
from timerstore.timelog.jit.packaged import packaged, tell_compiled

_FOLDER: Final = __name__.rpartition(".")[0]


@contextmanager
def _told() -> Iterator[None]:
    """Tell what keeps machine code from being loaded as that, not as a fault of a store's files."""
    try:
        yield
    except (OSError, ImportError) as e:
        raise TimerStoreError(
            f"The kernels' machine code could not be loaded or compiled ({type(e).__name__}: {e}). "
            "No store was changed. See that the working directory exists, that memory is left and "
            "may be executable (systemd: MemoryDenyWriteExecute=no), then start the program again."
        ) from e


def compiler(module: str) -> Any:
    """Import a module of this folder that needs Numba; TimerStoreError says why it cannot be."""
    with _told():
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
            with _told():
                found = self.__dict__.setdefault("_made", apart(self._make))
        return found

    def _make(self) -> Any:
        return getattr(*self._place())(*self._arguments, **self._options)

    def _place(self) -> tuple[Any, str]:
        module, name = self._maker.split(".")
        compiler("dispatchers")  # it tells Numba of records before anything is made
        return compiler(module), name

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks if a kernel names this."""
        return compiler("dispatchers").type_of(self.made)


class Instruction(Later):
    """What only kernels can say: LLVM code, or a function in C."""

    def __call__(self, *args: Any) -> Any:
        """Refuse: Python cannot say it."""
        raise NotImplementedError(f"{self} is for kernels alone.")

    def _make(self) -> Any:
        # Without arguments it is what stands there.
        return super()._make() if self._arguments else getattr(*self._place())

    def __repr__(self) -> str:
        """Return what a kernel's digest knows of it: who makes it from what."""
        named = [getattr(each, "layout", each) for each in self._arguments]
        return f"{self._maker}({', '.join(map(str, named))})"


class Function(Later):
    """A function of Python that Numba compiles; called, it is compiled first."""

    def __init__(self, maker: str, function: Callable[..., Any], **options: Any) -> None:
        """`maker`: what makes the dispatcher of `function`."""
        super().__init__(maker, function, **options)
        functools.update_wrapper(self, function)
        self.py_func = function
        self._call: Any = self._call_first

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call it."""

    else:
        __call__ = property(attrgetter("_call"))  # a third of a method's cost

    def _call_first(self, *args: Any, **kwargs: Any) -> Any:
        self._call = self.made
        return self._call(*args, **kwargs)


class Kernel(Function):
    """A function that Python calls. To another kernel it is a helper like any."""

    def __init__(self, function: Callable[..., Any], *, keeps_gil: bool = False) -> None:
        """`keeps_gil`: whether no other thread of Python runs meanwhile."""
        super().__init__("dispatchers.kernel", function, keeps_gil=keeps_gil)
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.keeps_gil = keeps_gil
        self._entry: Any = None
        """What calls its packaged machine code."""
        self._helper = Function("dispatchers.helper", function)

    @property
    def _numba_type_(self) -> Any:
        """What Numba asks if another kernel names this."""
        return self._helper._numba_type_

    @property
    def is_at_hand(self) -> bool:
        """Whether it can be called without importing Numba first."""
        return "_made" in self.__dict__ or self.is_packaged

    @property
    def is_packaged(self) -> bool:
        """Whether this package brings its machine code."""
        library = packaged()
        return library is not None and self.name in library

    def load(self) -> Any:
        """Have its machine code for the types that its annotations say; return what calls it."""
        with _told():
            library = packaged()
            if library is None or self.name not in library:
                return compiler("dispatchers").load(self)
            if self._entry is None:
                self._call = self._entry = library.callable(self.name, self._call_other)
            return self._entry

    def _call_first(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_packaged:
            return self.load()(*args, **kwargs)
        return super()._call_first(*args, **kwargs)

    def _call_other(self, *args: Any, **kwargs: Any) -> Any:
        """Call it with other types than it was packaged for: these are compiled."""
        tell_compiled(self.name)
        return self.made(*args, **kwargs)


class Announced:
    """Classes that Numba has to know: who imports it asks for them."""

    def __init__(self) -> None:
        self._classes: list[type] = []
        self._told: list[Callable[[Any], None]] = []

    def add(self, cls: type) -> None:
        """Announce one."""
        self._classes.append(cls)
        for tell in self._told:
            tell(cls)

    def tell(self, tell: Callable[[Any], None]) -> None:
        """Have `tell` called with each: those there are, and those to come; some twice."""
        self._told.append(tell)
        for cls in list(self._classes):
            tell(cls)
