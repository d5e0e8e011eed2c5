"""Compiling: when the cache notices a change, what stays when nothing is compiled."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from timerstore.timelog.kernel import INTERPRETED, inlined, inlined_view, kernel, source_stamp


def test_the_stamp_is_of_the_sources() -> None:
    fresh = source_stamp.__wrapped__  # type: ignore[attr-defined]
    code = "from timerstore.timelog.kernel import source_stamp; print(source_stamp())"
    before = fresh()
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    stamp = done.stdout.strip()
    assert len(stamp) == 64, done.stderr
    assert stamp == before or fresh() != before  # while somebody edits, it changes


def load(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel_on_trial", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not INTERPRETED:

    def test_a_changed_kernel_is_compiled_anew(tmp_path: Path) -> None:
        source = "from timerstore.timelog.kernel import kernel\n\n"
        source += "@kernel\ndef f(x):\n    return x + {}\n"
        assert load(tmp_path / "on_trial.py", source.format(1)).f(1) == 2
        assert load(tmp_path / "on_trial.py", source.format(7)).f(1) == 8


def test_interpreted_kernels_are_the_functions_themselves() -> None:
    def plain(x: int) -> int:
        return x + 1

    for decorate in (kernel, inlined, inlined_view):
        made = decorate(plain)
        assert (made is plain) == INTERPRETED
    assert kernel(plain)(np.int64(1)) == 2
