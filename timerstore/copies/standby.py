"""A standby: the last point of a backup, kept in a folder that can become the store.

    standby.json     what the folder holds, up to where; where the backup lies; a promotion so far
    commitlog/       the log up to the point's end; what stands behind that is not the point's
    config/ …        the point's small files
    point.…/         all that of one point, if its log does not go on from the one that is there

So it looks like a store without indexes, can be looked at and verified, and nothing fires in it. A
step fetches the new part of the log, then replaces `standby.json`, then the small files. A step
that is killed leaves the log of the point that `standby.json` names; small files that are older
than it are as after any kill of a store, and the next step replaces them.

A log behind a gap is fetched beside the one that is there. Once `standby.json` names its point, it
is what the folder holds, and takes the other's place: last of all by one renaming of its log.
"""

from __future__ import annotations

import logging
import os
import random
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from timerstore.copies.catalog import Catalog, read_catalog
from timerstore.copies.chains import Chain, Restores, chain_of, check_restores
from timerstore.copies.destination import Destination, find_destination
from timerstore.copies.fetching import cut_log, lay_log, remove_tree, write_files
from timerstore.copies.report import TIME_MS_MAX, BackupLock, BackupPoint
from timerstore.core.directory import STANDBY_FILE
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    MissingFileError,
    NotAStoreError,
    StoreFullError,
    TimerStoreError,
)
from timerstore.jit.crc import crc_of
from timerstore.jit.host import copy_bytes
from timerstore.services.world.background import Flag
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, sealed, understood, whole, write_json
from timerstore.timelog.files.names import (
    INT32_MAX,
    held_names,
    is_small_file,
    segment_name,
    segment_offset,
)
from timerstore.timelog.files.smallfile import by_path, open_at, read_small
from timerstore.timelog.reading.reader import Fault
from timerstore.values.kinds import check_path

log = logging.getLogger("timerstore")

WAIT_S_MAX: Final = 60.0
"""Between two tries while something fails."""
_LOG: Final = "commitlog"
_READ_BYTES: Final = 1 << 20
_ENDS_HERE: Final = "a segment ends at this offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyState:
    """What `standby.json` says."""

    dest: str
    """The address that leads to the backup."""
    chain: Chain | None = None
    """The backup's newest one when the point was fetched."""
    point: BackupPoint | None = None
    """None: none was fetched yet."""
    files: dict[str, int] = field(default_factory=dict)
    """The point's small files, with the CRC-32 of each."""
    before: dict[str, int] = field(default_factory=dict)
    """The same of the point before; while they are replaced, each file is one or the other."""
    crcs: dict[int, int] = field(default_factory=dict)
    """By number of segment, the CRC-32 of its bytes up to the point's end."""
    claim: tuple[int, str] | None = None
    """The chain that a promotion claimed."""
    restores: Restores | None = None
    """How the store was restored that a promotion makes."""

    def write(self, disk: Disk, path: Path) -> None:
        """Replace the file; durable on return."""
        crcs = {str(number): crc for number, crc in self.crcs.items()}
        write_json(disk, path / STANDBY_FILE, sealed(asdict(self) | {"crcs": crcs}))


def read_standby(path: Path, name: str = STANDBY_FILE) -> StandbyState | None:
    """Return what `standby.json` says, None if there is none. Raises CorruptStoreError."""
    content = read_json(path / name)
    if content is None:
        return None
    with understood(name):
        if not isinstance(content["dest"], str):
            raise ValueError("dest is no text")
        told: dict[str, Any] = {"dest": content["dest"]}
        if content.get("claim") is not None:
            number, claim = content["claim"]
            if not isinstance(claim, str):
                raise ValueError("the claim's name is no text")
            told["claim"] = whole(number, 1, INT32_MAX), claim
        if content.get("restores") is not None:
            told["restores"] = check_restores(content["restores"])
        if content.get("point") is not None:
            told["chain"], told["point"] = chain_of(content["chain"]), _point(content["point"])
            for each in ("files", "before"):
                known = content.get(each, content["files"])
                told[each] = {file: whole(crc) for file, crc in known.items()}
            told["crcs"] = {whole(int(each)): whole(crc) for each, crc in content["crcs"].items()}
            if not all(map(is_small_file, [*told["files"], *told["before"]])):
                raise ValueError("it names a file that no store has")
        return StandbyState(**told)


