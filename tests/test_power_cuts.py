"""A real file system that loses its power: what was acknowledged is there (`rigs/power_cut.py`)."""

from pathlib import Path

import pytest

from tests.loop_disk import REFUSED, maker
from tests.rigs.program import FILES, ended
from tests.tiers import SEED, Told, how_many

CUTS = how_many("POWER_CUTS", 100, 100)


@pytest.mark.prove
@pytest.mark.slow
@pytest.mark.on_disk
@pytest.mark.timeout(120 + 10 * CUTS)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_what_was_acknowledged_is_there(kind: str, tmp_path: Path, record_property: Told) -> None:
    if maker(kind) is None:
        pytest.skip(REFUSED)
    rig = ("-m", "tests.rigs.power_cut", tmp_path, CUTS, SEED, kind)
    done = ended(*rig, timeout_s=100 + 10 * CUTS, PYTHONPATH=str(FILES))
    assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-8_000:]}"
    record_property("disks", CUTS)
