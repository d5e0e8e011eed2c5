"""The pages of the reference say what the code says."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

import timerstore
import timerstore.errors
from tests.markdown import ROOT, split_fences
from tests.page_player import is_said
from tests.rigs.program import python
from tests.rigs.warm import Warm
from timerstore.timelog.files.checkpoint import SIZES

REFERENCE = ROOT / "docs" / "reference"
OWN_PAGES = {"Config", "Tuning"} | {
    name for name in timerstore.__all__ if name.endswith("Error")
}  # config.md, errors.md
PACKAGES = {
    "timerstore": [name for name in timerstore.__all__ if name not in OWN_PAGES],
    **dict.fromkeys(
        (
            *("aio", "django", "recurring", "otel", "outbox", "page", "validation", "spark"),
            *("rocketmq", "testing"),
        )
    ),
    "dedup": ["Done"],
    "metrics": ["register"],
}


def sections(text: str) -> dict[str, str]:
    """The text below each heading of a page."""
    parts = re.split(r"(?m)^##+ `?([^`\n]+)`?\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_its_place(package: str) -> None:
    shown = re.findall(
        r"(?m)^::: ([\w.]+)$", "".join(path.read_text() for path in REFERENCE.glob("*.md"))
    )
    assert len(shown) == len(set(shown))
    name = package if package == "timerstore" else f"timerstore.{package}"
    if package == "spark":
        pytest.importorskip("pyspark", reason="needs the extra spark")
    names = PACKAGES[package] or importlib.import_module(name).__all__
    known = {each.removeprefix("timerstore.") for each in shown}
    for each in names:
        full = f"{package}.{each}".removeprefix("timerstore.")
        assert full in known, f"add ::: timerstore.{full} to a page of docs/reference"
    for each in shown:
        module, _, last = each.rpartition(".")
        assert hasattr(importlib.import_module(module), last), each


def test_config_has_every_setting() -> None:
    page = python(ROOT / "docs/hooks/made.py", REFERENCE / "config.md", timeout_s=60, popen=Warm)
    found = {name: text for name, text in sections(page).items() if "Default " in text}
    for field in dataclasses.fields(timerstore.Config):
        text = found.pop(field.name)
        assert text.strip().startswith(f"Default `{field.default!r}`"), field.name
        assert ("*Fixed.*" in text) == (field.name in SIZES), field.name
        assert re.search(r"(?m)^(Change it|There is seldom a reason)", text), field.name
    assert found == {}


def test_errors_have_their_cure_and_say_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = sections((REFERENCE / "errors.md").read_text())
    classes = {
        name: known
        for name, known in vars(timerstore.errors).items()
        if isinstance(known, type) and issubclass(known, timerstore.TimerStoreError)
    }
    assert set(page) == set(classes)
    known: dict[str, object] = {}
    (first,) = (
        each.code
        for each in split_fences((REFERENCE / "errors.md").read_text().split("\n## ")[0])[1]
    )
    exec(first, known)
    with known["store"] as store:  # type: ignore[attr-defined]
        for name, text in page.items():
            assert "**Cure:** " in text, name
            (says,) = re.findall(r"(?m)^> `` (.*) ``$", text) or [""]
            assert says or name == "TimerStoreError", name
            for program in split_fences(text)[1]:
                if program.info == "python":
                    with pytest.raises(classes[name]) as e:
                        exec(program.code, known)
                    assert type(e.value) is classes[name]
                    assert is_said(str(e.value), says), f"{name}: {e.value}"
            store.resume("putting")


def test_commands_are_those_of_the_shell() -> None:
    # In a process of its own: the order is that in which the commands' modules are imported.
    program = ROOT / "docs" / "hooks" / "made.py"
    printed = python(program, "commands", timeout_s=60, popen=Warm)
    assert {"put", "serve", "pipeline run"} <= set(re.findall(r"(?m)^#{3,4} (.+)$", printed))
    assert "<!-- made: commands -->" in (REFERENCE / "cli.md").read_text()
