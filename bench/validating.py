"""How long validating a large store takes, on Spark or plainly, with the memory of each process.

    ./run bench --validate [--count N] [--store PATH] [--rounds N] [--only spark|plain]

Makes a store of N timers spread over 14 days, a tenth of them fired, then validates it in processes
of their own; the time includes the imports, for Spark the session and its end too. Resident memory
is the highest VmHWM of any process of the kind, pages of mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import machine
import numpy as np
import ours

DAY_MS = 86_400_000
BATCH_COUNT = 16_384
BODY_BYTES = 100
SPARK = """
import json, sys, time
import timerstore.spark
began = time.perf_counter()
spark = timerstore.spark.session(config={"spark.driver.memory": "1g"})
ready = time.perf_counter()
found = timerstore.spark.validate(spark, sys.argv[1])
done = time.perf_counter()
spark.stop()
print(json.dumps({"ok": found.ok, "counts": found.counts, "session_s": ready - began,
                  "validate_s": done - ready}))
"""
PLAIN = """
import json, sys, time
from timerstore.validation import validate
began = time.perf_counter()
found = validate(sys.argv[1])
done = time.perf_counter()
print(json.dumps({"ok": found.ok, "counts": found.counts, "validate_s": done - began}))
"""


def fill(path: Path, count: int) -> None:
    """Make a store of `count` timers over 14 days; the first tenth of them is due at once."""
    rng = np.random.default_rng(14)
    rows = np.full((BATCH_COUNT, BODY_BYTES), 65, np.uint8)
    with ours.open_store(path, "process") as store:
        for at in range(0, count, BATCH_COUNT):
            part = rows[: min(BATCH_COUNT, count - at)]
            delay_ms = rng.integers(60_000, 14 * DAY_MS, len(part))
            delay_ms[: len(part) // 10] = 0
            store.put_many(part, delay_ms=delay_ms)
        ours.settle(store)


class Watch(threading.Thread):
    """Watches what a process and its children take, until it ends: memory, and processor time."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.highest_mb: dict[str, float] = {}
        self.cpu_s: dict[tuple[str, int], float] = {}

    def run(self) -> None:
        """Look four times a second."""
        while Path(f"/proc/{self.pid}").exists():
            for pid in self._family():
                self._look(pid)
            time.sleep(0.25)

    def _family(self) -> set[int]:
        parents = {}
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    parents[int(each.name)] = int(
                        (each / "stat").read_text().split(")")[1].split()[1]
                    )
                except (OSError, IndexError):
                    continue
        family = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return family

    def _look(self, pid: int) -> None:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            kind = fields["Name"].strip()
            kind = "java" if kind == "java" else "driver" if pid == self.pid else "worker"
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            self.cpu_s[kind, pid] = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
            mb = int(fields["VmHWM"].split()[0]) / 1024
            self.highest_mb[kind] = max(self.highest_mb.get(kind, 0), mb)
        except (OSError, KeyError, ValueError):
            return


def measure(code: str, path: Path) -> dict[str, object]:
    """Run a program on the store; return what it printed, the time of all, the memory of each."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    watch = Watch(child.pid)
    watch.start()
    try:
        out, _ = child.communicate()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    total_s = time.perf_counter() - began
    cpu_s: dict[str, float] = {}
    for (kind, _), seconds in watch.cpu_s.items():
        cpu_s[kind] = round(cpu_s.get(kind, 0) + seconds, 1)
    assert child.returncode == 0, out
    found: dict[str, object] = json.loads(out.strip().splitlines()[-1])
    assert found["ok"], out
    found |= {"total_s": round(total_s, 1), "cpu_s": cpu_s}
    found |= {"rss_mb": watch.highest_mb, "load": os.getloadavg()[0]}
    return found


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(
        prog="./run bench --validate", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--store", type=Path, help="keep the store here, and use it if it is there")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("spark", "plain"))
    arguments = parser.parse_args()
    with machine.scratch_folder(None) as folder:
        path = arguments.store or folder / "store"
        if not path.exists():
            fill(path, arguments.count)
        print(machine.describe())
        for _ in range(arguments.rounds):
            for name, code in (("spark", SPARK), ("plain", PLAIN)):
                if arguments.only in (None, name):
                    print(name, json.dumps(measure(code, path)), flush=True)


if __name__ == "__main__":
    main()
