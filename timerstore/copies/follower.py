"""Following a store: what is appended is shipped all the time, while others append.

The owner is not asked. Each interval a few bytes behind what was shipped say whether there is more;
only then the log is read. After an error it tries again, after waits that grow. It ends if it
learns that this store may not write there.
"""

from __future__ import annotations

import logging
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from timerstore.copies.backup import Shipper, remove_needless, send_piece, thin_out
from timerstore.copies.backup_content import check_whole, refuse_inside
from timerstore.copies.catalog import BLOCK_BYTES, Catalog, Slice, block_ranges, cover
from timerstore.copies.destination import Destination
from timerstore.copies.follow_status import CopyStatus, FollowLock, write_status
from timerstore.core.directory import is_standby
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    StoreLockedError,
    TimerStoreError,
)
from timerstore.services.world.background import BackgroundThread, Failure, Flag
from timerstore.services.world.clock import SYSTEM_CLOCK, Clock
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.reader_end import list_names
from timerstore.timelog.files.smallfile import is_there, open_at
from timerstore.timelog.reading.reader import StoreReader
from timerstore.values.config import Config

# --- many small pieces become one
#
# A block that lies in many pieces gets a piece of its own once it is full. Before that, many small
# pieces become one, so that no list of pieces grows without end. What was merged is removed by
# `backup.py`, once what replaces it is there.


_FEW: Final = 4
"""A full block in so many pieces is left as it is."""
_MANY: Final = 64
"""So many small pieces side by side become one."""
_SMALL_BYTES: Final = BLOCK_BYTES // 64
_BLOCKS_AT_ONCE: Final = 8


def merge_pieces(reader: StoreReader, catalog: Catalog) -> int:
    """Write pieces that take the place of many; return how many. O(bytes of eight blocks)."""
    chain = catalog.chain
    last = catalog.points[-1] if catalog.points else None
    if chain is None or last is None or last.chain != chain.number:
        return 0
    start = max(reader.commitlog.start, chain.base, catalog.points[0].log_start)
    try:
        parts = cover(catalog.parts(catalog.run_of(last)), start, last.log_end)
    except CorruptStoreError:
        return 0
    count, size = 0, catalog.segment_bytes
    for block, group in groupby(parts, key=lambda part: _block_of(part, size)):
        span = _to_merge([*group], block)
        if span is None:
            continue
        view = reader.commitlog.view(span[0])[: span[1] - span[0]]
        catalog.pieces.append(send_piece(catalog.dest, chain, *span, view))
        count += 1
        if count == _BLOCKS_AT_ONCE:
            break
    return count


def _block_of(part: Slice, segment_bytes: int) -> tuple[int, int]:
    base = part.start - part.start % segment_bytes
    start = part.start - (part.start - base) % BLOCK_BYTES
    (found,) = block_ranges(start, min(start + BLOCK_BYTES, base + segment_bytes), segment_bytes)
    return found


def _to_merge(parts: list[Slice], block: tuple[int, int]) -> tuple[int, int] | None:
    """Return the range of a block that shall have one piece, None if it is well as it is."""
    if parts[-1].end == block[1] and len(parts) > _FEW:
        return parts[0].start, block[1]
    run = list[Slice]()
    for part in parts:
        run = [*run, part] if part.end - part.start < _SMALL_BYTES else []
        if len(run) >= _MANY:
            return run[0].start, run[-1].end
    return None


# --- adding points all the time


log = logging.getLogger("timerstore")

KEEP_MS: Final = 48 * 3_600_000
"""How long points are kept if nobody says otherwise."""
WAIT_S_MAX: Final = 60.0
"""Between two tries while something fails."""
_CARE_S: Final = 60.0
"""How often points are thinned, pieces merged, and small files looked at if only they change."""
_BEAT_S: Final = 10.0
_PATIENCE_S_MAX: Final = 1.0
"""So long the owner's next checkpoint is waited for; most make one every half second."""
_REFUSED: Final = (InvalidArgumentError, StoreLockedError, NotAStoreError)
"""What does not go away by waiting."""


