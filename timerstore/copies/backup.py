"""Adding a point to a backup: what a store holds at one moment, as others write to it.

Order: pieces of the log, side by side; then a look whether this chain is still the newest; then the
point. If a run is killed, the points that were there stay whole, and pieces that no point needs yet
are the beginning of the next one.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from timerstore.copies.backup_content import (
    check_continued,
    check_same_store,
    check_whole,
    flushed_end,
    life_of,
    make_durable,
    read_new,
    refuse_inside,
    sizes_of,
    small_files_of,
)
from timerstore.copies.catalog import (
    Catalog,
    Piece,
    block_ranges,
    cover,
    pack_checked,
    point_object,
)
from timerstore.copies.chains import (
    Chain,
    Restores,
    begin_chain,
    claim_chain,
    find_divergence,
    incomplete_list,
    is_promotion,
    newest_claim,
    read_restores,
)
from timerstore.copies.destination import Destination, Place, find_destination
from timerstore.copies.follow_status import FollowLock
from timerstore.copies.report import BackupPoint, BackupReport, Progress, Summed, Told
from timerstore.core.directory import is_standby
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    StoreAccessError,
    StoreLockedError,
)
from timerstore.jit.crc import crc_of
from timerstore.services.world.clock import SYSTEM_CLOCK, Clock
from timerstore.timelog.files.folders import HeldFolder, hold_to_read
from timerstore.timelog.files.oserrors import telling
from timerstore.timelog.reading.reader import StoreReader
from timerstore.values.amounts import shown_time
from timerstore.values.config import Config
from timerstore.values.kinds import check_int, check_kind, check_path

# --- removing what is not needed


_CLOSE_MS: Final = ((10 * 60_000, 0), (2 * 3_600_000, 60_000), (1 << 62, 3_600_000))
"""Points that are so old at most are so far apart at least."""


def keep_newest(catalog: Catalog, count: int) -> int:
    """Remove all points but the newest ones; return how many went."""
    gone = catalog.points[:-count]
    for point in gone:
        catalog.remove(point)
    return len(gone)


def thin_out(catalog: Catalog, now_ms: int, keep_ms: int) -> int:
    """Remove points that are old, or close to others; return how many went.

    All of the last ten minutes stay; of the two hours before, one for each minute; of what is
    older, one for each hour, up to `keep_ms`. The last one before that stays, since what lies
    between two points can be restored to the millisecond.
    """
    runs = [catalog.run_of(point) for point in catalog.points]
    gone = needless_points([p.time_ms for p in catalog.points], runs, now_ms, keep_ms)
    for point in [catalog.points[index] for index in gone]:
        catalog.remove(point)
    return len(gone)


def needless_points(times_ms: list[int], runs: list[int], now_ms: int, keep_ms: int) -> list[int]:
    """Return the indexes of the points that may go, of times in order; behind a run is a gap.

    >>> needless_points([0, 1_000, 2_000, 3_600_000, 3_600_500], [1] * 5, 3_601_000, 3_600_000)
    [0, 2]
    """
    gone, kept_ms = list[int](), None
    for index, time_ms in enumerate(times_ms[:-1]):
        age_ms = now_ms - time_ms
        if now_ms - times_ms[index + 1] >= keep_ms:
            gone.append(index)  # the next one is old enough to begin with
            continue
        if runs[index + 1] != runs[index]:
            continue  # nothing else has the end of that log
        apart_ms = next(apart for age, apart in _CLOSE_MS if age_ms <= age)
        if kept_ms is not None and time_ms // max(apart_ms, 1) == kept_ms // max(apart_ms, 1):
            gone.append(index)
            continue
        kept_ms = time_ms
    return gone


def remove_needless(catalog: Catalog) -> int:
    """Remove pieces without which each point can still be read; return how many went.

    Behind the last point nothing is touched: somebody may be about to make a point of it.
    """
    needed, first = set[Piece](), dict[int, tuple[int, int]]()
    for point in catalog.points:
        run = catalog.run_of(point)
        start, end = first.get(run, (point.log_start, point.log_end))
        first[run] = min(start, point.log_start), max(end, point.log_end)
    for run, (start, end) in first.items():
        try:
            needed |= {part.piece for part in cover(catalog.parts(run), start, end)}
        except CorruptStoreError:
            return 0  # something is missing: what is left may help
    last = catalog.points[-1] if catalog.points else None
    gone = [
        piece
        for piece in catalog.pieces
        if last is not None and piece not in needed
        if piece.chain < last.chain or piece.end <= last.log_end
    ]
    for piece in gone:
        catalog.dest.remove(piece.name)
    if gone:
        left = set(gone)
        catalog.pieces = [piece for piece in catalog.pieces if piece not in left]
    return len(gone)


# --- adding a point


logger = logging.getLogger("timerstore")

UPLOAD_COUNT: Final = 4
"""Pieces that are sent side by side; each is a block at most, 32 MiB, in memory."""

_PASSING: Final = frozenset(("config/timercheck", "checkpoint"))
"""Small files that change without anything having happened."""


def ship_once(
    reader: StoreReader,
    dest: Destination,
    *,
    keep: int | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BackupReport:
    """Add one point, and keep the newest `keep`; return what was done. Durable on return."""
    shipper = Shipper(dest)
    report = shipper.ship(reader, progress=progress, clock=clock)
    assert report is not None
    if keep is not None:
        try:
            keep_newest(shipper.catalog, keep)
            remove_needless(shipper.catalog)
        except StoreAccessError as e:
            raise StoreAccessError(
                f"Point {report.point.number} was taken, but older points could not be removed: {e}"
            ) from e
    return replace(report, point_count=len(shipper.catalog.points))


class Shipper:
    """Writes the points of one store; what is in the destination is listed once.

    It is made, and ships, while the destination is held: see `Destination.alone`.
    """

    def __init__(self, dest: Destination) -> None:
        self.dest = dest
        self.catalog = Catalog(dest)
        chains = self.catalog.chains
        if self.catalog.chain is None:
            dest.check_is_free()
        dest.remove_unfinished()
        self._claim, self._is_open = chains.newest_claim, chains.is_open
        if self._is_open and self._claim[0] and is_promotion(dest, self._claim):
            raise self._taken_over()
        self._restores: Restores | None = None
        """How the store had been restored by the last point."""
        self._same_in = (-1, -1)
        """The life of the store whose log was compared with what the last point holds."""
        self._said: dict[str, bytes] | None = None
        """The small files of the last point, without those that change all the time."""

    @property
    def last(self) -> BackupPoint | None:
        """The last point, None if there is none."""
        points = self.catalog.points
        return points[-1] if points else None

    def ship(
        self,
        reader: StoreReader,
        *,
        progress: Progress | None = None,
        clock: Clock = SYSTEM_CLOCK,
        only_new: bool = False,
        patience_s: float = 0.0,
    ) -> BackupReport | None:
        """Add a point. O(bytes that were appended since the last one). Durable on return.

        `only_new`: add none, and return None, if nothing has changed but cursors and clocks.
        `patience_s`: how long the store's owner may take to make its log durable by itself.
        """
        began_ms = clock.now_ms
        start, chain = self._begin(reader)
        told = Summed(progress)
        end, message_count, stored_ms, problems = read_new(reader, start, told)
        time_ms = max(began_ms, min(stored_ms, clock.now_ms))  # all of it was stored by then
        make_durable(reader, start, end, patience_s)
        files = small_files_of(reader)
        said = {name: data for name, data in files.items() if name not in _PASSING}
        if only_new and end == start and self.last is not None and said == self._said:
            return None
        self._send(reader, chain, start, end, told)
        point = BackupPoint(
            number=1 + max(chain.last_point, self.last.number if self.last is not None else 0),
            time_ms=time_ms,
            chain=chain.number,
            log_start=max(reader.commitlog.start, self._first_kept(chain)),
            log_end=end,
        )
        self.check_is_ours()
        name, data = point_object(point, files, chain.seed)
        self.dest.put(name, data)
        self.catalog.add(point, name)
        self._restores = read_restores(reader.path, reader.steady.read)
        self._said = said
        return BackupReport(
            path=os.fspath(reader.path),
            dest=self.dest.shown,
            point=point,
            copied_bytes=end - start,
            message_count=message_count,
            problems=problems,
            point_count=len(self.catalog.points),
        )

    def check_is_ours(self) -> None:
        """Raise StoreLockedError if somebody else has begun to write to the destination."""
        newest = newest_claim(self.dest)
        if newest[0] < self._claim[0]:
            raise incomplete_list(self.dest)
        if newest != self._claim:
            raise self._taken_over()

    def check_alone(self, reader: StoreReader) -> None:
        """Raise InvalidArgumentError if a piece of another log came here since the last look.

        Two copies of one machine begin with the same log, so that both may begin to write. One
        request; O(bytes that others wrote).
        """
        log, known, chain = reader.commitlog, set(self.catalog.pieces), self.catalog.chain
        self.catalog.refresh()
        for piece in self.catalog.pieces:
            if piece in known or chain is None or piece.chain != chain.number:
                continue
            if piece.start >= log.start:
                is_same = piece.end <= log.files_end
                if is_same:
                    data = log.read(piece.start, piece.end - piece.start)
                    is_same = crc_of(data, chain.seed) == piece.crc
                check_continued(reader, piece.end, is_same, self.dest)

    def _taken_over(self) -> StoreLockedError:
        return StoreLockedError(
            f"Another store has taken over {self.dest}: somebody promoted a copy, or began "
            "another backup there. What is put into this store from now on is not copied. If the "
            "promoted copy is the store now, stop this one. Otherwise pass another destination."
        )

    def _begin(self, reader: StoreReader) -> tuple[int, Chain]:
        """Return from where the log is sent, and the chain that it belongs to."""
        chain, last, log = self.catalog.chain, self.last, reader.commitlog
        if chain is None:
            return log.start, self._new_chain(reader, log.start)
        check_same_store(reader, chain.store_tag, chain.segment_bytes, self.dest)
        own = read_restores(reader.path, reader.steady.read)
        if own[: len(chain.restores)] != chain.restores:
            raise self._taken_over()
        if last is not None and self._restores is None:
            files = self.catalog.read_files(last)
            self._restores = read_restores(Path(), lambda path: files.get(str(path)))
            self._said = {name: files[name] for name in files if name not in _PASSING}
        start = last.log_end if last is not None and last.chain == chain.number else chain.base
        find_divergence(reader, self._restores or [], start, self.dest)
        life = life_of(reader)
        if last is not None and self._same_in != life:
            is_same = self._holds_what_is_there(reader, last)
            check_continued(reader, last.log_end, is_same, self.dest)
            if flushed_end(reader) >= last.log_end:  # else its opening may still cut what is there
                self._same_in = life
        if start < log.start or self._is_open or own != chain.restores:
            if last is not None and start < log.start:
                logger.warning(
                    "%s removed its log from offset %d to %d before that was shipped into %s. What "
                    "waits is in the copy, but no time from %s until now can be restored.",
                    *(reader.path, start, log.start, self.dest, shown_time(last.time_ms)),
                )
            start = max(start, log.start)
            return start, self._new_chain(reader, start)
        return start, chain

    def _holds_what_is_there(self, reader: StoreReader, last: BackupPoint) -> bool:
        """Tell whether the store's log is what the last piece before a point's end says."""
        log = reader.commitlog
        known = [
            part
            for part in self.catalog.parts(self.catalog.run_of(last))
            if log.start <= part.start and part.end <= last.log_end and part.end == part.piece.end
        ]
        if not known:
            return True  # the store has removed all that could be compared
        part = max(known, key=lambda each: each.end)
        data = log.read(part.start, part.end - part.start)
        return crc_of(data, self.catalog.seed_of(part.piece)) == part.piece.crc

    def _new_chain(self, reader: StoreReader, base: int) -> Chain:
        number, name = claim_chain(self.dest, self._claim[0])
        last = self.last
        chain = Chain(
            number=number,
            name=name,
            run=number if last is None or base > last.log_end else self.catalog.run_of(last),
            store_tag=reader.sizes.store_tag,
            sizes=sizes_of(reader),
            base=base,
            last_point=0 if last is None else last.number,
            restores=read_restores(reader.path, reader.steady.read),
        )
        begin_chain(self.dest, chain)
        self._claim, self._is_open = (number, name), False
        self.catalog.begin(chain)
        return chain

    def _first_kept(self, chain: Chain) -> int:
        """Return from where on the destination has the log that a new point is in."""
        for point in self.catalog.points:
            if self.catalog.run_of(point) == chain.run:
                return point.log_start
        return chain.base

    def _send(self, reader: StoreReader, chain: Chain, start: int, end: int, told: Told) -> None:
        log = reader.commitlog
        spans = [
            (first, stop, log.view(first)[: stop - first])
            for first, stop in block_ranges(start, end, log.segment_bytes)
        ]

        def send(span: tuple[int, int, Any]) -> Piece:
            return send_piece(self.dest, chain, *span)

        pieces = self.catalog.pieces  # listed before there are new ones
        with ThreadPoolExecutor(UPLOAD_COUNT) if len(spans) > 1 else nullcontext() as pool:
            for piece in (map if pool is None else pool.map)(send, spans):
                told(piece.end - piece.start)
                pieces.append(piece)


def send_piece(dest: Destination, chain: Chain, start: int, end: int, view: Any) -> Piece:
    """Write the object of bytes [start, end) of a log, which `view` holds. O(bytes)."""
    packed, crc = pack_checked(view, chain.seed)
    piece = Piece(start, end, chain.number, crc)
    dest.put(piece.name, packed)
    return piece


# --- taking a point of a store
#
# The commit log is the truth, so a backup is the log up to the end of a message, with the small
# files of the last checkpoint before it: what a store that was killed at that moment would have on
# disk, without its indexes, which recovery makes anew. The store's owner is not asked and not
# stopped. No segment that is being read is used again, because a reader shares the lock on the
# log's folder.


_KEEP_MAX: Final = 1 << 20


@telling
def backup(
    path: str | os.PathLike[str],
    dest: Place,
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
) -> BackupReport:
    """Add a point to the backup in `dest`, making it if there is none; return what was done.

    The store may be open in this or another process, at any rate of puts, closed, or killed; it is
    not changed. Everything whose put had returned before is in it. `keep`: so many points stay, the
    newest ones. O(bytes that were appended since the last point). Durable on return.

    `dest`: a folder; an address such as s3://bucket/timers, gs://…, abfs://…, file:///folder; or a
    pyarrow.fs.FileSystem. What is new is written there as objects, which never change.

    Raises InvalidArgumentError if `dest` is something else, or another store's; StoreFullError,
    StoreLockedError, also if a process follows the store there; StoreAccessError if it cannot be
    reached; CorruptStoreError if segments are missing: then the earlier points stay.

    >>> timerstore.backup("timers/", "backup/").ok
    True
    """
    options: dict[str, Any] = {"keep": keep, "config": config, "progress": progress}
    return take_point(check_path(path), find_destination(dest), **options, store=None)


def take_point(
    path: Path,
    dest: Destination,
    *,
    keep: int | None = None,
    config: Config | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
    store: HeldFolder | None = None,
) -> BackupReport:
    """Do what `backup` says, on a clock; `store`: its folder, if it is open here."""
    if keep is not None:
        keep = check_int(keep, "keep", 1, _KEEP_MAX)
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    if dest.folder is not None:
        refuse_inside(path, dest.folder)
    store = store or hold_to_read(path)
    if is_standby(path, store.at):
        raise InvalidArgumentError(
            f"{path} is a standby, not a store. Take the backup of the store that it follows."
        )
    levels = np.array(config.delay_levels_ms(), np.int64)
    reader = StoreReader(path, levels, folder=store)
    check_whole(reader)
    follow_lock = FollowLock.beside(path, store.at, dest)
    try:
        with dest.alone():
            return ship_once(reader, dest, keep=keep, progress=progress, clock=clock)
    finally:
        if follow_lock is not None:
            follow_lock.release()
