"""Promoting a standby: it becomes the store, whose predecessor may not ship any more.

Order: a claim in the destination, from which on nobody else's points count but those that the next
list shows; the last of these is fetched; then the new chain says behind which point it begins; then
the folder becomes a store. Each part is noted in `standby.json` before the next one, so a promotion
that was killed is taken up where it ended.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timerstore.backups.building import bring_to_life, cut_log, remove_tree
from timerstore.backups.chains import (
    Chain,
    begin_chain,
    claim_chain,
    newest_claim,
    read_chains,
)
from timerstore.backups.destination import find_destination
from timerstore.backups.points import EARLIER_FOLDER, POINTS_FOLDER, BackupLock, read_list
from timerstore.backups.report import Report
from timerstore.backups.standby import STANDBY_FILE, Standby, read_plan
from timerstore.backups.timeline import RESTORED_FILE, Restores, read_restores
from timerstore.core.directory import LIST_FILE, is_backup
from timerstore.errors import NotAStoreError, StoreLockedError
from timerstore.ground.config import Config
from timerstore.services.world.clock import ManualClock
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import write_json


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
    another copy is being promoted, or was; StoreAccessError if the destination cannot be reached:
    then the folder is a standby as before.
    """
    config, disk = Config() if config is None else config, Disk() if disk is None else disk
    plan = read_plan(path)
    if not plan:
        raise NotAStoreError(f"{path} is no standby. Pass a folder that `timerstore standby` made.")
    if not is_backup(path) and not (path / RESTORED_FILE).is_file():
        raise NotAStoreError(
            f"{path} holds no point yet. Run: timerstore standby {plan['dest']} {path} --once"
        )
    if fenced and is_backup(path):
        _fence(path, plan, disk)
        plan = read_plan(path)
    if is_backup(path):
        lock = BackupLock(path)
        try:
            restores = plan.get("restores") or [*read_restores(path), _restore_at(path)]
            _become_store(path, restores, disk)
        finally:
            lock.release()
    findings, _ = bring_to_life(path, disk, config, clock)
    disk.remove(path / STANDBY_FILE)
    return PromoteReport(
        path=os.fspath(path),
        dest=plan["dest"],
        pending_count=findings.pending_count,
        fenced=fenced,
    )


def _fence(path: Path, plan: dict[str, Any], disk: Disk) -> None:
    """Refuse the earlier writer; fetch what was written by then; begin a chain of our own."""
    dest = find_destination(plan["dest"])
    standby = Standby(path, dest, plan["dest"], disk)
    try:
        if "claim" not in plan:
            claim = claim_chain(dest, read_chains(dest).newest_claim[0], promoted=True)
            plan = plan | {"claim": [*claim]}
            write_json(disk, path / STANDBY_FILE, plan)
        number, name = plan["claim"]
        if newest_claim(dest) != (number, name):
            raise StoreLockedError(
                f"Another copy has taken over {dest} in the meantime, so {path} did not become "
                "the store. Find out which copy was promoted, and remove this folder."
            )
        if "restores" not in plan:
            standby.step()
            plan = plan | {"restores": [*read_restores(path), _restore_at(path)]}
            write_json(disk, path / STANDBY_FILE, plan)
        point, listed = standby.last, standby.listed
        assert point is not None and listed is not None
        chain = Chain(
            number=number,
            name=name,
            run=read_chains(dest).run_of(point.chain),
            store_tag=listed.store_tag,
            sizes=listed.sizes,
            base=point.log_end,
            last_point=point.number,
            restores=plan["restores"],
        )
        begin_chain(dest, chain)
    finally:
        standby.close()


def _restore_at(path: Path) -> dict[str, Any]:
    """Return what says that a store goes on from the last point of a folder."""
    return {"log_end": read_list(path).points[-1].log_end, "name": uuid.uuid4().hex}


def _become_store(path: Path, restores: Restores, disk: Disk) -> None:
    """Make the folder a store; the list goes last, and with it the folder is no backup."""
    listed = read_list(path)
    cut_log(disk, path / "commitlog", listed.points[-1].log_end, listed.segment_bytes)
    disk.sync_folder(path / "commitlog")
    write_json(disk, path / RESTORED_FILE, {"restores": restores})
    for name in (POINTS_FOLDER, EARLIER_FOLDER):
        if (path / name).is_dir():
            remove_tree(disk, path / name)
    disk.remove(path / LIST_FILE)
    disk.sync_folder(path)
