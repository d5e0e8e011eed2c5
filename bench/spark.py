"""Spark: tables of a store beside Parquet; validation, and runs of the pipeline, without it too.

Tables: every figure is a whole query as a user writes it, planning and all, the best of some
rounds. The others run in processes of their own, over timers of 14 days, a tenth of them fired; the
time includes the imports, for Spark the session and its end too. Resident memory is the highest
VmHWM of any process of the kind, pages of mapped files included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import machine
import numpy as np
import ours
from harness import sized
from results import Row, short

DAY_MS = 86_400_000
DAYS = 14
CHUNK = 500_000
BODY_BYTES = 40


@dataclass(frozen=True)
class Sizes:
    """How many timers."""

    rounds: int = sized(2, 1)
    timers: int = sized(3_000_000, 100_000)
    """Of the store whose tables are read."""
    count: int = sized(10_000_000, 100_000)
    """Of the store that is validated, and goes through the pipeline."""
    stores: int = sized(200, 3)
    """Of `each` timers, which go through the pipeline together."""
    each: int = sized(10_000, 1_000)


Ground = harness.Ground[Sizes]


# --- tables


def make_store(path: Path, count: int) -> int:
    """Make a store of timers over 14 days; return when they begin."""
    random, start_ms = np.random.default_rng(1), int(time.time() * 1_000) + 3_600_000
    with ours.open_store(path, "process") as store:
        for at in range(0, count, CHUNK):
            size = min(CHUNK, count - at)
            bodies = random.integers(97, 123, (size, BODY_BYTES), dtype=np.uint8)
            due_ms = start_ms + random.integers(0, DAYS * DAY_MS, size)
            store.put_many(bodies, topic=f"topic-{at // CHUNK % 4}", at_ms=due_ms)
    return start_ms


def every(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def tables(ground: Ground) -> Iterator[Row]:
    """Measure queries over a store's tables, and over the same rows as Parquet."""
    import timerstore.spark

    with ground.path() as path:
        start_ms, count = make_store(path / "store", ground.sizes.timers), ground.sizes.timers
        spark = timerstore.spark.session()
        spark.sparkContext.setLogLevel("ERROR")

        def load(table: str, **options: str) -> Any:
            reader = spark.read.format("timerstore").option("table", table)
            return reader.options(**options).load(str(path / "store"))

        def parquet(table: str) -> Any:
            return spark.read.parquet(str(path / "parquet" / table))

        day = f"due_ms >= {start_ms + 5 * DAY_MS} and due_ms < {start_ms + 6 * DAY_MS}"
        asked: dict[str, Callable[[], object]] = {}
        for table in ("units", "messages", "timers"):
            load(table).write.mode("overwrite").parquet(str(path / "parquet" / table))
            asked |= {
                f"{table}, store, every column": lambda t=table: every(load(t)),  # type: ignore[misc]
                f"{table}, Parquet, every column": lambda t=table: every(parquet(t)),  # type: ignore[misc]
                f"{table}, store, count()": lambda t=table: load(t).count(),  # type: ignore[misc]
            }
        wheres = {
            "store, filter() pushed": lambda: load("timers", push_filters="true").where(day),
            "store, option where": lambda: load("timers", where=day, columns="due_ms"),
            "store, option where, no message is read": lambda: load(
                "timers", where=day, columns="unit_offset"
            ),
            "store, not pushed": lambda: load("timers").where(day),
            "Parquet": lambda: parquet("timers").where(day),
        }
        units, messages = "due_ms,magic", "offset,topic,stored_ms"
        asked |= {
            f"units, store, {units}": lambda: every(load("units", columns=units)),
            f"messages, store, {messages}": lambda: every(load("messages", columns=messages)),
        }
        for name, frame in wheres.items():
            asked[f"timers of one day, {name}"] = lambda of=frame: of().count()  # type: ignore[misc]
        for name, query in asked.items():
            taken_s = []
            for _ in range(
                ground.sizes.rounds + 1
            ):  # in the first one workers start, Java compiles
                begin_s = time.perf_counter()
                query()
                taken_s.append(time.perf_counter() - begin_s)
            best_s = min(taken_s[1:])
            told = f"{best_s:.2f} s, {short(count / best_s)} rows/s"
            yield Row(name, "", told, figures=taken_s)
        spark.stop()


# --- programs in processes of their own

