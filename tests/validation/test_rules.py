"""Each rule finds the fault that breaks it, where it was planted; no unrelated rule speaks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs.flipped import ANYWHERE, FLIPS
from tests.rigs.patient import Patient
from tests.rigs.planted import FAULTS, OF_LEVELS, WHEEL, Fault, make_store
from tests.sparse_copy import copy_tree
from timerstore import verify
from timerstore.audit.rule import ABOUT_BYTES
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import RULES, Validation, validate
from timerstore.validation.smallfiles import COUNTS_FILE

NAMES = {rule.name: rule for rule in RULES}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("validation") / "store"
    make_store(path)
    return path


def failed(found: Validation) -> set[str]:
    return {each.name for each in found.rules if not each.ok}


def test_every_rule_has_a_fault() -> None:
    assert list(FAULTS) == [*dict.fromkeys(FAULTS)]
    assert set(FAULTS) == set(NAMES)


def test_the_sound_store_is_sound(closed: Path) -> None:
    found = validate(closed)
    assert found.ok and not found.failures, str(found)
    assert all(each.checked for each in found.rules), str(found)


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_fault_is_found(
    rule: str, closed: Path, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    _find(rule, FAULTS[rule], closed, tmp_path, golden)


@pytest.mark.parametrize("rule", list(OF_LEVELS))
def test_fault_of_a_delay_level_is_found(
    rule: str, closed: Path, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    _find(rule, OF_LEVELS[rule], closed, tmp_path, golden)


@pytest.mark.tier("prove", only=("message 0, *", "message -1, *[!0]", "message 20, *[248]"))
@pytest.mark.tier("prove", only=("unit 0, *", "unit -1, [!p]*", "entry 0, *", "entry 30, *[!9]"))
@pytest.mark.tier("prove", only=("config/timercheck, *[05]", "checkpoint, *0"))
@pytest.mark.parametrize("name", FLIPS)
def test_flipped_byte_is_found(name: str, closed: Path, tmp_path: Path) -> None:
    """Verifying and validating find it; what a query asks, the former by the wheel's checksum."""
    rule, plant = FLIPS[name]
    path = copy_tree(closed, tmp_path / "store")
    file, offset = plant(Patient(path))
    found, report = validate(path), verify(path)
    assert rule in failed(found), str(found)
    assert not found.ok and not report.ok
    for places in (found[rule].places, report.problems):
        named = {each.offset for each in places if each.file == file}
        if places is report.problems and rule not in ABOUT_BYTES:
            assert WHEEL in {each.file for each in places}, str(report)
        else:
            assert offset in named or (offset == ANYWHERE and named), (str(found), str(report))
    if file == WHEEL:
        slots = {each.offset for each in found[rule].places if each.file == WHEEL}
        assert {at // fmt.SLOT_BYTES for at in slots} == {offset // fmt.SLOT_BYTES}, str(found)


def _find(
    rule: str, planted: Fault, closed: Path, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    path = golden("pending") if planted.golden else copy_tree(closed, tmp_path / "store")
    file, offset = planted.plant(Patient(path))
    found = validate(path)
    assert rule in failed(found), str(found)
    places = [(example.file, example.offset) for example in found[rule].places]
    assert (file, offset) in places, str(found)
    assert failed(found) - planted.related == {rule}, str(found)
    assert found.ok == (NAMES[rule].severity == "warning")
    report = verify(path)
    if rule in ABOUT_BYTES:
        told = report.problems if NAMES[rule].severity == "error" else report.warnings
        assert (file, offset) in [(each.file, each.offset) for each in told], str(report)
    else:
        # What stands in a range of bytes is right; a count can be another one by it.
        assert {each.file for each in report.problems} <= {COUNTS_FILE}, str(report)
