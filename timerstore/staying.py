"""Objects that stay in their process: they hold files, locks, threads, or belong to what does."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from timerstore.errors import InvalidArgumentError


class Stays:
    """Cannot be pickled, nor copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse it, and say what to send instead."""
        raise InvalidArgumentError(
            f"A {type(self).__name__} belongs to this process: it cannot be pickled or copied. "
            "Pass the store's path, and open or connect there; of a message pass id and body."
        )
