"""How long a run of the pipeline takes, on Spark or plainly, with the memory of each process.

    ./run bench --pipeline [--count N] [--stores N] [--folder PATH] [--only spark|plain]

Makes one store of N timers as `validating.py` does, or so many stores of N timers each, then runs
the pipeline in processes of their own; the time includes imports, and Spark's session.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import machine
from validating import fill, measure

SPARK = """
import json, sys, time
import timerstore.spark
from timerstore import pipeline
began = time.perf_counter()
spark = timerstore.spark.session(config={"spark.driver.memory": "1g"})
ready = time.perf_counter()
found = pipeline.run(sys.argv[1], sys.argv[1] + "-tables", spark=spark, run="spark")
spark.stop()
print(json.dumps({"ok": found.ok, "verdict": found.verdict, "session_s": round(ready - began, 1),
                  "run_s": round(found.seconds, 1)}))
"""
PLAIN = """
import json, sys, time
from timerstore import pipeline
found = pipeline.run(sys.argv[1], sys.argv[1] + "-tables", run="plain")
print(json.dumps({"ok": found.ok, "verdict": found.verdict, "run_s": round(found.seconds, 1)}))
"""


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(
        prog="./run bench --pipeline", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--stores", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep stores here, and use them if it is there")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("spark", "plain"))
    arguments = parser.parse_args()
    with machine.scratch_folder(None) as scratch:
        folder = arguments.folder or scratch / "stores"
        for number in range(arguments.stores):
            path = folder / f"store-{number:04d}"
            if not path.exists():
                fill(path, arguments.count)
        print(machine.describe())
        for _ in range(arguments.rounds):
            for name, code in (("spark", SPARK), ("plain", PLAIN)):
                if arguments.only in (None, name):
                    print(name, json.dumps(measure(code, folder)), flush=True)
        shutil.rmtree(f"{folder}-tables", ignore_errors=True)


if __name__ == "__main__":
    main()
