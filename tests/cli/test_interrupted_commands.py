"""A signal wherever a command is: a status that says so, no traceback; then it works."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.cli.shell import SMALL, finish, process
from tests.rigs.waiting import wait_until
from tests.tiers import how_many
from timerstore.cli.output import told_to_end

ROUNDS = how_many("SIGNAL_ROUNDS", 2, 25)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 12 * ROUNDS)]
IMPORTING = """
import importlib.abc, os, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Interrupt())
from timerstore.cli import main
main()
"""
LATE = ("pyarrow.fs", "timerstore.copies.backup", "numpy._core._multiarray_umath")


@pytest.mark.tier("prove", but=("Ctrl-C*", "SIGTERM-typer"))
@pytest.mark.parametrize("name", ["typer", "timerstore.cli.keeping", *LATE])
@pytest.mark.parametrize(
    ("number", "statuses"),
    [(signal.SIGINT, {130}), (signal.SIGTERM, {143, -signal.SIGTERM})],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_while_it_imports(tmp_path: Path, name: str, number: int, statuses: set[int]) -> None:
    code = IMPORTING.format(name=name, number=int(number))
    timerstore.open(tmp_path / "timers", config=SMALL).close()
    command = [sys.executable, "-P", "-c", code, "backup", "timers", f"file://{tmp_path}/objects"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, cwd=tmp_path, **pipes)  # type: ignore[call-overload]
    status, out, err = finish(child)
    assert status in statuses and out == "" and err in ("", "timerstore: interrupted\n"), err


def test_a_second_one_ends_what_the_first_one_waits_for() -> None:
    def work() -> None:
        with told_to_end(hurries=True) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(10)  # a long upload goes on
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is before


def copied_count(copy: str | Path, restored: Path | None = None) -> int | None:
    """Return how many timers a copy holds by now, as a store or once it is restored."""
    with suppress(timerstore.TimerStoreError):
        if restored is not None:
            shutil.rmtree(restored, ignore_errors=True)
            return timerstore.restore(copy, restored).pending_count
        with timerstore.open(copy, read_only=True) as store:
            return store.count()
    return None


COMMANDS = ("backup", "follow", "standby", "restore", "promote")


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("command", COMMANDS)
def test_wherever_it_is(tmp_path: Path, command: str, number: int) -> None:
    """Then the same command does all of its work."""
    rnd = random.Random(f"{command}{number}")
    path, place = tmp_path / "timers", f"file://{tmp_path}/objects"
    local, new = tmp_path / "local", tmp_path / "new"
    given = {
        "backup": ("backup", path, place),
        "follow": ("follow", path, place, "--every", "50ms"),
        "standby": ("standby", place, local, "--every", "50ms"),
        "restore": ("restore", place, new),
        "promote": ("promote", local),
    }[command]
    count, took_s = 0, 2.0
    for _ in range(ROUNDS):
        with timerstore.open(path, config=SMALL) as store:
            store.put_many([bytes(300)] * 2_000, delay=timedelta(hours=1))
            count = store.count()
        if command in ("standby", "restore", "promote"):
            if command == "promote":
                shutil.rmtree(tmp_path / "objects", ignore_errors=True)
                shutil.rmtree(local, ignore_errors=True)
            timerstore.backup(path, place)
            if command == "promote":
                assert finish(process("standby", place, local, "--once"))[0] == 0
        began_s = time.monotonic()
        child = process(*given)
        time.sleep(rnd.uniform(0.15, took_s))
        child.send_signal(number)
        status, _, err = finish(child)
        ended = {0, 128 + number, -number}
        assert status in ended and "Traceback" not in err and err.count("\n") <= 1, (status, err)
        if command in ("follow", "standby"):
            with timerstore.open(path, config=SMALL) as store:
                store.put(b"what only this one has copied", delay=timedelta(hours=1))
                count += 1
            if command == "standby":
                timerstore.backup(path, place)
            child = process(*given)
            copy = (place, new) if command == "follow" else (local,)
            wait_until(lambda copy=copy, count=count: copied_count(*copy) == count)
            child.send_signal(number)
            status, _, err = finish(child)
            assert (status, err) == (0, ""), err
        elif not (status == 0 and command == "promote") and not (
            command == "restore" and new.exists()  # it has its name, so it is whole
        ):
            status, _, err = finish(process(*given))
            took_s = max(1.0, min(took_s, time.monotonic() - began_s))
            assert (status, err) == (0, ""), err
        assert not list(tmp_path.glob(".*"))
        if command in ("backup", "follow"):
            shutil.rmtree(new, ignore_errors=True)
            assert timerstore.restore(place, new).pending_count == count
        held = {"standby": local, "promote": local}.get(command, new)
        with timerstore.open(held, read_only=True) as store:
            assert store.count() == count
        shutil.rmtree(new, ignore_errors=True)
