"""Fuzz one target with atheris: `PYTHONPATH=. .venv/bin/python -P -m tests.fuzzing TARGET`.

Kernels are interpreted, so that the fuzzer sees which lines an input reaches. What it finds anew is
kept, minimised, in the target's folder of the corpus; an input that fails is named.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
KEPT_BYTES_MAX = 4_096
"""Of one input; longer ones are tried, and not kept."""


def fuzz(name: str, options: list[str]) -> None:
    """Hand this process to libFuzzer, which ends it."""
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # before timerstore is imported
    import atheris

    with atheris.instrument_imports(include=["timerstore"]):
        from tests.fuzzing.targets import TARGETS
    again = f"{sys.executable} -P -m tests.fuzzing {name} --"  # a merge has a shell start this
    atheris.Setup([again, *options], TARGETS[name])
    atheris.Fuzz()


def run(name: str, *options: str) -> int:
    command = [sys.executable, "-P", "-m", "tests.fuzzing", name, "--", *options]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", action="store_true", help="put what is found into the corpus")
    parser.add_argument("options", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.options:
        fuzz(args.target, args.options)
    kept = CORPUS / args.target
    with tempfile.TemporaryDirectory() as folder:
        found, merged = Path(folder, "found"), Path(folder, "merged")
        for each in (kept, found, merged):
            each.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={args.seconds}", "-timeout=60", "-rss_limit_mb=4096"]
        crashes = f"-artifact_prefix={tempfile.gettempdir()}/{args.target}-"
        if run(args.target, str(found), str(kept), *limits, crashes, "-max_len=8192"):
            return 1  # libFuzzer has named the input
        if args.keep:
            both = [str(merged), str(kept), str(found)]
            if run(args.target, *both, "-set_cover_merge=1", f"-max_len={KEPT_BYTES_MAX}"):
                return 1
            shutil.rmtree(kept)
            shutil.copytree(merged, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
