"""Salvaging: a sound store out of what is left of one.

The log is copied as far as it can be read. Whole messages stay at their offsets, so ids stay what
they were; what is lost between them is covered with fillers (`timelog/writing/compose.py`). Indexes
are made anew. The cursors of the last checkpoint hold if there are any, except the floor: the
message that a lost copy was to supersede must not be lost with it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from timerstore.copies.backup_content import refuse_inside
from timerstore.copies.destination import Place, shown_place
from timerstore.copies.fetching import bring_to_life, built_beside, write_files
from timerstore.copies.report import Problem, Progress, Report, Summed, shown_problems
from timerstore.copies.restore import as_folder
from timerstore.offline.lostranges import (
    Leftovers,
    LogFound,
    copy_log,
    cover,
    find_ranges,
    look_at,
    sizes_for,
    small_files,
)
from timerstore.offline.verify import verify
from timerstore.services.engine.sizes import tag_of_key
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import write_checkpoint, write_identity
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import parse_json
from timerstore.timelog.files.oserrors import telling, told_of
from timerstore.timelog.files.reader_end import read_file
from timerstore.timelog.reading.pastdamage import sound_messages
from timerstore.timelog.reading.reader import Fault, StoreReader
from timerstore.values.config import Config
from timerstore.values.kinds import check_kind, check_path

GROUP: Final = "salvage"
"""It has read the fillers, so that they keep no segment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SalvageReport(Report):
    """What was salvaged, what was not."""

    path: str
    dest: str
    message_count: int
    """Messages that were whole."""
    pending_count: int
    lost: tuple[Problem, ...]
    """Each range of the commit log in which no message could be read."""
    lost_bytes: int
    files: tuple[Problem, ...]
    """What was wrong with files of the commit log."""
    unknown: tuple[str, ...]
    """What cannot be known any more, and what follows from that."""
    problems: tuple[Problem, ...]
    """What `verify` found in the new store: nothing, or what could not be covered."""

    @property
    def ok(self) -> bool:
        """Whether nothing of the log was lost."""
        return not (self.lost or self.problems)

    def __str__(self) -> str:
        """Return a sentence, what was lost, and what is not known."""
        verdict = "nothing was lost"
        if self.lost:
            verdict = f"{self.lost_bytes:,} bytes in {len(self.lost):,} places were lost"
        lines = [
            f"{self.dest}: {self.message_count:,} messages were whole, {self.pending_count:,} "
            f"timers are pending; {verdict}"
        ]
        lines += shown_problems("  lost: ", self.lost, len(self.lost))
        lines += shown_problems("  file: ", self.files, len(self.files))
        lines += shown_problems("  DAMAGED: ", self.problems, len(self.problems))
        return "\n".join([*lines, *(f"  {each}" for each in self.unknown)])


@telling
def salvage(
    path: Place,
    dest: str | os.PathLike[str],
    *,
    config: Config | None = None,
    clock: ManualClock | None = None,
    progress: Progress | None = None,
) -> SalvageReport:
    """Make a sound store in `dest` of what is left in `path`; return what that was.

    `path` may lack any file, hold damaged, cut, unreadable ones, or be a backup; it is not changed.
    No process may have it open. `dest` must not exist, or be empty. `config`: the sizes, precision
    and window that the store was made with, if nothing of it says them any more. Nothing fires
    before somebody opens it. O(bytes), read four times. Durable on return. A backup is laid
    down below TMPDIR first: as much of it as can be read.

    Raises NotAStoreError if nothing of a commit log is left, StoreFullError.

    >>> timerstore.salvage("timers/", "salvaged/").lost_bytes
    0
    """
    target, faults = check_path(dest), list[Fault]()
    with as_folder(path, on_fault=faults.append) as (folder, point):
        report = salvage_to(folder, target, config=config, clock=clock, progress=progress)
    if point is None:
        return report
    files = tuple(Problem(*fault) for fault in faults)
    return replace(report, path=shown_place(path), files=files + report.files)


def salvage_to(
    source: Path,
    target: Path,
    *,
    config: Config | None = None,
    clock: ManualClock | None = None,
    progress: Progress | None = None,
    disk: Disk | None = None,
) -> SalvageReport:
    """Do what `salvage` says, on a disk."""
    config = Config() if config is None else config
    check_kind(config, Config, "config")
    disk = Disk() if disk is None else disk
    refuse_inside(source, target)
    found = look_at(source)
    with told_of(target), built_beside(disk, target) as building:
        return _Salvage(source, found, building, disk, config, progress).run(clock, target)


