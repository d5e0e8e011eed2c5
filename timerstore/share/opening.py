"""The entrance: a directory is opened, as the kind of store that was asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, overload

if TYPE_CHECKING:
    from timerstore.services.world.clock import ManualClock
    from timerstore.share.shared import SharedStore
    from timerstore.store.store import TimerStore
    from timerstore.values.config import Config


@overload
def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    config: Config | None = None,
    clock: ManualClock | None = None,
    share: Literal[False] = False,
) -> TimerStore: ...


@overload
def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    config: Config | None = None,
    share: Literal[True],
) -> SharedStore: ...


@overload
def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    config: Config | None = None,
    share: bool,
) -> TimerStore | SharedStore: ...


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    config: Config | None = None,
    clock: ManualClock | None = None,
    share: bool = False,
) -> TimerStore | SharedStore:
    """Open a timer store; with `create`, make it if there is none.

    It is a context manager; `close` stops the services and flushes. A store that is dropped without
    `close` is not closed: its threads go on, and it holds its lock, until the process ends. One
    process at a time can have a store open. `read_only`: no file is changed and no lock is taken,
    so you can look at a store that is in use, or at a copy, such as a backup, by its folder or its
    address; calls that would change it raise ReadOnlyError. `share`: several processes of one user
    have it open; one owns it, the others are its clients, and when it ends, another one takes over;
    see `SharedStore`. `clock`: time stands still until you move it, for tests; a store with real
    timers refuses it, see `ManualClock`. The directory may be a RocketMQ broker's.

    Raises NotAStoreError, StoreLockedError, CorruptStoreError, InvalidArgumentError.

    >>> with timerstore.open("timers/") as store:
    ...     id = store.put(b"hello")
    """
    from timerstore.errors import InvalidArgumentError
    from timerstore.timelog.files.oserrors import told_of
    from timerstore.values.kinds import check_bool

    check_bool(create, "create")
    check_bool(read_only, "read_only")
    check_bool(share, "share")
    if share:
        from timerstore.share.shared import SharedStore

        if read_only or clock is not None:
            raise InvalidArgumentError(
                "share=True goes with neither read_only nor clock. Leave those out."
            )
        return SharedStore(path, create=create, config=config)
    with told_of(path):
        if read_only:
            from timerstore.store.store import ReadOnlyStore

            return ReadOnlyStore(path, create=False, config=config, clock=clock)
        from timerstore.share.server import let_others_ask
        from timerstore.store.store import TimerStore

        return let_others_ask(TimerStore(path, create=create, config=config, clock=clock))