_HEAD = """
import json, sys, time
from timerstore import pipeline, validation
began = time.perf_counter()
spark = None
if sys.argv[2] == "spark":
    import timerstore.spark
    spark = timerstore.spark.session(config={"spark.driver.memory": "1g"})
ready = time.perf_counter()
"""
_TAIL = """
done = time.perf_counter()
if spark: spark.stop()
print(json.dumps({"ok": found.ok, "session_s": ready - began, "run_s": done - ready}))
"""
VALIDATE = """
found = timerstore.spark.validate(spark, sys.argv[1]) if spark else validation.validate(sys.argv[1])
"""
PIPELINE = """
found = pipeline.run(sys.argv[1], sys.argv[1] + "-tables", spark=spark, run=sys.argv[2])
"""


def fill(path: Path, count: int) -> None:
    """Make a store of `count` timers over 14 days; the first tenth of them is due at once."""
    random = np.random.default_rng(14)
    rows = np.full((ours.BATCH_COUNT, ours.BODY_BYTES), 65, np.uint8)
    with ours.open_store(path, "process") as store:
        for at in range(0, count, len(rows)):
            part = rows[: min(len(rows), count - at)]
            delay_ms = random.integers(60_000, DAYS * DAY_MS, len(part))
            delay_ms[: len(part) // 10] = 0
            store.put_many(part, delay_ms=delay_ms)
        ours.settle(store)


class Watch(threading.Thread):
    """Watches what a process and its children take, until it ends: memory, and processor time."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.highest_mb, self.cpu_s = pid, dict[str, float](), dict[int, float]()
        self.kinds = dict[int, str]()

    def run(self) -> None:
        """Look four times a second."""
        while Path(f"/proc/{self.pid}").exists():
            for pid in machine.with_children([self.pid]):
                try:
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    of = dict(line.split(":", 1) for line in lines)
                    kind = "driver" if pid == self.pid else "worker"
                    kind = "java" if of["Name"].strip() == "java" else kind
                    mb, self.cpu_s[pid] = int(of["VmHWM"].split()[0]) / 1024, machine.cpu_s(pid)
                except (OSError, KeyError):  # it has ended
                    continue
                self.kinds[pid] = kind
                self.highest_mb[kind] = max(self.highest_mb.get(kind, 0), mb)
            time.sleep(0.25)

    def told(self) -> str:
        """Say what each kind of process took."""
        words = []
        for kind, mb in self.highest_mb.items():
            cpu_s = sum(self.cpu_s[pid] for pid, of in self.kinds.items() if of == kind)
            words.append(f"{kind} {cpu_s:.1f} s of a processor, {mb / 1_000:.2f} GB")
        return "; ".join(words)


def programs(what: str, code: str, path: Path, rounds: int) -> Iterator[Row]:
    """Run a program on stores, on Spark and plainly; tell the time of all, the memory of each."""
    for _ in range(rounds):
        for way in ("spark", "plain"):
            began_s = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _HEAD + code + _TAIL, str(path), way],
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
            total_s = time.perf_counter() - began_s
            assert child.returncode == 0, out
            found = json.loads(out.strip().splitlines()[-1])
            assert found["ok"], out
            told = f"{total_s:.1f} s, of which the session {found['session_s']:.1f} and the run "
            told += f"{found['run_s']:.1f}; {watch.told()}"
            yield Row(f"{what}, {way}", "", told, figures=found)


def validate(ground: Ground) -> Iterator[Row]:
    with ground.path() as path:
        fill(path / "store", ground.sizes.count)
        what = f"validating {short(ground.sizes.count)} timers"
        yield from programs(what, VALIDATE, path / "store", ground.sizes.rounds)


def pipeline(ground: Ground) -> Iterator[Row]:
    """Run the pipeline over one large store, then over many small ones."""
    for stores, count in ((1, ground.sizes.count), (ground.sizes.stores, ground.sizes.each)):
        with ground.path() as path:
            for number in range(stores):
                fill(path / "stores" / f"store-{number:04d}", count)
            what = f"the pipeline, {stores} stores of {short(count)} timers"
            yield from programs(what, PIPELINE, path / "stores", ground.sizes.rounds)


PARTS = {each.__name__: each for each in (tables, validate, pipeline)}

if __name__ == "__main__":
    harness.main("--spark", __doc__, Sizes, PARTS)
