"""Parts that are measured, kept, shown, put into a page; plots; the verbs of `./run bench`."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import harness
import machine
import plots
import pytest
import results
from harness import sized
from results import Row

pytestmark = pytest.mark.long

BENCH = Path(machine.__file__).parent
RUN = BENCH.with_name("run").read_text()
SCRIPTS = dict(re.findall(r"^ +(--[\w-]+)\) script=(\w+) ;;$", RUN, re.MULTILINE))
for verbs in re.findall(r"^ +(--\w+(?: \| --\w+)+)\) script=\$\{1#--\} ;;$", RUN, re.MULTILINE):
    SCRIPTS |= {verb: verb.removeprefix("--") for verb in verbs.split(" | ")}


def test_the_head_of_run_names_every_verb() -> None:
    told = set(re.findall(r"^#   \./run bench (--[\w-]+)", RUN, re.MULTILINE))
    assert told == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("verb", SCRIPTS)
def test_a_verb_has_help_of_its_own(verb: str) -> None:
    command = [sys.executable, str(BENCH / f"{SCRIPTS[verb]}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith(f"usage: ./run bench {verb} ")


@dataclass(frozen=True)
class Sizes:
    rounds: int = sized(7, 3)


def one(ground: harness.Ground[Sizes]) -> Iterator[Row]:
    with ground.path() as path:
        assert path.is_dir()
    yield Row("a", "≤ 1", f"{ground.sizes.rounds}", True)


def two(ground: harness.Ground[Sizes]) -> list[Row]:
    return [Row("b", "", "3"), Row("c", "≤ 1", "4", False)]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    harness.main("--some", "What it does.", Sizes, {"one": one, "two": two})


def test_parts_are_kept_and_fill_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, file = tmp_path / "page.md", tmp_path / "kept.json"
    page.write_text("before\n<!-- some: begin -->\nold\n<!-- some: end -->\nafter\n")
    words = ("--json", str(file))
    run(monkeypatch, *words, "--parts", "two", "--quick")
    run(monkeypatch, *words, "--parts", "one", "--quick", "--fill", str(page))
    lines = page.read_text().splitlines()
    assert [*lines[:2], *lines[-2:]] == [
        *("before", "<!-- some: begin -->", "<!-- some: end -->", "after")
    ]
    assert re.search(r"; \d+-\d+-\d+; load [\d.]+ to [\d.]+ before each row\.$", lines[2])
    assert lines[4:-2] == [
        "| what | reach | measured |  |",
        "|---|---|---|---|",
        "| a | ≤ 1 | 3 | reached |",
        "| b |  | 3 |  |",
        "| c | ≤ 1 | 4 | missed |",
    ]
    assert "c\n    4\n    ≤ 1 MISSED" in capsys.readouterr().out
    run(monkeypatch, *words, "--parts", "one", "--rounds", "5")
    assert results.read(file)["some/one"]["rows"][0]["measured"] == "5"
    for text in ("", "{", "[1]", '{"a": 1}', '{"a": {"day": 1}}', "null"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"kept\.json is not a file that --json has written"):
            results.read(file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "one", "--fill", "PAGE"], "--fill needs all of one, two"),
        (["--parts", "three"], "no such part: three; use one, two"),
        (["--parts", ""], "--parts names nothing"),
    ],
)
def test_wrong_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "PAGE"
    page.write_text("<!-- some: begin -->\n<!-- some: end -->\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run(monkeypatch, *words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "B E E", "B B E", "E B", "B"])
def test_a_page_whose_marks_are_wrong_stays_as_it_is(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    text = text.replace("B", "<!-- x: begin -->").replace("E", "<!-- x: end -->")
    page.write_text(text)
    with pytest.raises(ValueError, match=r"must have <!-- x: begin --> and behind it"):
        results.fill(page, "x", "table")
    assert page.read_text() == text


def test_a_file_is_not_lost_if_it_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    results.write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        results.write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_each_plot_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of docs/benchmarks.md: it has all that they read."""
    assert plots.number("1.01 M (1–2)") == 1.01e6
    assert plots.number("1,300") == 1_300
    plots.draw(plots.PAGE, tmp_path)
    names = {f"bench-{name}" for name in ("rates", "lateness")}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    assert capsys.readouterr().out == ""
    (tmp_path / "page.md").write_text("nothing")
    plots.draw(tmp_path / "page.md", tmp_path)
    assert "draw_rates: the page has no table" in capsys.readouterr().out
