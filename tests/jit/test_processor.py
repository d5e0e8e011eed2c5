"""Which level of processors a processor has."""

from pathlib import Path

import pytest

from timerstore.jit import packaged
from timerstore.jit.packaged import LEVELS_OF, best_level, fits

V4, V3 = LEVELS_OF["x86_64"]
(ARM,) = LEVELS_OF["aarch64"]
HASWELL = (
    "processor\t: 0\nflags\t\t: fpu mmx fxsr sse sse2 syscall nx lm pni pclmulqdq ssse3 fma cx16 "
    "sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2\nbugs\t\t: x\n"
)
SKYLAKE_X = HASWELL.replace("bmi2", "bmi2 avx512f avx512dq avx512cd avx512bw avx512vl")
GRAVITON_2 = (
    "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp "
    "cpuid asimdrdm lrcpc dcpop asimddp\n"
)
ICE_LAKE = SKYLAKE_X.replace("avx512vl", "avx512vl avx512_vbmi2 vpclmulqdq")


def test_a_level_is_had_where_all_of_it_is() -> None:
    assert [fits(V3, each) for each in (HASWELL, SKYLAKE_X, ICE_LAKE)] == [True, True, True]
    assert [fits(V4, each) for each in (HASWELL, SKYLAKE_X, ICE_LAKE)] == [False, False, True]
    for lacking in ("pclmulqdq", "abm", "lahf_lm", "avx2"):
        assert not fits(V3, HASWELL.replace(lacking, "other"))
    assert fits(ARM, GRAVITON_2) and not fits(V3, GRAVITON_2) and not fits(ARM, ICE_LAKE)
    assert not fits(ARM, GRAVITON_2.replace("atomics ", ""))  # a Cortex-A72
    assert not fits(V3, "") and not fits(V3, "bugs: avx2")


@pytest.mark.linux
@pytest.mark.parametrize(
    ("machine", "text", "level"),
    [
        ("x86_64", HASWELL, V3),
        ("x86_64", ICE_LAKE, V4),
        ("x86_64", "flags: sse", None),
        ("aarch64", GRAVITON_2, ARM),
        ("aarch64", "Features: fp asimd", None),
        ("riscv64", GRAVITON_2, None),
    ],
)
def test_the_best_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, text: str, level: object
) -> None:
    (tmp_path / "cpuinfo").write_text(text + "\n" + text * 100)
    monkeypatch.setattr(packaged, "_CPU_INFO", str(tmp_path / "cpuinfo"))
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert best_level() == level


def test_what_is_unknown_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(packaged, "_CPU_INFO", str(tmp_path / "gone"))
    assert best_level() is None


def test_levels_are_named_as_llvm_does() -> None:
    assert V3.text.startswith("+avx,+avx2,") and set(V3.features) < set(V4.features)
