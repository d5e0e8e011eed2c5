"""A program that is killed, or loses its power, at its steps: nothing that was promised is lost."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.rigs import orders
from tests.small_store import SMALL
from tests.tiers import SEED, Told, how_many
from timerstore import InvalidArgumentError, TimerStore
from timerstore.testing import Account, Ledger, Program

pytestmark = [pytest.mark.slow, pytest.mark.on_disk]

STEPS = how_many("CRASH_STEPS", 6, 100)
"""So many of the steps of each life are tried."""


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with Program(orders.work) as program:
        yield program


@pytest.mark.promise
@pytest.mark.timeout(120 + 10 * STEPS)
@pytest.mark.parametrize("durability", ["group", "process"])
def test_nothing_is_lost_at_any_step(
    program: Program, tmp_path: Path, durability: str, record_property: Told
) -> None:
    config = orders.config_of(durability)
    whole = program.run(tmp_path / "whole", durability)
    assert not whole.crashed and whole.step_count > 40
    program.check(tmp_path / "whole", config=config)
    crashed = put = cut = 0
    for number in range(STEPS):
        step = (number * whole.step_count + SEED) // STEPS % whole.step_count
        for name, crash in (("kill", program.kill), ("power", program.cut_power)):
            once, again = tmp_path / f"{name}{step}", tmp_path / name
            for path in (once, again):  # a new store; one that has crashed before
                is_crashed = crash(path, durability, step=step).crashed
                crashed += is_crashed
                cut += is_crashed and name == "power"
                put += len(program.check(path, config=config).roots)
    assert crashed > 2 * STEPS and put > 200
    record_property("cuts", cut)
    record_property("kills", crashed - cut)


def fork_slowly() -> None:
    os.register_at_fork(after_in_child=partial(time.sleep, 0.05))


def replace_all_the_while(path: str) -> None:
    """Have one thread replace files while another one takes steps."""
    disk = TimerStore(path, config=SMALL).core.disk

    def replace() -> None:
        for number in itertools.count():
            disk.replace(Path(path, "config", f"whole{number}"), b"whole")

    threading.Thread(target=replace, daemon=True).start()
    while True:
        disk.event("sync", Path(path))
        time.sleep(0.001)


@pytest.mark.timeout(120)
def test_no_thread_goes_on_while_the_power_is_cut(tmp_path: Path) -> None:
    with Program(replace_all_the_while, prepare=fork_slowly) as program:
        for seed in range(6):
            assert program.cut_power(tmp_path / f"{seed}", step=150 + seed, seed=seed).crashed
    files = [each for each in tmp_path.glob("*/config/whole*") if not each.suffix]
    assert files and {each.read_bytes() for each in files} == {b"whole"}


def test_at_a_moment(program: Program, tmp_path: Path) -> None:
    life = program.kill(tmp_path / "s", "group", after_s=0.15)
    ledger = program.check(tmp_path / "s", config=orders.config_of("group"))
    assert life.crashed and program.accounts[str(tmp_path / "s")].put <= ledger.by_id().keys()
    with pytest.raises(InvalidArgumentError, match="either"):
        program.kill(tmp_path / "s", "group")


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, timerstore, timerstore.testing\n"
        "with timerstore.open(sys.argv[1]) as store:\n"
        "    timerstore.testing.say(store.put(b'x'))\n"
    )
    with Program(script) as program:
        (id,) = program.run(tmp_path / "s").said
        assert program.accounts[str(tmp_path / "s")].put == {id}
        assert program.cut_power(tmp_path / "s", step=3).step_count == 3
        assert id in program.check(tmp_path / "s").by_id()


def test_a_program_that_fails_and_one_that_waits(tmp_path: Path) -> None:
    with Program(orders.fail) as program, pytest.raises(RuntimeError, match="status 3"):
        program.run(tmp_path / "s")
    with Program(orders.wait, timeout_s=1) as program, pytest.raises(TimeoutError):
        program.run(tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match="function of a module"):
        Program(lambda path: None)


LINES = {
    "a put is lost": ["\tput 1 1 absent"],
    "a cancel is lost": ["\tput 1 1 a", "\tcancelling 1 2 a", "\tcancelled 1 2 a"],
    "its firing is lost": ["\tput 1 1 a", "\tgot 1 2 a"],
    "too late, and it waits": ["\tcancelling 1 1 a", "\tlate 1 1 a"],
    "nobody asked": ["\tput 1 1 a", "\tput 1 2 gone"],
}


def log(program: Program, path: Path) -> tuple[Ledger, dict[str, str]]:
    """What a life left; with names for a timer that waits, and for one that was cancelled."""
    program.run(path, "group")
    ledger = program.check(path, config=orders.config_of("group"))
    far = {root.user_key: root.key for root in ledger.roots.values() if root.pending}
    gone = {root.user_key: root.key for root in ledger.roots.values() if root.deleted}
    return ledger, {"a": far["far"], "gone": gone["gone"]}


@pytest.mark.parametrize("what", LINES)
def test_a_broken_promise_is_seen(program: Program, tmp_path: Path, what: str) -> None:
    ledger, names = log(program, tmp_path / "s")
    account = program.accounts[str(tmp_path / "s")]
    account.check(ledger)
    if what == "nobody asked":
        account.keys.clear()
    account.take(
        [" ".join(names.get(each, each) for each in line.split(" ")) for line in LINES[what]]
    )
    with pytest.raises(AssertionError):
        account.check(ledger)


def test_what_a_power_cut_may_take(program: Program, tmp_path: Path) -> None:
    """Under "process" the last acts of each thread, and no others; under "group" none."""
    ledger, names = log(program, tmp_path / "s")
    there = names["a"]
    for durability, lines, is_right in (
        ("process", [f"\tput 1 1 {there}", "\tput 1 2 absent"], True),
        ("process", ["\tput 1 1 absent", f"\tput 1 2 {there}"], False),
        ("process", ["\tput 1 1 absent", f"\tput 2 2 {there}"], True),
        ("group", [f"\tput 1 1 {there}", "\tput 1 2 absent"], False),
    ):
        account = Account()
        account.take([f"\tdurability 1 0 {durability}", *lines], power=True)
        account.keys.add(("default", "gone"))
        account.unsure.update(root.key for root in ledger.roots.values())
        found = account.lose_power(ledger) + account.faults(ledger)
        assert (found == []) is is_right, found
