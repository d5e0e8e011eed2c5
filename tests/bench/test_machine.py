"""What is read of the machine, with what is made of it."""

import threading
from pathlib import Path

import machine
import pytest


def test_time_is_shared_out_by_ticks() -> None:
    first = machine.ThreadTime(1_000, user_ticks=1, system_ticks=1, sleeps=3)
    last = machine.ThreadTime(9_000, user_ticks=7, system_ticks=3, sleeps=5)
    assert last - first == machine.ThreadTime(8_000, 6, 2, 2)
    assert (last - first).split_ns(100) == pytest.approx((60, 20))
    assert machine.ThreadTime(500).split_ns(5) == (100, 0)  # too short for a tick


def test_a_thread_is_found_by_its_name() -> None:
    stop = threading.Event()

    def run() -> None:
        machine.name_thread("measured")
        stop.wait()

    thread = threading.Thread(target=run)
    thread.start()
    while "measured" not in (found := machine.thread_times()):
        pass
    stop.set()
    thread.join()
    assert found["measured"].sleeps >= 0
    assert found["measured"] + machine.ThreadTime() == found["measured"]


def test_memory_and_bytes_are_counted() -> None:
    before = machine.written_bytes()
    with open("/dev/null", "wb", buffering=0) as file:
        file.write(bytes(100_000))
    assert machine.written_bytes() - before >= 100_000
    assert machine.private_bytes() > 1 << 20
    assert machine.fault_count() > 0
    machine.warm_memory(1 << 20)


def test_a_scratch_folder_goes(tmp_path: Path) -> None:
    with machine.scratch_folder(str(tmp_path)) as folder:
        (folder / "file").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_the_headline_names_the_load() -> None:
    assert "load" in machine.headline("5 pending")
    assert machine.headline("5 pending").endswith("; 5 pending.")
