"""What kernels publish is in order on ARM too: read off the code that LLVM makes for it."""

import re
from typing import Any

import numpy as np
import pytest

from tests.kernels import kernel
from timerstore.jit.intrinsics import compare_exchange, fetch_add, load_acquire, store_release
from timerstore.jit.kernel import INTERPRETED, Kernel
from timerstore.jit.locks import lock_acquire, lock_release
from timerstore.jit.mapping import publish_at
from timerstore.jit.record import Bytes, Words, add_to_word, exchange_word, observe, publish, record
from timerstore.timelog.files.segmenttable import leave


@record
class Pair:
    told: int = 0
    other: int = 0


def _publish(pair: Pair, words: Words) -> int:
    words[0] = 5
    publish(pair, "told", 1)
    store_release(words, 1, 2)
    return observe(pair, "other") + load_acquire(words, 2)


def _change(pair: Pair, words: Words) -> int:
    before = exchange_word(pair, "told", 1) + add_to_word(pair, "other", 2)
    return before + fetch_add(words, 1, 3) + compare_exchange(words, 2, 4, 5)


def _lock(words: Words) -> None:
    lock_acquire(words)
    lock_release(words)


if not INTERPRETED:
    import llvmlite.binding as llvm

    from timerstore.jit import codegen, crcfold
    from timerstore.jit.guards import apart
    from timerstore.jit.linking import compiled

    class Arm:
        """In the place of a target machine: it makes assembly, for ARM."""

        def __init__(self, features: str) -> None:
            self.features, self.code = features, ""

        def emit_object(self, module: Any) -> bytes:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
            machine = target.create_target_machine(cpu="generic", features=self.features, opt=3)
            text = re.sub(r"^target .*$", "", str(module), flags=re.MULTILINE)
            ours = llvm.parse_assembly(text)
            ours.triple, ours.data_layout = machine.triple, str(machine.target_data)
            self.code = machine.emit_assembly(ours)
            return b""

    def code_of(made: Any, features: str = "") -> str:
        arm = Arm(features)
        apart(lambda: compiled(made, f"arm_{made.py_func.__name__}", arm))
        return arm.code

    def count_of(name: str, code: str) -> int:
        return len(re.findall(rf"^\s+{name}\b", code, re.MULTILINE))

    @pytest.fixture(autouse=True)
    def arm(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codegen, "IS_X86", False)

    def test_a_crc_is_the_processor_s_own() -> None:
        fold = crcfold.new_fold(crcfold.Direct)

        def _crc(buf: Bytes, at: int, count: int, register: int) -> int:
            return fold(buf, at, count, register)

        code = code_of(Kernel(_crc), "+crc")
        assert count_of("crc32x", code) and count_of("crc32b", code), code
        assert crcfold.folding_with("+neon,+crc,+lse") == crcfold.Direct
        assert crcfold.folding_with("+crc32,+pclmul,+ssse3") == crcfold.CarryLess
        assert crcfold.folding_with("+sse2") is None

    def test_what_is_published_is_a_release_and_what_is_observed_an_acquire() -> None:
        code = code_of(Kernel(_publish))
        assert count_of("stlr", code) == 2 and count_of("ldap?a?r", code) == 2, code

    def test_python_s_own_is_a_release() -> None:
        assert count_of("stlr", code_of(publish_at)) == 1
        assert count_of("stlr", code_of(leave)) >= 2  # of the word in the table, of the lock

    def test_a_lock_is_given_back_by_a_release() -> None:
        code = code_of(Kernel(_lock))
        assert count_of("stlr", code) == 1 and count_of("ldap?a?r", code) >= 1, code

    @pytest.mark.parametrize("features", ["", "+lse"])
    def test_what_changes_a_word_is_a_full_fence(features: str) -> None:
        code = code_of(Kernel(_change), features)
        assert count_of(r"dmb\s+ish", code) >= 4, code


def test_plainly() -> None:
    pair, words = Pair(), np.zeros(8, np.int64)
    run: Any = kernel(_publish)
    assert run(pair, words) == 0 and pair.told == 1 and words[:2].tolist() == [5, 2]
    publish_at(words, 3, 7)
    assert words[3] == 7