class Follower:
    """Ships one store into one destination, for as long as it is run."""

    def __init__(
        self,
        path: Path,
        find: Callable[[], Destination],
        *,
        every_s: float = 1.0,
        keep_ms: int | None = KEEP_MS,
        config: Config | None = None,
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
    ) -> None:
        """Take the right to write there. `find` returns the destination, anew after each failure.
        `disk`: of a store that is open here; it leads to the store's files.

        Raises StoreLockedError if somebody follows there already, InvalidArgumentError if the
        destination cannot be one, NotAStoreError.
        """
        config = Config() if config is None else config
        self._disk = disk = Disk() if disk is None else disk
        if is_standby(path, disk.at) or not is_there(path / "commitlog", disk.at, stat.S_ISDIR):
            raise NotAStoreError(f"{path} is no store. Pass the folder of a store.")
        self.path, self.every_s, self.keep_ms, self._find = path, every_s, keep_ms, find
        self._levels = np.array(config.delay_levels_ms(), np.int64)
        self.dest, self._clock = find(), clock
        if self.dest.folder is not None:
            refuse_inside(path, self.dest.folder)
        self._lock = FollowLock(path, disk.at, self.dest)
        self._patience_s = min(every_s, _PATIENCE_S_MAX)
        self._shipper: Shipper | None = None
        self._failed_count, self._can_remove = 0, True
        self._looked_end = self._cared_end = -1
        self._cared_s = self._beat_s = time.monotonic()
        self._sent_before = self._requests_before = 0
        self.status = CopyStatus(
            dest=self.dest.shown,
            every_ms=round(1_000 * every_s),
            alive_ms=self._clock.now_ms,
            shipped_ms=0,
            shipped_end=0,
            sent_bytes=0,
            request_count=0,
            failing_since_ms=None,
            error=None,
            next_try_ms=None,
            ended=False,
        )

    def run(self, stop: Flag) -> None:
        """Follow until `stop` is set, then ship what is left; raises what refuses this store."""
        try:
            while not stop.wait(self.step()):
                pass
            self._patience_s = 0.0
            if not self._failed_count:
                self.step()
        except BaseException as e:
            if isinstance(e, Exception):
                self._tell(error=f"{type(e).__name__}: {e}", next_try_ms=None)
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Say that it has ended; let the right to write go. Twice does nothing."""
        if not self.status.ended:
            self._tell(ended=True)
            self._lock.release()

    def step(self) -> float:
        """Ship what is new, if anything; return how many seconds to wait until the next time."""
        began_s = time.monotonic()
        try:
            self._disk.check_place()
            self._look()
        except _REFUSED:
            raise
        except (TimerStoreError, OSError) as e:
            return self._wait_after(e)
        if self._failed_count:
            log.warning("%s is followed into %s again", self.path, self.dest)
            self._failed_count = 0
            self._tell(failing_since_ms=None, error=None, next_try_ms=None)
        elif time.monotonic() - self._beat_s >= _BEAT_S:
            self._tell()
        return max(0.0, self.every_s - (time.monotonic() - began_s))

    def _look(self) -> None:
        if self._shipper is None:
            if self._failed_count:
                self._sent_before += self.dest.sent_bytes
                self._requests_before += self.dest.request_count
                self.dest = self._find()  # with credentials as they are now
            with self._alone():
                self._shipper, self._looked_end = Shipper(self.dest), -1
        is_time_to_care = time.monotonic() - self._cared_s >= _CARE_S
        last = self._shipper.last
        if not (last is None or self._looked_end < 0 or is_time_to_care):
            if not self._has_more(last.log_end, self._shipper.catalog.segment_bytes):
                return
        with self._alone():
            self._ship(self._shipper, is_time_to_care)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one who writes there. Once it has shipped, others who do so are waited for.

        Raises StoreLockedError before that, StoreAccessError behind it.
        """
        with ExitStack() as held:
            try:
                held.enter_context(self.dest.alone())
            except StoreLockedError as e:
                if self.status.shipped_ms:
                    raise StoreAccessError(str(e)) from e
                raise
            yield

    def _ship(self, shipper: Shipper, is_time_to_care: bool) -> None:
        now_ms = self._clock.now_ms
        reader = StoreReader(self.path, self._levels, folder=self._disk.folder)
        check_whole(reader)
        report = shipper.ship(reader, clock=self._clock, only_new=True, patience_s=self._patience_s)
        if report is not None and report.problems:
            log.warning("%s", report)
        last = shipper.last
        assert last is not None
        self._looked_end = last.log_end
        self._tell(shipped_ms=now_ms, shipped_end=last.log_end)
        if is_time_to_care:
            self._cared_s = time.monotonic()
            shipper.check_is_ours()  # an idle store is told, too, and removes nothing
            catalog = shipper.catalog
            if self._cared_end != last.log_end:
                shipper.check_alone(reader)
                self._cared_end = last.log_end
            merge_pieces(reader, catalog)
            self._remove(catalog, now_ms)

    def _remove(self, catalog: Catalog, now_ms: int) -> None:
        """Remove what is not needed; a destination that does not let us is no reason to stop."""
        try:
            if self.keep_ms is not None:
                thin_out(catalog, now_ms, self.keep_ms)
            remove_needless(catalog)
            self._can_remove = True
        except StoreAccessError as e:
            if self._can_remove:
                log.warning("points that are not needed any more cannot be removed: %s", e)
            self._can_remove = False
            catalog.refresh()

    def _has_more(self, end: int, segment_bytes: int) -> bool:
        """Tell whether something stands in the log behind `end`; reads some bytes. O(1).

        If that segment is gone, the log goes on behind a gap.
        """
        head = self._read(end, segment_bytes)
        if not head:
            name = segment_name(end - end % segment_bytes)
            return any(each > name for each in list_names(self.path / "commitlog", self._disk.at))
        if int.from_bytes(head[fmt.BLANK_MAGIC_AT :][:4], "big") == fmt.BLANK_MAGIC:
            head = self._read(end - end % segment_bytes + segment_bytes, segment_bytes)
        return any(head)

    def _read(self, offset: int, segment_bytes: int) -> bytes:
        number, position = divmod(offset, segment_bytes)
        file = self.path / "commitlog" / segment_name(number * segment_bytes)
        try:
            fd = open_at(file, self._disk.at)
        except FileNotFoundError:
            if not is_there(self.path, self._disk.at, stat.S_ISDIR):
                raise NotAStoreError(
                    f"{self.path} does not exist any more. Stop following it, or put the folder "
                    "back."
                ) from None
            return b""
        try:
            return os.pread(fd, 8, position)
        finally:
            os.close(fd)

    def _wait_after(self, error: Exception) -> float:
        """Keep what failed; return how long to wait, longer each time, never the same."""
        self._shipper = None  # what was written may be there or not: list it anew
        self._failed_count += 1
        longest_s = min(WAIT_S_MAX, self.every_s * 2.0 ** min(self._failed_count - 1, 30))
        wait_s = longest_s * (0.5 + 0.5 * random.random())
        now_ms = self._clock.now_ms
        since_ms = self.status.failing_since_ms
        if since_ms is None:
            log.warning(
                "%s cannot be followed into %s at the moment: %s", self.path, self.dest, error
            )
        self._tell(
            failing_since_ms=now_ms if since_ms is None else since_ms,
            error=f"{type(error).__name__}: {error}",
            next_try_ms=now_ms + round(1_000 * wait_s),
        )
        return wait_s

    def _tell(self, **changes: object) -> None:
        self._beat_s = time.monotonic()
        self.status = replace(
            self.status,
            alive_ms=self._clock.now_ms,
            sent_bytes=self._sent_before + self.dest.sent_bytes,
            request_count=self._requests_before + self.dest.request_count,
            **changes,  # type: ignore[arg-type]
        )
        try:
            write_status(self.path, self._disk.at, self.dest.key, self.status)
        except OSError as e:
            log.debug("the state of this follower could not be written: %s", e)