class _Salvage:
    """One run."""

    def __init__(
        self,
        source: Path,
        found: Leftovers,
        building: Path,
        disk: Disk,
        config: Config,
        progress: Progress | None,
    ) -> None:
        self.source, self.found, self.path, self.disk = source, found, building, disk
        self.config = config
        self.unknown: list[str] = []
        self._told = Summed(progress, max(1, sum(found.files.values())))

    def run(self, clock: ManualClock | None, target: Path) -> SalvageReport:
        """Copy, cover, recover, check."""
        files = tuple(copy_log(self.disk, self.found, self.path / "commitlog", self._told))
        self._write_identity()
        reader, checkpoint = self._reader(), self.found.checkpoint
        ours = checkpoint is not None and not checkpoint.by_broker
        flushed = checkpoint.commitlog_flushed if ours and checkpoint is not None else 0
        log = find_ranges(reader, flushed)
        lost = [
            Problem("commitlog", each.start, f"{each.stop - each.start} bytes: {each.reason}")
            for each in log.ranges
        ]
        lost_bytes = sum(each.stop - each.start for each in log.ranges)
        if flushed > max(log.end, reader.commitlog.start):
            lost.append(Problem("commitlog", log.end, f"{flushed - log.end} bytes: the log's end"))
            lost_bytes += flushed - log.end
        first = None if checkpoint is None else checkpoint.lost_from(log.start)
        if first is not None:
            length = (min(log.start, flushed) if flushed > first else log.start) - first
            lost.insert(0, Problem("commitlog", first, f"{length} bytes: the log's begin"))
            lost_bytes += length
        filler_count = cover(self.disk, reader, log)
        self._write_small_files(log, filler_count)
        self._write_checkpoint(log)
        findings, _ = bring_to_life(self.path, self.disk, self.config, clock)
        if lost:
            self.unknown.append(
                "Timers whose put or reschedule was in a lost range are gone. A timer fires "
                "again if its fired message was in a lost range, and a cancelled timer fires if "
                "its cancel was. If the delivery of a delay level's message was in a lost range, "
                "that message does not come again."
            )
        report = verify(self.path, config=self.config)
        return SalvageReport(
            path=os.fspath(self.source),
            dest=os.fspath(target),
            message_count=log.message_count,
            pending_count=findings.pending_count,
            lost=tuple(lost),
            lost_bytes=lost_bytes,
            files=files,
            unknown=tuple(self.unknown),
            problems=report.problems,
        )

    def _reader(self) -> StoreReader:
        return StoreReader(self.path, np.array(self.config.delay_levels_ms(), np.int64))

    def _write_identity(self) -> None:
        """Write what the store was made with, by what says it; nothing of a broker's store."""
        identity = self.found.identity
        if identity is None:
            tag = self._find_tag()
            if tag < 0:
                return
            identity = sizes_for(self.found, self.config, tag)
            self.unknown.append(
                "No file says with which settings the store was made, so precision_ms, "
                "roll_window_slots and the sizes are those of the Config that was passed."
            )
        write_identity(self.disk, self.path, identity)

    def _find_tag(self) -> int:
        """Return the tag of the store, by its checkpoint, or a message that it put; else −1."""
        checkpoint = self.found.checkpoint
        if checkpoint is not None and (not checkpoint.by_broker or checkpoint.sequence):
            return checkpoint.store_tag
        reader = self._reader()
        for rows in sound_messages(reader, reader.commitlog.start, reader.commitlog.files_end):
            for row in rows[rows.key_bytes == fmt.KEY_DIGITS]:
                tag = tag_of_key(reader, row)
                if tag is not None:
                    return tag
        return -1

    def _write_small_files(self, log: LogFound, filler_count: int) -> None:
        files, lost = small_files(self.disk, self.source)
        self.unknown += lost
        if filler_count:
            name = "config/consumerOffset.json"
            content = parse_json(files.get(name, b"{}").decode())
            table = content.setdefault("offsetTable", {})
            entry = table.setdefault(f"{fmt.SALVAGED_TOPIC.decode()}@{GROUP}", {})
            entry[str(log.queue_id)] = filler_count
            files[name] = json.dumps(content, ensure_ascii=False).encode()
        write_files(self.disk, self.path, files | {"abort": b""})

    def _write_checkpoint(self, log: LogFound) -> None:
        """Write the cursors that still hold; the indexes are made anew from the whole log."""
        checkpoint, path = self.found.checkpoint, self.path / "config" / "timercheck"
        if checkpoint is None:
            self.unknown.append(
                "The cursors are lost. What fell due and was not fired, fires from now on. A "
                "message of a delay level counts as delivered only if the log has its copy."
            )
            return
        if checkpoint.by_broker:
            data = read_file(self.source / "config" / "timercheck")
            assert data is not None
            write_files(self.disk, path.parent, {path.name: data})
            return
        kept = replace(
            checkpoint,
            commitlog_flushed=log.end,
            scan_from=log.start,
            floor=log.start,
            timerlog_flushed=0,
            queue_index=0,
            clean=False,
            identity=self.found.identity,
        )
        write_checkpoint(self.disk, path, kept)
