"""How much memory is left under each limit."""

import resource
from pathlib import Path

import pytest

from timerstore.timelog.files.memory import available_bytes, maps_allowed


def write(folder: Path, **files: str) -> None:
    """Write small files into a folder; `__` in a name stands for a point."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def system(path: Path, groups: str) -> tuple[Path, Path]:
    """Make folders for a machine that has 8,000 KiB to spare."""
    write(path / "proc", meminfo="MemTotal: 9999 kB\nMemAvailable:    8000 kB\n")
    write(path / "proc" / "self", cgroup=groups)
    return path / "proc", path / "groups"


def test_without_a_group(tmp_path: Path) -> None:
    assert available_bytes(*system(tmp_path, "0::/\n")) == 8_000 * 1024


def test_the_smallest_limit_of_all_groups_above(tmp_path: Path) -> None:
    proc, groups = system(tmp_path, "0::/a/b\n")
    stat = "anon 7\ninactive_file 30\nactive_file 20\n"
    write(groups / "a", memory__max="1000\n", memory__current="900\n", memory__stat=stat)
    write(groups / "a" / "b", memory__max="max\n", memory__current="800\n", memory__stat=stat)
    assert available_bytes(proc, groups) == 1_000 - 900 + 50
    write(groups / "a" / "b", memory__max="810\n")
    assert available_bytes(proc, groups) == 810 - 800 + 50


def test_version_1_counts_the_groups_below(tmp_path: Path) -> None:
    proc, groups = system(tmp_path, "5:cpu:/x\n4:memory:/a\n0::/\n")
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 30\ntotal_active_file 20\n"
    folder = groups / "memory" / "a"
    limit = {"memory__limit_in_bytes": "500\n", "memory__usage_in_bytes": "400\n"}
    write(folder, memory__stat=stat, **limit)
    assert available_bytes(proc, groups) == 500 - 400 + 50


def test_in_a_container_the_name_leads_nowhere(tmp_path: Path) -> None:
    proc, groups = system(tmp_path, "0::/../../outside/of/it\n")
    write(groups, memory__max="600\n", memory__current="700\n")
    assert available_bytes(proc, groups) == 0


def test_nothing_is_told(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) == 64 << 20


@pytest.mark.parametrize(("told", "count"), [("65530\n", 8_191), ("640\n", 80), ("", 8_191)])
def test_maps_are_a_share_of_what_the_system_allows(tmp_path: Path, told: str, count: int) -> None:
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "sys" / "vm" / "max_map_count").write_text(told)
    assert maps_allowed(64 << 20, tmp_path) == count


def test_maps_are_a_share_of_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 << 30, 4 << 30))
    assert maps_allowed(64 << 20) == 16
