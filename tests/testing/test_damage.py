"""Each kind of damage does what it says, to one file."""

import random
from pathlib import Path

import pytest

from timerstore import InvalidArgumentError
from timerstore.testing import DAMAGE_KINDS, damage


def content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize("kind", DAMAGE_KINDS)
def test_it_is_done(kind: str, tmp_path: Path) -> None:
    path, older = tmp_path / "now", tmp_path / "older"
    for folder, seed in ((path, 1), (older, 2)):
        folder.mkdir()
        for name in "abc":
            (folder / name).write_bytes(random.Random(f"{seed}{name}").randbytes(20_000))
    before, other = content(path), content(older)
    file, what = damage(path, kind, random.Random(3), files="*", older=older)
    after, name = content(path), file.name
    assert what.startswith(kind)
    changed = {each for each in before if after.get(each) != before[each]}
    assert name in changed and len(changed) == 1 + kind.startswith("swapped")
    if kind == "missing":
        assert name not in after
    elif kind == "truncated":
        assert before[name].startswith(after[name])
    elif kind == "stale":
        assert after[name] == other[name]
    elif kind == "duplicated":
        assert after[name] in {before[each] for each in "abc" if each != name}
    elif kind == "swapped":
        assert sorted(after.values()) == sorted(before.values())
    else:
        assert {each: len(data) for each, data in after.items()} == dict.fromkeys("abc", 20_000)


def test_what_cannot_be_done(tmp_path: Path) -> None:
    for kind, why in (("melted", "no damage"), ("stale", "older"), ("torn", "no file")):
        with pytest.raises(InvalidArgumentError, match=why):
            damage(tmp_path, kind, random.Random(1))
