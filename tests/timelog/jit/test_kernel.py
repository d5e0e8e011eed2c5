"""Compiling: a changed kernel is compiled anew."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np

from timerstore.timelog.jit.kernel import INTERPRETED, inlined, inlined_view, kernel


def load(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel_on_trial", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not INTERPRETED:

    def test_a_changed_kernel_is_compiled_anew(tmp_path: Path) -> None:
        source = "from timerstore.timelog.jit.kernel import kernel\n\n"
        source += "@kernel\ndef f(x):\n    return x + {}\n"
        assert load(tmp_path / "on_trial.py", source.format(1)).f(1) == 2
        # Python tells sources apart by their length, and the second they were written in.
        assert load(tmp_path / "on_trial.py", source.format(70)).f(1) == 71


def test_interpreted_kernels_are_the_functions_themselves() -> None:
    def plain(x: int) -> int:
        return x + 1

    for decorate in (kernel, inlined, inlined_view):
        made = decorate(plain)
        assert (made is plain) == INTERPRETED
    assert kernel(plain)(np.int64(1)) == 2
