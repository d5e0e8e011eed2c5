"""Whether a processor has all that a level asks for."""

from pathlib import Path

import pytest

from timerstore.jit import packaged
from timerstore.jit.packaged import LEVEL_OF, fits, level_here

X86, ARM = LEVEL_OF["x86_64"], LEVEL_OF["aarch64"]
HASWELL = (
    "processor\t: 0\nflags\t\t: fpu mmx fxsr sse sse2 syscall nx lm pni pclmulqdq ssse3 fma cx16 "
    "sse4_1 sse4_2 movbe popcnt aes xsave avx f16c rdrand lahf_lm abm bmi1 avx2 bmi2\nbugs\t\t: x\n"
)
SKYLAKE_X = HASWELL.replace("bmi2", "bmi2 avx512f avx512dq avx512cd avx512bw avx512vl")
GRAVITON_2 = (
    "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp "
    "cpuid asimdrdm lrcpc dcpop asimddp\n"
)


def test_a_level_is_had_where_all_of_it_is() -> None:
    assert fits(X86, HASWELL) and fits(X86, SKYLAKE_X)
    for lacking in ("pclmulqdq", "abm", "lahf_lm", "avx2"):
        assert not fits(X86, HASWELL.replace(lacking, "other"))
    assert fits(ARM, GRAVITON_2) and not fits(X86, GRAVITON_2) and not fits(ARM, SKYLAKE_X)
    assert not fits(ARM, GRAVITON_2.replace("atomics ", ""))  # a Cortex-A72
    assert not fits(X86, "") and not fits(X86, "bugs: avx2")


@pytest.mark.linux
@pytest.mark.parametrize(
    ("machine", "text", "level"),
    [
        ("x86_64", HASWELL, X86),
        ("x86_64", "flags: sse", None),
        ("aarch64", GRAVITON_2, ARM),
        ("aarch64", "Features: fp asimd", None),
        ("riscv64", GRAVITON_2, None),
    ],
)
def test_it_is_that_of_the_first_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, text: str, level: object
) -> None:
    (tmp_path / "cpuinfo").write_text(text + "\n" + text * 100)
    monkeypatch.setattr(packaged, "_CPU_INFO", str(tmp_path / "cpuinfo"))
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert level_here() == level


def test_what_is_unknown_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(packaged, "_CPU_INFO", str(tmp_path / "gone"))
    assert level_here() is None


def test_levels_are_named_as_llvm_does() -> None:
    assert X86.text.startswith("+avx,+avx2,")
