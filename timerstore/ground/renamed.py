"""Names that were changed: the old one still works, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_C = TypeVar("_C", bound=type)


def warn_renamed(old: str, new: str, *, depth: int = 3) -> None:
    """Warn of an old name; `depth`: how many calls above is the program's own."""
    warnings.warn(
        f"{old} is called {new} now. Use the new name: version 2.0 removes {old}.",
        DeprecationWarning,
        stacklevel=depth,
    )


def renamed(**names: str) -> Callable[[_C], _C]:
    """Return a decorator that gives a class its old names, `old="new"`.

    A type checker does not see them, so it names each use.
    """

    def look(self: Any, name: str) -> Any:
        if name not in names:
            kind = type(self).__name__
            text = f"{kind!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)
        warn_renamed(name, names[name])
        return getattr(self, names[name])

    def decorate(kind: _C) -> _C:
        kind.__getattr__ = look  # type: ignore[attr-defined]
        return kind

    return decorate
