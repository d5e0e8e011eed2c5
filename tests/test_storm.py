"""A storm: threads inside all calls at once, with signals, turnover of tiny segments, closes.

`STORM_SECONDS=3600 STORM_THREADS=64 SEED=7 pytest tests/test_storm.py`: that long in all,
spread over how many segments are mapped; `STORM_FILLS=50` storms on a disk that is full now and
then; `STORM_KILLS=200` with `SEED` kills that often.
"""

import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.interrupting import alarms
from tests.loop_disk import mounted
from tests.rigs import storm_kill_worker
from tests.rigs.program import FILES, ended
from tests.rigs.storm_worker import MAPS, Alarm, in_reach, is_in_reach
from tests.test_kill import attack
from tests.tiers import SEED, Told, how_many
from timerstore.testing import Program

pytestmark = pytest.mark.on_disk

SECONDS = how_many("STORM_SECONDS", 8, 600)
FILLS = how_many("STORM_FILLS", 1, 20)
KILLS = how_many("STORM_KILLS", 6, 40)
PLAY = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from tests.rigs.storm_worker import main; sys.exit(main())"
)


def play(
    folder: Path, seconds: float, options: dict[str, str], **environment: str
) -> dict[str, int]:
    """Run a storm in a process of its own; return what it did.

    Else say what it died of, and where each thread was.
    """
    options = {"--seconds": str(seconds), "--seed": str(SEED), **options}
    given = [each for pair in options.items() for each in pair if each]
    done = ended("-c", PLAY, FILES, folder, *given, timeout_s=seconds + 280, **environment)
    if done.returncode == 0:
        facts: dict[str, int] = json.loads(done.stdout)
        return facts
    end = f"it ended with status {done.returncode}"
    if done.returncode < 0:
        end = f"signal {-done.returncode}, {signal.Signals(-done.returncode).name}, ended it"
    pytest.fail(f"{end}; {folder}\n{done.stdout[-4000:]}\n{done.stderr[-60_000:]}", pytrace=False)


def test_what_ends_a_storm_is_told(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"(?s)signal 11, SIGSEGV.*Current thread"):
        play(tmp_path / "store", 0, {"--die": "11"})


@pytest.mark.tier("promise", only=("0",))
@pytest.mark.tier("prove", only=("24", "192"))
@pytest.mark.slow
@pytest.mark.timeout(SECONDS / 4 + 300)
@pytest.mark.parametrize("maps", MAPS)
def test_nothing_freezes_and_counts_are_exact(
    tmp_path: Path, maps: int, record_property: Told
) -> None:
    """However few segments are mapped: what is read goes all the time."""
    options = {"--threads": os.environ.get("STORM_THREADS", "32")}
    options |= {"--maps": str(maps)}
    play(tmp_path / "store", SECONDS / len(MAPS), options)
    record_property("threads", SECONDS / len(MAPS) / 60)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_listings_that_are_overtaken(tmp_path: Path, record_property: Told) -> None:
    """They last for seconds, while the log turns over; what some of them hold is taken away."""
    kinds = "list_slowly,list,put_many,put_long,pull,pull_beside,parked,keys,cancel_many,clean"
    options = {"--threads": "14", "--only": kinds, "--maps": "0"}
    facts = play(tmp_path / "store", SECONDS, options)
    assert facts.get("slow listings") and facts.get("scrubbed timerlog"), facts
    record_property("listings", facts["slow listings"])


@pytest.mark.slow
@pytest.mark.timeout(FILLS * 30 + 300)
def test_a_disk_that_is_full_and_free_again(tmp_path: Path) -> None:
    """All room of a tmpfs is taken and given back all the time; backups are elsewhere.

    On a busy machine it may take several storms until a call meets a full disk.
    """
    filled = refused = 0
    for seed in itertools.count(1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with mounted(folder, "tmpfs") as disk:
            options = {"--fills": "", "--threads": "28", "--seed": str(seed)}
            facts = play(disk / "store", 5, options)
        filled += facts.get("filled", 0)
        refused += sum(count for name, count in facts.items() if name.endswith(" full"))
        shutil.rmtree(folder)
        if seed >= FILLS and filled and refused:
            break


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_queues_of_four_places(tmp_path: Path) -> None:
    """Everybody waits for room all the time, and threads change at any bytecode of a kernel."""
    options = {"--threads": "8", "--ring": "4", "--switch-interval": "0.0001"}
    play(tmp_path / "store", SECONDS / 4, options, NUMBA_DISABLE_JIT="1")


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.parametrize("kind", ["reused", "cleaned"])
def test_killed_with_queues_of_four_places(tmp_path: Path, kind: str) -> None:
    """As above, with tiny segments and a SIGKILL in each round; the log's ledger judges."""
    worker, interpreted = storm_kill_worker, {"NUMBA_DISABLE_JIT": "1"}
    with Program(worker.work, prepare=worker.prepare, environment=interpreted) as program:
        attack(tmp_path / "store", program, kind, KILLS, longest_s=6)


def test_alarms_end_a_call_and_nothing_that_deals_with_that() -> None:
    """Each is raised, also behind the first, as long as the call goes on."""
    raised = 0

    def call() -> None:
        nonlocal raised
        for _ in range(2):
            try:
                signal.raise_signal(signal.SIGALRM)
            except Alarm:
                raised += 1
        signal.raise_signal(signal.SIGALRM)

    with alarms(Alarm, is_in_reach):
        with pytest.raises(Alarm):
            in_reach(call)
        signal.raise_signal(signal.SIGALRM)
    assert raised == 2
