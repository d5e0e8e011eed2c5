"""What a forked child keeps of the files that its parent has mapped: those that it may read."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable

from timerstore.jit.mapping import leave_to_parent
from timerstore.timelog.files.disk import MappedFile


class Pinned(list[MappedFile]):
    """Files that a caller reads later; they stay mapped in a forked child as well."""

    __hash__ = object.__hash__  # type: ignore[assignment]


_pinned: weakref.WeakSet[Pinned] = weakref.WeakSet()


def pin(files: Iterable[MappedFile]) -> Pinned:
    """Return files that stay mapped while the result is referenced."""
    pinned = Pinned(files)
    _pinned.add(pinned)
    return pinned


_forgets = set[weakref.WeakMethod[Callable[[], None]]]()


def forget_in_child(forget: Callable[[], None]) -> None:
    """Have a forked child call a method, by which its object keeps no maps for later any more."""
    _forgets.add(weakref.WeakMethod(forget, _forgets.discard))


def _after_fork() -> None:
    for each in list(_forgets):
        if forget := each():
            forget()
    leave_to_parent({file.owner for pinned in _pinned for file in pinned})


os.register_at_fork(after_in_child=_after_fork)
