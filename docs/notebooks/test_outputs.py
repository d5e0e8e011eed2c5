"""The notebooks still show what they showed; where one does not: `./run notebooks --write`."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from outputs import NOTEBOOKS, differences, run


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_the_code(path: Path) -> None:
    assert [*differences(nbformat.read(path, 4), run(path))] == []


def test_stale_outputs_are_found() -> None:
    (path,) = [each for each in NOTEBOOKS if each.stem.startswith("2-")]
    stored = nbformat.read(path, 4)
    assert [*differences(stored, stored)] == []
    code = [cell for cell in stored.cells if cell.cell_type == "code" and cell.outputs]
    for cell in code:
        other = copy.deepcopy(stored)
        (twin,) = [each for each in other.cells if each.id == cell.id]
        pictures = [each.data for each in twin.outputs if "image/png" in each.get("data", {})]
        if pictures:
            donor = next(
                each.data["image/png"]
                for its in code
                for each in its.outputs
                if "image/png" in each.get("data", {})
                and each.data["image/png"] != pictures[0]["image/png"]
            )
            pictures[0]["image/png"] = donor
        elif "text" in twin.outputs[0]:
            twin.outputs[0].text += "more"
        else:
            twin.outputs[0].data["text/plain"] += "more"
        assert len([*differences(stored, other)]) == 1
    del twin.outputs[:]
    assert any("outputs are stored" in each for each in differences(stored, other))
