"""What a notebook shows is what its code gives: runs one, compares, or writes its outputs anew.

    python docs/notebooks/outputs.py            writes the outputs of all notebooks
    python docs/notebooks/outputs.py NOTEBOOK…  of these

Text is compared letter by letter, pictures point by point, but for a few in a thousand:
another Matplotlib or font draws an edge otherwise, another number draws other bars.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS_MAX = 300
OTHER_POINTS_MAX = 0.003
OTHER_COLOUR = 0.25
"""From here on a point counts as another one; colours go from 0 to 1."""


def run(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in a kernel of its own, in its folder, and return it with its outputs."""
    notebook = nbformat.read(path, 4)
    os.environ["TZ"] = "UTC"
    client = NotebookClient(
        notebook,
        timeout=SECONDS_MAX,
        startup_timeout=SECONDS_MAX,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return notebook


def differences(stored: nbformat.NotebookNode, fresh: nbformat.NotebookNode) -> Iterator[str]:
    """Yield what the stored outputs say otherwise than fresh ones."""
    cells = zip(stored.cells, fresh.cells, strict=True)
    for number, (old, new) in enumerate(cells):
        if old.cell_type != "code":
            continue
        if old.execution_count != new.execution_count:
            yield f"cell {number}: it was not run in its order"
        if len(old.outputs) != len(new.outputs):
            yield f"cell {number}: {len(old.outputs)} outputs are stored, {len(new.outputs)} made"
            continue
        for a, b in zip(old.outputs, new.outputs, strict=True):
            yield from (f"cell {number}: {text}" for text in _differ(a, b))


def _differ(old: Any, new: Any) -> Iterator[str]:
    a, b = _data(old), _data(new)
    if a.keys() != b.keys():
        yield f"{sorted(a)} are stored, {sorted(b)} made"
        return
    for kind in a:
        if kind == "image/png":
            share = _other_points(a[kind], b[kind])
            if share > OTHER_POINTS_MAX:
                yield f"the picture is another one: {share:.1%} of its points"
        elif a[kind] != b[kind]:
            yield f"{kind} is\n{b[kind]}\nand stored is\n{a[kind]}"


def _data(output: Any) -> dict[str, str]:
    if "data" in output:
        return dict(output["data"])
    return {output["output_type"]: output.get("text", "")}


def _other_points(a: str, b: str) -> float:
    from matplotlib.image import imread

    old, new = (imread(io.BytesIO(base64.b64decode(each)))[..., :3] for each in (a, b))
    if old.shape != new.shape:
        return 1.0
    return float((np.abs(old - new).max(axis=-1) > OTHER_COLOUR).mean())


def main() -> None:
    """Write the outputs of the notebooks that were named, or of all."""
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else NOTEBOOKS:
        nbformat.write(run(path.resolve()), path)
        print(f"{path.name}: written")


if __name__ == "__main__":
    main()