def _point(told: dict[str, Any]) -> BackupPoint:
    return BackupPoint(
        number=whole(told["number"], 1, INT32_MAX),
        time_ms=whole(told["time_ms"], 0, TIME_MS_MAX),
        chain=whole(told["chain"], 1, INT32_MAX),
        log_start=whole(told["log_start"]),
        log_end=whole(told["log_end"], told["log_start"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStep:
    """What one look at a backup brought."""

    point: BackupPoint
    copied_bytes: int
    """Of the log; 0 if there was nothing new."""


class Standby:
    """A folder that follows a destination."""

    def __init__(
        self, path: Path, dest: Destination, address: str, disk: Disk | None = None
    ) -> None:
        """Take the folder, or make it; `address` leads to the destination again.

        Raises InvalidArgumentError if it is something else, StoreLockedError.
        """
        self.path, self.dest, self.disk = check_path(path), dest, disk or Disk()
        self.disk.make_folder(path)
        names = held_names(path)
        if STANDBY_FILE not in names and names - {f"{STANDBY_FILE}.tmp"}:
            raise InvalidArgumentError(
                f"{path} holds files that belong to no standby. Pass an empty folder."
            )
        self._lock = BackupLock(path)
        try:
            known = read_standby(path)
            if known and find_destination(known.dest).shown != dest.shown:
                raise InvalidArgumentError(
                    f"{path} is a standby of {known.dest}, not of {dest}. Pass another folder."
                )
            self.state = known or StandbyState(dest=address)
            if known is None:
                self.write(self.state)
        except BaseException:
            self._lock.release()
            raise

    def run(self, stop: Flag, every_s: float) -> None:
        """Look again and again until `stop` is set; what fails is logged, and tried again."""
        failed_count = 0
        while True:
            wait_s = every_s
            try:
                self.step()
                failed_count = 0
            except (TimerStoreError, OSError) as e:
                log.warning(
                    "%s cannot be brought up to date from %s at the moment: %s",
                    self.path,
                    self.dest,
                    e,
                )
                failed_count += 1
                wait_s = max(every_s, min(WAIT_S_MAX, 2.0**failed_count * random.random()))
            if stop.wait(wait_s):
                return

    def close(self) -> None:
        """Let the folder go; twice does nothing."""
        self._lock.release()

    def write(self, state: StandbyState) -> None:
        """Keep what the folder holds from now on; durable on return."""
        state.write(self.disk, self.path)
        self.state = state

    def step(self) -> StandbyStep:
        """Fetch the last point if it is a new one. O(bytes that are new). Durable on return.

        Raises NotAStoreError if there is no backup, InvalidArgumentError if it has no point,
        CorruptStoreError, StoreAccessError, StoreFullError: the point before stays.
        """
        if self.state.restores is not None:
            raise InvalidArgumentError(
                f"{self.path} is being promoted, which was interrupted. Run: timerstore promote "
                f"{self.path}"
            )
        catalog, copied_bytes = read_catalog(self.dest), 0
        if not catalog.points:
            raise InvalidArgumentError(f"{self.dest} holds no point yet. Take a backup first.")
        point = catalog.points[-1]
        is_new = point != self.state.point
        if is_new or _small_files(self.path) != self.state.files:
            files = catalog.read_files(point)
            if is_new:
                copied_bytes = self._fetch(catalog, point, files)
            settle(self.disk, self.path, self.state)
            _write_files(self.disk, self.path, files)
            self._prune(point, catalog.segment_bytes)
        return StandbyStep(point=point, copied_bytes=copied_bytes)

    def _fetch(self, catalog: Catalog, point: BackupPoint, files: dict[str, bytes]) -> int:
        """Fetch what is new of the log, then name the point; return how many bytes were new."""
        disk, size, run, state = self.disk, catalog.segment_bytes, catalog.run_of(point), self.state
        self._check_same(catalog)
        last, start, crcs = state.point, point.log_start, dict[int, tuple[int, int]]()
        new = {name: zlib.crc32(data) for name, data in files.items()}
        settle(disk, self.path, state)
        goes_on = last is not None and catalog.has_run(last.chain, run) and last.log_end >= start
        if last is not None and goes_on and self._has_log(last, size):
            self._check_seen(catalog, last, point)
            folder, start, held = self.path / _LOG, last.log_end, _held_files(self.path, state)
            before = {name: crc for name, crc in held.items() if crc is not None}
            crcs = {n: (min(start - n * size, size), crc) for n, crc in state.crcs.items()}
            cut_log(disk, folder, start, size)  # what a step that ended midway left there
        else:
            folder, before = folder_beside(self.path, point) / _LOG, new
            write_files(disk, folder.parent, files)
        try:
            lay_log(catalog, run, start, point.log_end, folder, disk=disk, told=lambda count: None)
        except StoreFullError:  # who reads half a message of a full tmpfs reads a hole behind it
            if folder.parent == self.path:
                cut_log(disk, folder, start, size)
            else:
                remove_tree(disk, folder.parent)
            raise
        self.write(
            replace(
                state,
                chain=catalog.chain,
                point=point,
                files=new,
                before=before,
                crcs={
                    number: _crc_of(folder, number, size, stop, *crcs.get(number, (0, 0)))
                    for number, stop in _stops(point, size)
                },
            )
        )
        return point.log_end - start

    def _has_log(self, point: BackupPoint, size: int) -> bool:
        paths = [self.path / _LOG / segment_name(n * size) for n, _ in _stops(point, size)]
        return all(each.is_file() and each.stat().st_size == size for each in paths)

    def _check_same(self, catalog: Catalog) -> None:
        """Refuse a destination that holds another store by now."""
        known, chain = self.state.chain, catalog.chain
        if known is not None and chain is not None and known.store_tag != chain.store_tag:
            raise InvalidArgumentError(
                f"{self.dest} holds another store than {self.path} was made from. Pass another "
                "folder for the standby."
            )
        if known is not None and known.name not in {each.name for each in catalog.known}:
            raise self._lacking()  # it was made anew, maybe of a store that was restored

    def _check_seen(self, catalog: Catalog, last: BackupPoint, point: BackupPoint) -> None:
        """Refuse to go on behind a point that its writer added when it might not do so any more."""
        later = (chain for chain in catalog.known if chain.number > last.chain)
        is_behind = last.log_end > point.log_end or last.number > point.number
        if is_behind or any(each.last_point < last.number for each in later):
            raise self._lacking()

    def _lacking(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self.dest} lacks points that {self.path} was made from. Pass another folder for the "
            "standby."
        )

    def _prune(self, point: BackupPoint, size: int) -> None:
        for each in sorted((self.path / _LOG).iterdir()):
            offset = segment_offset(each.name)
            if offset is not None and not point.log_start - size < offset < point.log_end:
                self.disk.remove(each)


def _stops(point: BackupPoint, size: int) -> list[tuple[int, int]]:
    """Return the number of each segment of a point's log, with where the point ends in it."""
    numbers = range(point.log_start // size, -(-point.log_end // size))
    return [(number, min(point.log_end - number * size, size)) for number in numbers]


def _crc_of(folder: Path, number: int, size: int, stop: int, at: int, crc: int) -> int:
    """Return the CRC-32 of a segment up to `stop`, which is `crc` up to `at`. O(bytes between)."""
    name = segment_name(number * size)
    with os.fdopen(open_at(folder / name, by_path), "rb") as file:
        file.seek(at)
        while at < stop:
            data = file.read(min(_READ_BYTES, stop - at))
            if not data:
                raise CorruptStoreError(_LOG, number * size + at, _ENDS_HERE)
            at, crc = at + len(data), crc_of(data, crc)
    return crc


def _held_files(folder: Path, state: StandbyState) -> dict[str, int | None]:
    """Return the CRC-32 of each small file, if it is one of the point's or of the one before.

    None: it is missing, as one of the two has it.
    """
    found, known = dict[str, int | None](), (state.files, state.before)
    for name in sorted(state.files | state.before):
        try:
            crc = zlib.crc32(read_small(folder / name))
        except MissingFileError:
            crc = None
        except CorruptStoreError:  # it is far too long
            continue
        if crc in [each.get(name) for each in known]:
            found[name] = crc
    return found


def standby_faults(path: Path) -> list[Fault]:
    """Return what is not as `standby.json` says; nothing if there is none. O(bytes of the log)."""
    try:
        state = read_standby(path)
    except CorruptStoreError as e:
        return [Fault(e.file, e.offset, e.reason)]
    if state is None or state.point is None or state.chain is None:
        return []
    folder = held_folder(path, state) / _LOG
    found, size = list[Fault](), state.chain.segment_bytes
    for number, stop in _stops(state.point, size):
        try:
            if _crc_of(folder, number, size, stop, 0, 0) != state.crcs.get(number):
                reason = "the segment's checksum is not what was fetched"
                found.append(Fault(_LOG, number * size, reason))
        except CorruptStoreError as e:
            found.append(Fault(e.file, e.offset, e.reason))
        except FileNotFoundError:
            found.append(Fault(_LOG, number * size, "a segment is missing"))
    sound = _held_files(folder.parent, state)
    for name in sorted((state.files | state.before).keys() - sound.keys()):
        found.append(Fault(name, 0, "the file is not the one that was fetched"))
    if found and read_standby(path) != state:
        return standby_faults(path)  # a step has brought another point meanwhile
    return found


def folder_beside(path: Path, point: BackupPoint) -> Path:
    """Return where a point lies beside; two that have a number are at two places."""
    return path / ".".join(("point", *map(str, asdict(point).values())))


def held_folder(path: Path, state: StandbyState | None) -> Path:
    """Return where the point that a standby holds lies: in its folder, or beside what was there."""
    if state is None or state.point is None:
        return path
    aside = folder_beside(path, state.point)
    return aside if (aside / _LOG).is_dir() else path


def settle(disk: Disk, path: Path, state: StandbyState) -> None:
    """Have what lies beside take the place of what was there; remove what is left of others."""
    aside, log_folder, before = held_folder(path, state), path / _LOG, path / "point.before"
    if aside != path:
        if log_folder.is_dir():
            disk.make_folder(before)
            log_folder.rename(before / _LOG)
        _write_files(disk, path, {name: read_small(aside / name) for name in state.files})
        (aside / _LOG).rename(log_folder)
        disk.sync_folder(path)
    for folder in sorted(path.glob("point.*")):
        remove_tree(disk, folder)


def copy_standby(path: Path, target: Path, disk: Disk) -> Chain:
    """Copy what a standby holds into a new folder; return what says how its store was made.

    A step may end meanwhile: then it is copied anew. O(bytes). Raises NotAStoreError if it holds
    no point, CorruptStoreError, StoreFullError.
    """
    state = read_standby(path)
    if state is None or state.point is None or state.chain is None:
        raise NotAStoreError(f"{path} is a standby that holds no point yet.")
    size, source = state.chain.segment_bytes, held_folder(path, state)
    try:
        disk.make_folder(target / _LOG)
        for number, stop in _stops(state.point, size):
            name = segment_name(number * size)
            _copy(source / _LOG / name, target / _LOG / name, stop, size, disk)
        write_files(disk, target, {name: read_small(source / name) for name in state.files})
    except (FileNotFoundError, MissingFileError, CorruptStoreError):
        if read_standby(path) == state:
            raise
    if read_standby(path) == state:
        return state.chain
    remove_tree(disk, target)
    return copy_standby(path, target, disk)


def _copy(source: Path, target: Path, stop: int, size: int, disk: Disk) -> None:
    """Copy the first `stop` bytes of a segment; zeros follow."""
    fd, copy = open_at(source, by_path), disk.open_file(target, create=True)
    try:
        os.ftruncate(copy, size)
        at = 0
        while at < stop:
            count = copy_bytes(copy, fd, at, stop - at)
            if count == 0:
                raise CorruptStoreError(_LOG, int(source.name) + at, _ENDS_HERE)
            at += count
    except OSError as e:
        raise disk.full(e, target) from e
    finally:
        os.close(fd)
        os.close(copy)


def _small_files(path: Path) -> dict[str, int]:
    """Return the small files that a folder holds, with the CRC-32 of each."""
    found = [path / name for name in ("abort", "checkpoint", "timerstore.json")]
    found += sorted((path / "config").glob("*"))
    return {
        str(each.relative_to(path)): zlib.crc32(read_small(each)) for each in found if each.exists()
    }


def _write_files(disk: Disk, path: Path, files: dict[str, bytes]) -> None:
    """Have a folder hold these small files and no others; the cursors come last."""
    held = _small_files(path)
    for name in sorted(held.keys() - files.keys()):
        disk.remove(path / name)
    for name in sorted(files, key=lambda each: each == "config/timercheck"):
        if held.get(name) != zlib.crc32(files[name]):
            disk.make_folder((path / name).parent)
            disk.replace(path / name, files[name])
