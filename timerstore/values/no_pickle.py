"""Objects that stay in their process: they hold files, locks, threads, or belong to what does."""

from __future__ import annotations

from typing import ClassVar, NoReturn, Self, SupportsIndex

from timerstore.errors import InvalidArgumentError


class Stays:
    """Cannot be pickled, nor copied."""

    __slots__ = ()
    _called: ClassVar[str] = ""
    """What users call it, if not by the name of its type."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse it, and say what to send instead."""
        raise InvalidArgumentError(
            f"A {self._called or type(self).__name__} belongs to this process, so it cannot be "
            "pickled or copied. To use the store in another process, pass its path and connect "
            "there; to pass on a message, pass its id and body."
        )


class Closes(Stays):
    """Is closed at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> object:
        """Let go what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()
