"""Real power cuts: a process that works on a store loses its disk at a random moment.

    python -m tests.rigs.power_cut FOLDER [cuts] [seed] [ext4 or xfs]

Needs root, e2fsprogs or xfsprogs, a loop device; it is fastest where FOLDER lies in memory
(/dev/shm). FOLDER gets an image of a small file system, which is mounted; on it a child of
`power_worker.py` puts, cancels, consumes, with segments of 16 KiB that are cleaned, or used again,
all the time, until ioctl(FS_IOC_SHUTDOWN) ends all writing. What was not synced by then is gone, or
there in part, names included. The disk is mounted anew, the store opened, its commit log judged as
in `tests/test_kill.py`: all that was acknowledged must be there.

A rig can be blind, so it counts what it saw: logs that were cleaned, sound messages behind a log's
end, old ones behind it, renamings that were undone. Each must have occurred, in a hundred cuts.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections import Counter
from datetime import timedelta
from pathlib import Path

from tests import naive
from tests.loop_disk import DISK_BYTES, maker
from tests.models.archive import archive_of
from tests.models.ledger import read_ledger
from tests.rigs import kill_worker
from tests.rigs.power_worker import KINDS, prepare, wait_for_disk, work
from tests.test_kill import open_still
from timerstore.testing import Account, Program
from timerstore.testing.kills import load_kernels
from timerstore.testing.ledger import Ledger, check_store

CUTS_OF_A_STORE = 20
CUTS_TO_SEE = 100
LONGEST_S = 1.5
_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2


def run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


class PowerDisk:
    """A small file system that can lose its power."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.image, self.mount_point = folder / "disk.img", folder / "mnt"
        self.mount_point.mkdir(parents=True)
        with open(self.image, "wb") as file:
            file.truncate(DISK_BYTES[kind])
        run(maker(kind) or f"mkfs.{kind}", "-q", self.image)

    def mount(self) -> None:
        run("mount", "-o", "loop", self.image, self.mount_point)

    def unmount(self) -> None:
        run("umount", self.mount_point)


def states(pid: int) -> set[str]:
    """Return the states of a process's threads: R, S, D, T, …"""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


class CutProgram(Program):
    """A program that loses its disk, then its life.

    It is stopped just before. An fsync that is under way goes on, and the cut meets it, but nobody
    can say any more that it has returned: whether it was in time is not to be known.
    """

    mount_point: Path

    def end(self, pid: int) -> None:
        """From the call of ioctl on nothing reaches the disk: no page, no journal."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        os.kill(pid, signal.SIGSTOP)
        while states(pid) - {"T", "D"}:
            pass
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(fd)
        super().end(pid)


def in_a_child(judge: object, *arguments: object) -> None:
    """Call what maps the store's files in a process of its own: afterwards nothing is mapped."""
    assert callable(judge)
    pid = os.fork()
    if pid == 0:
        try:
            judge(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "see above"


def judge(path: Path, kind: str, account: Account, last: bool) -> None:
    """Open the store; ask the log for all that was acknowledged."""
    now_ms = time.time_ns() // 1_000_000
    store = open_still(path, kind, now_ms)
    for step_s in (0, 6) if last else (0,):
        store.core.clock.advance(timedelta(seconds=step_s))  # type: ignore[union-attr]
        levels_ms = kill_worker.CONFIG.delay_levels_ms()
        ledger = read_ledger(path, Ledger(levels_ms=levels_ms))
        ledger.check()
        account.check(ledger)
        check_store(store, ledger)
        assert not ledger.overdue(now_ms), "due timers did not fire at opening"
    assert not last or store.count() == 0
    store.close() if last else store.abandon()


def seen(path: Path, kind: str, reused: str | None) -> Counter[str]:
    """What the cut has left of the log: which of the things that this rig is for."""
    found: Counter[str] = Counter()
    folder = path / "commitlog"
    if not folder.is_dir():
        return found
    found["undone renamings"] += reused is not None and not (folder / reused).exists()
    files = {int(each.name): each.read_bytes() for each in folder.glob("0*")}
    found["cleaned"] += kind == "cleaned" and min(files, default=0) > 0
    segment_bytes = kill_worker.CONFIGS["cleaned"].commitlog_segment_bytes
    if not files or {*map(len, files.values())} != {segment_bytes}:
        return found
    end = naive.scan_commit_log(files, min(files)).end
    magic = struct.pack(">I", naive.MESSAGE_MAGIC)
    for start, data in files.items():
        at = data.find(magic, max(0, end - start))
        while at >= 4:
            own = int.from_bytes(data[at + 24 : at + 32], "big")
            found["sound behind the end" if own == start + at - 4 else "old behind the end"] = 1
            at = data.find(magic, at + 1)
    return found


def main(folder: Path, cuts: int, seed: int, file_system: str) -> None:
    """Cut so often; a new store each CUTS_OF_A_STORE."""
    rnd, all_seen = random.Random(seed), Counter[str]()
    wait_for_disk()
    in_a_child(load_kernels)
    disk, timers = PowerDisk(folder, file_system), 0
    program = CutProgram(work, prepare=prepare)
    program.mount_point = disk.mount_point
    path = disk.mount_point / "store"
    removed = folder / "removed"
    for done in range(cuts):
        kind = KINDS[done // CUTS_OF_A_STORE % len(KINDS)]
        if done % CUTS_OF_A_STORE == 0:
            program.accounts.clear()
            shutil.rmtree(removed, ignore_errors=True)
            removed.mkdir()
            disk.mount()
            shutil.rmtree(path, ignore_errors=True)
            archive_of(path).unlink(missing_ok=True)
            archive_of(path).symlink_to(removed.absolute())
            os.sync()
            disk.unmount()
        disk.mount()
        after_s = LONGEST_S * rnd.uniform(0.05, 1)
        said = program.kill(path, rnd.randrange(1 << 30), kind, after_s=after_s).said
        account = program.accounts[str(path)]
        (folder / "said").write_text("\n".join(said))
        disk.unmount()
        disk.mount()
        names = [line.split()[1] for line in said if line.startswith("reused")]
        all_seen += seen(path, kind, names[-1] if names else None)
        all_seen["files used again"] += len(names)
        last = done % CUTS_OF_A_STORE == CUTS_OF_A_STORE - 1 or done == cuts - 1
        if last or rnd.random() < 0.7:  # else cut twice without a look
            in_a_child(judge, path, kind, account, last)
        timers += len(account.put) if last else 0
        disk.unmount()
    program.close()
    print(f"{cuts} cuts, {timers} puts acknowledged, none lost; {dict(all_seen)}")
    for what in ("cleaned", "sound behind the end", "old behind the end", "undone renamings"):
        assert all_seen[what] or cuts < CUTS_TO_SEE, f"nothing {what}: the rig is blind"


if __name__ == "__main__":
    cuts, seed, file_system, *_ = [*sys.argv[2:], *("40", "1", "ext4")[len(sys.argv) - 2 :]]
    main(Path(sys.argv[1]), int(cuts), int(seed), file_system)