END_S: Final = 60.0
"""So long its end is waited for."""


class Following:
    """A copy elsewhere that is kept up to date by a thread; `store.follow` returns one.

    It ends with the store, or by `close`; as a context manager, with its block. What it cannot do
    just now stands in `status` and in `store.health()`, and is tried again. What refuses the store
    for good, such as another one that has taken over the destination, ends it, stands there too,
    and is raised by `close`.
    """

    def __init__(self, follower: Follower, at_close: list[Callable[[], None]]) -> None:
        self._follower, self._stop, self._failure = follower, Flag(), Failure()
        self._at_close = at_close
        self._thread = BackgroundThread(
            "follow", lambda: follower.run(self._stop), self._failure.keep
        )
        try:
            self._thread.start()
        except BaseException:
            follower.close()
            raise
        at_close.append(self.end)

    @property
    def status(self) -> CopyStatus:
        """What it said last."""
        return self._follower.status

    def close(self) -> None:
        """Ship what is new once more, and end; twice does nothing more.

        It waits for one look at most, and no longer than a minute. Raises what had ended
        it before: InvalidArgumentError, StoreLockedError, NotAStoreError.
        """
        self._leave()
        self._failure.check()

    def _leave(self) -> None:
        self.end()
        with suppress(ValueError):  # the store is closed, or this is
            self._at_close.remove(self.end)

    def end(self) -> None:
        """End as `close` does, and raise nothing; a destination that hangs is left to itself."""
        self._stop.set()
        self._thread.join(END_S)
        if self._thread.is_alive:
            log.warning(
                "%s does not answer: its follower's thread was left running", self.status.dest
            )

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; an error of the block comes before its own."""
        if error is None:
            self.close()
        else:
            self._leave()
