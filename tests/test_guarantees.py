"""Each promise that docs/guarantees.md lists stands where it says, with a test behind it."""

import re

import pytest

from tests.markdown import ROOT, split_fences

PAGE = ROOT / "docs/guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ABSOLUTE = re.compile(r"\b(never|always|exactly once|nothing is lost)\b", re.IGNORECASE)
FOR_BUILDERS = "exclude: true"
LEFT_OUT = {"docs/benchmarks.md", "docs/metrics.md", "docs/pipeline.md", "docs/spark.md"}
"""Of measurements, or of tables, whose own tests hold them against the code."""
NO_PROMISE = ("Is it exactly once?", "As always, [handlers", "`hello nobody` always fails")
COVERED = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/howto/*.md")]
    if FOR_BUILDERS not in path.read_text()[:60] and str(path.relative_to(ROOT)) not in LEFT_OUT
)
"""Pages each of whose absolute sentences stands in the list."""


def rows() -> list[tuple[str, str, str]]:
    """Of each promise the page that makes it, its words, what is behind it."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0].endswith(".md"):
            found.append((cells[0], cells[1], cells[2]))
    return found


def prose(name: str) -> str:
    """The text of a page in one line, so that it does not matter where its lines break."""
    return " ".join(" ".join(split_fences((ROOT / name).read_text())[0]).split())


@pytest.mark.parametrize("name", sorted({row[0] for row in rows()}))
def test_the_page_still_makes_each_promise(name: str) -> None:
    text = prose(name)
    for page, promise, _ in rows():
        if page == name:
            assert " ".join(promise.split()) in text, f"{name} does not say: {promise}"


def test_each_promise_has_a_test_or_a_figure() -> None:
    assert len(rows()) > 15
    for _, promise, behind in rows():
        assert TEST.search(behind) or "benchmarks.md#" in behind, promise


def test_each_test_is_there() -> None:
    named = set(TEST.findall(PAGE.read_text()))
    for file, test in sorted(named):
        source = (ROOT / file).read_text()
        assert re.search(rf"^(async def|def|class) {test}\b|^{test}\b.* = ", source, re.M), (
            f"docs/guarantees.md names {file}::{test}, which is not there"
        )


@pytest.mark.parametrize("name", COVERED)
def test_each_absolute_sentence_is_listed(name: str) -> None:
    """A sentence is covered if the list quotes a part of it that has the absolute word."""
    promises = [promise for page, promise, _ in rows() if page == name]
    text = prose(name)
    for match in ABSOLUTE.finditer(text):
        around = text[max(0, match.start() - 200) : match.end() + 200]
        if any(words in around for words in NO_PROMISE):
            continue
        assert any(
            match[0].lower() in promise.lower() and " ".join(promise.split()) in around
            for promise in promises
        ), f"docs/guarantees.md does not list this of {name}: …{around}…"
