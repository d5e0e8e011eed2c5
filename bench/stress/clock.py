"""The clock as a process sees it that preloads a small library, which moves it by a file."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

OFFSET = "STRESS_CLOCK"
"""The variable that names the file, which holds int64 nanoseconds."""
MISSING = "no C compiler (cc): the clock of a process cannot be moved"

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static volatile int64_t *offset_ns;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("STRESS_CLOCK");
  int fd = path ? open(path, O_RDONLY) : -1;
  real = dlsym(RTLD_NEXT, "clock_gettime");
  if (fd >= 0) {
    void *at = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) offset_ns = at;
  }
}
int clock_gettime(clockid_t clock, struct timespec *ts) {
  int rc = real(clock, ts);
  if (rc == 0 && clock == CLOCK_REALTIME && offset_ns) {
    int64_t ns = ts->tv_sec * 1000000000LL + ts->tv_nsec + *offset_ns;
    ts->tv_sec = ns / 1000000000LL;
    ts->tv_nsec = ns % 1000000000LL;
  }
  return rc;
}
"""


def compiler() -> str | None:
    """Return the C compiler, without which no clock can be moved."""
    return shutil.which("cc")


class MovedClock:
    """A clock that its owner moves while another process runs."""

    def __init__(self, folder: Path) -> None:
        """Build the library below a folder; the clock is not moved yet."""
        found = compiler()
        if found is None:
            raise RuntimeError(MISSING)
        self._library, self._path = folder / "clock.so", folder / "clock"
        source = folder / "clock.c"
        source.write_text(_SOURCE)
        subprocess.run(
            [found, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"],
            check=True,
        )
        self._path.write_bytes(bytes(8))
        with open(self._path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    @property
    def environment(self) -> dict[str, str]:
        """What the other process is started with."""
        before = os.environ.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": f"{self._library} {before}".strip(), OFFSET: str(self._path)}

    def set(self, seconds: float) -> None:
        """Let the clock be so many seconds ahead of the system's."""
        self._map[:] = struct.pack("<q", round(seconds * 1e9))
