"""Compiling all kernels ahead of time, into a library for a level of processors.

`.ci/wheel.py` does that when it builds a wheel; `packaged.py` loads what is made here:

    python -m timerstore.jit.packing FOLDER
"""

from __future__ import annotations

import json
import os
import pkgutil
import platform
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core.registry import cpu_target

from timerstore.jit.kernel import LOADED_AHEAD, LOADED_LATER, Kernel
from timerstore.jit.linking import compiled
from timerstore.jit.numpylayout import NDARRAY_SYMBOL
from timerstore.jit.packaged import (
    LEVEL_OF,
    LIBRARY,
    MANIFEST,
    Level,
    digest_of,
    source_digest,
    sources,
)

_APART: Final = ("cli", "demo", "otel", "recurring", "spark")
"""Rooms that have no kernel, and import what need not be installed."""
_LINK: Final = (
    "cc",
    "-shared",
    "-nostdlib",
    "-Wl,-z,now",
    "-Wl,-z,noexecstack",
    "-Wl,--gc-sections",
)
_PROGRAM: Final = "import sys; from timerstore.jit import packing; packing.pack_here(sys.argv[1])"


def pack(folder: Path) -> None:
    """Write the library and its manifest to a folder, in another process. Takes minutes.

    Numba compiles for one processor in a process: this one's, here. Raises CalledProcessError if
    a kernel cannot be compiled or linked; that needs `cc`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    level = LEVEL_OF[platform.machine()]
    target = {"NUMBA_CPU_NAME": level.processor, "NUMBA_CPU_FEATURES": level.text}
    command = [sys.executable, "-P", "-c", _PROGRAM, str(folder)]
    subprocess.run(command, env=os.environ | target, check=True)


def pack_here(folder: str) -> None:
    """Write both, in a process that compiles for the level."""
    level = LEVEL_OF[platform.machine()]
    codegen = cpu_target.target_context.codegen()
    if codegen.magic_tuple()[1:] != (level.processor, level.text):
        raise RuntimeError(f"{codegen.magic_tuple()} is not {level}: set NUMBA_CPU_NAME, _FEATURES")
    kernels = all_kernels()
    code = Path(folder, LIBRARY)
    with tempfile.TemporaryDirectory() as objects:
        paths = [Path(objects, f"{i}.o") for i in range(len(kernels) + 1)]
        machine = _machine(level)
        paths[0].write_bytes(machine.emit_object(_variables()))
        for path, each in zip(paths[1:], kernels, strict=True):
            path.write_bytes(compiled(each, each.name, machine))
        subprocess.run([*_LINK, "-o", str(code), *map(str, paths)], check=True)
    about = {
        "numba": numba.__version__,
        "level": level.name,
        "sources": source_digest(sources()),
        "source_files": sources(),
        "sha256": digest_of(code.read_bytes()),
        "kernels": sorted(each.name for each in kernels),
    }
    Path(folder, MANIFEST).write_text(json.dumps(about, indent=1) + "\n")


def all_kernels() -> list[Kernel]:
    """Return the kernels of all modules."""
    whole = import_module(__name__.partition(".")[0])
    for module in pkgutil.walk_packages(whole.__path__, f"{whole.__name__}."):
        room = module.name.split(".")[1]
        if room not in _APART:
            import_module(module.name)
    return [*LOADED_AHEAD, *LOADED_LATER]


def _variables() -> Any:
    """Return the module of what the loader fills in."""
    module = ir.Module("variables")
    variable = ir.GlobalVariable(module, ir.IntType(8).as_pointer(), NDARRAY_SYMBOL)
    variable.initializer = ir.Constant(variable.type.pointee, None)
    return llvm.parse_assembly(str(module))


def _machine(level: Level) -> Any:
    """Return what emits code of a level that may be loaded anywhere."""
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=level.processor, features=level.text, opt=3, reloc="pic", codemodel="default"
    )


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
