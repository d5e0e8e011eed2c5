"""What is read of the machine, with what is made of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import machine
import pytest

pytestmark = pytest.mark.long


def test_memory_is_counted() -> None:
    assert machine.private_bytes() > 1 << 20


def test_processes_are_counted_with_their_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        stop_s = time.monotonic() + 30
        while len(found := machine.with_children([parent.pid])) < 2:
            assert time.monotonic() < stop_s
        assert found[0] == parent.pid
        assert machine.usage([parent.pid]).private_bytes > machine.usage(()).private_bytes
        assert os.getpid() not in found
        parent.communicate(b"\n")


def test_a_scratch_folder_goes(tmp_path: Path) -> None:
    with machine.scratch_folder(str(tmp_path)) as folder:
        (folder / "file").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_scratch_folder_goes_with_its_process(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time; sys.path.insert(0, sys.argv[1]); import machine\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as if no parent ignored them\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with machine.scratch_folder(sys.argv[2]) as folder, machine.scratch_folder(str(folder)):\n"
        "    print(1, flush=True); time.sleep(1_000)\n"
    )
    command = [sys.executable, "-c", code, str(Path(machine.__file__).parent), str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(number)
        try:
            assert process.wait(60)
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with machine.tidy_end():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_headline_names_the_load() -> None:
    assert machine.headline().endswith(" at the beginning.")
