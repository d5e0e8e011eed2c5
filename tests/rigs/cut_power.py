"""Ends all writing to a mounted ext4, then the process that writes: MOUNT_POINT PID AFTER_S.

The process is stopped just before. An fsync that is under way goes on, and the cut meets it, but
nobody can say any more that it has returned: whether it was in time is not to be known.
"""

import fcntl
import os
import signal
import struct
import sys
import time
from pathlib import Path

_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2


def states(pid: int) -> set[str]:
    """Return the states of a process's threads: R, S, D, T, …"""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def main(mount_point: str, pid: int, after_s: float) -> None:
    """From the call on nothing reaches the disk: no page, no journal."""
    fd = os.open(mount_point, os.O_RDONLY)
    time.sleep(after_s)
    os.kill(pid, signal.SIGSTOP)
    while states(pid) - {"T", "D"}:
        pass
    fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    os.close(fd)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
