"""Every link in the prose leads somewhere."""

from pathlib import Path

import pytest

from tests.markdown import ROOT, anchors, links, prose_files, split_fences


@pytest.mark.parametrize("path", prose_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path: Path) -> None:
    prose, _ = split_fences(path.read_text())
    for line, target in links(prose):
        if "://" in target or target.startswith("mailto:"):
            continue  # somebody else's page; a test must not need the network
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        where = f"{path.relative_to(ROOT)}:{line}: {target}"
        assert file.exists(), f"{where}: no such file"
        assert file.is_relative_to(ROOT), f"{where}: lies outside the repository"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(split_fences(file.read_text())[0]), f"{where}: no such heading"
