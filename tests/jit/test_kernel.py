"""Compiling: a changed kernel is compiled anew."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.kernels import kernel
from tests.rigs.program import python
from timerstore.jit.kernel import INTERPRETED, Kernel, inlined, inlined_view
from timerstore.jit.record import Bytes


def load(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel_on_trial", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not INTERPRETED:

    def test_a_changed_kernel_is_compiled_anew(tmp_path: Path) -> None:
        source = "from timerstore.jit.kernel import Kernel\n\n"
        source += "@Kernel\ndef f(x: int) -> int:\n    return x + {}\n"
        assert load(tmp_path / "on_trial.py", source.format(1)).f(1) == 2
        # Python tells sources apart by their length, and the second they were written in.
        assert load(tmp_path / "on_trial.py", source.format(70)).f(1) == 71

    @Kernel
    def _length(data: Bytes) -> int:
        return len(data)

    @kernel
    def _twice(value: Any) -> Any:
        return value + value if isinstance(value, int) else 2 * value[0]

    def test_what_annotations_do_not_say_is_refused() -> None:
        assert _length(np.zeros(3, np.uint8)) == 3
        for wrong in (np.zeros(3), np.zeros((3, 2), np.uint8)[:, 0], 7, None):
            with pytest.raises(TypeError, match="_length was called with"):
                _length(wrong)
        sealed = np.zeros(3, np.uint8)
        sealed.flags.writeable = False
        with pytest.raises(TypeError, match="uint8"):
            _length(sealed)
        with pytest.raises(TypeError, match="_length was called with"):
            _length(data=np.zeros(3, np.uint8))

    def test_a_kernel_of_a_test_leaves_its_types_to_the_values() -> None:
        words = np.array([5, 6])
        for _ in range(2):
            assert [_twice(value) for value in (3, words, words.view(np.uint8))] == [6, 10, 10]

    def test_another_process_finds_it_in_the_cache(tmp_path: Path) -> None:
        program = (
            "import sys\nfrom timerstore.timelog.bytes.decode import write_ids\n"
            "from timerstore.jit.loading import COMPILED\n"
            "write_ids.load()\nprint(len(COMPILED), 'numba' in sys.modules)\n"
        )
        said = [python("-c", program, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
        assert said == ["1 True\n", "0 False\n"]


def test_interpreted_kernels_are_the_functions_themselves() -> None:
    def plain(x: int) -> int:
        return x + 1

    for decorate in (kernel, inlined, inlined_view):
        made = decorate(plain)
        assert (made is plain) == INTERPRETED
    assert kernel(plain)(np.int64(1)) == 2
