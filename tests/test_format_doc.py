"""The records that docs/format.md shows are those of the golden stores, byte for byte."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.markdown import ROOT, CodeBlock, split_fences

BLOCKS = [
    block
    for block in split_fences((ROOT / "docs/format.md").read_text())[1]
    if block.info.startswith("hex ")
]
LINE = re.compile(r" *([0-9]+)  ((?:[0-9a-f]{2})+(?: (?:[0-9a-f]{2})+)*)  +\S.*")


def test_every_kind_of_record_is_shown() -> None:
    kinds = [block.info.split()[2].split("/")[0] for block in BLOCKS]
    assert kinds == ["commitlog", "consumequeue", "timerlog", "timerwheel"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.info)
def test_bytes_are_real(block: CodeBlock, golden_unpacked: Callable[[str], Path]) -> None:
    _, name, place, offset = block.info.split()
    path = golden_unpacked(name) / place
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    data = b"".join(file.read_bytes() for file in files)
    shown = b""
    for line in block.code.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        assert int(match[1]) == len(shown), line
        shown += bytes.fromhex(match[2])
    assert data[int(offset) :].startswith(shown)
