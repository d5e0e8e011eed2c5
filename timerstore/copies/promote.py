"""Promoting a standby: it becomes the store, whose predecessor may not ship any more.

Order: a claim in the destination, from which on nobody else's points count but those that the next
list shows; the last of these is fetched; then the new chain says behind which point it begins; then
the folder becomes a store, and recovery makes its indexes. Each part is noted in `standby.json`
before the next one, so a promotion that was killed is taken up where it ended; `promoted.json` is
what is left of it while the indexes are made.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from timerstore.copies.chains import (
    RESTORED_FILE,
    Restores,
    begin_chain,
    claim_chain,
    newest_claim,
    read_chains,
    read_restores,
)
from timerstore.copies.destination import find_destination
from timerstore.copies.fetching import bring_to_life, cut_log
from timerstore.copies.report import BackupLock, Report
from timerstore.copies.standby import Standby, StandbyState, read_standby, settle, standby_faults
from timerstore.core.directory import STANDBY_FILE
from timerstore.errors import CorruptStoreError, NotAStoreError, StoreLockedError
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import write_json
from timerstore.timelog.files.names import is_small_file
from timerstore.values.config import Config

PROMOTED_FILE: Final = "promoted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteReport(Report):
    """What became the store."""

    path: str
    dest: str
    pending_count: int
    """Timers that are pending; all of them fire twice if the earlier store still runs."""
    fenced: bool
    """Whether the store before is refused in the destination from now on."""

    def __str__(self) -> str:
        fence = f"; the earlier store cannot write to {self.dest} any more" if self.fenced else ""
        return (
            f"{self.path} is the store now{fence}. {self.pending_count:,} timers are pending. If "
            "the earlier store still runs, all of them fire twice: stop it."
        )


def promote(
    path: Path,
    *,
    fenced: bool = True,
    config: Config | None = None,
    clock: ManualClock | None = None,
    disk: Disk | None = None,
) -> PromoteReport:
    """Make a store of a standby, as of the last point in its destination.

    Without `fenced` the destination is not asked: the store is as of what the folder holds, and the
    store before may go on to write there. Nothing fires before somebody opens it. O(bytes of the
    log), for its indexes. Durable on return.

    Raises NotAStoreError if the folder is no standby, or holds no point; StoreLockedError if
    another copy is being promoted, or was; CorruptStoreError if the folder is not what was fetched;
    StoreAccessError if the destination cannot be reached: then the folder is a standby as before.
    """
    config, disk = Config() if config is None else config, Disk() if disk is None else disk
    state = read_standby(path)
    if state is not None:
        if state.point is None:
            raise NotAStoreError(
                f"{path} holds no point yet. Run: timerstore standby {state.dest} {path} --once"
            )
        for fault in standby_faults(path):
            is_fetched_anew = fenced and state.restores is None and is_small_file(fault.file)
            if not is_fetched_anew:
                raise CorruptStoreError(fault.file, fault.offset, fault.reason)
        if fenced:
            _fence(path, state, disk)
        lock = BackupLock(path)
        try:
            state = read_standby(path)  # meanwhile it may have become the store, or got a point
            if state is not None:
                _become_store(path, state, disk)
        finally:
            lock.release()
    if state is None:
        state = read_standby(path, PROMOTED_FILE)
    if state is None:
        raise NotAStoreError(f"{path} is no standby. Pass a folder that `timerstore standby` made.")
    sizes = None if state.chain is None else state.chain.sizes
    findings, _ = bring_to_life(path, disk, config, clock, sizes)
    disk.remove(path / PROMOTED_FILE)
    return PromoteReport(
        path=os.fspath(path),
        dest=state.dest,
        pending_count=findings.pending_count,
        fenced=fenced,
    )


def _fence(path: Path, state: StandbyState, disk: Disk) -> None:
    """Refuse the earlier writer; fetch what was written by then; begin a chain of our own."""
    dest = find_destination(state.dest)
    standby = Standby(path, dest, state.dest, disk)
    try:
        claim = standby.state.claim
        if claim is None:
            claim = claim_chain(dest, read_chains(dest).newest_claim[0], promoted=True)
            standby.write(replace(standby.state, claim=claim))
        if newest_claim(dest) != claim:
            raise StoreLockedError(
                f"Another copy has taken over {dest} in the meantime, so {path} did not become "
                "the store. Find out which copy was promoted, and remove this folder."
            )
        if standby.state.restores is None:
            standby.step()
            standby.write(replace(standby.state, restores=_restores(path, standby.state)))
        state = standby.state
        assert state.point is not None and state.chain is not None
        assert state.restores is not None
        chain = replace(
            state.chain,
            number=claim[0],
            name=claim[1],
            run=read_chains(dest).run_of(state.point.chain),
            base=state.point.log_end,
            last_point=state.point.number,
            restores=state.restores,
        )
        begin_chain(dest, chain)
    finally:
        standby.close()


def _restores(path: Path, state: StandbyState) -> Restores:
    """Return what says that a store goes on from the point of a folder."""
    assert state.point is not None
    if state.restores is not None:
        return state.restores
    return [*read_restores(path), {"log_end": state.point.log_end, "name": uuid.uuid4().hex}]


def _become_store(path: Path, state: StandbyState, disk: Disk) -> None:
    """Make the folder a store; `standby.json` gets another name last, and with it that is one."""
    assert state.point is not None and state.chain is not None
    settle(disk, path, state)
    cut_log(disk, path / "commitlog", state.point.log_end, state.chain.segment_bytes)
    disk.sync_folder(path / "commitlog")
    write_json(disk, path / RESTORED_FILE, {"restores": _restores(path, state)})
    (path / STANDBY_FILE).rename(path / PROMOTED_FILE)
    disk.sync_folder(path)
